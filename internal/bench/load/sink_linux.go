package load

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	sinkBatch = 64
	sinkSlot  = 2048
	sinkCtl   = 64
	// sinkBuffer holds a whole fill of the relay's queue and what it makes of
	// it, so that nothing is lost here while nobody reads.
	sinkBuffer = 128 << 20
)

// Sink takes datagrams for every local address on one port: one socket
// receives what a relay sends to a thousand clients, at a fixed cost. Nobody
// ever sleeps on it, so a relay's send never pays for waking a reader.
type Sink struct {
	fd   int
	port uint16
	buf  [sinkBatch][sinkSlot]byte
	ctl  [sinkBatch][sinkCtl]byte
	iov  [sinkBatch]unix.Iovec
	name [sinkBatch]unix.RawSockaddrInet4
	msgs [sinkBatch]mmsghdr
}

// NewSink binds the wildcard address on a port that the kernel picks, in the
// caller's network namespace.
func NewSink() (*Sink, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("sink: %w", err)
	}
	s := &Sink{fd: fd}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, sinkBuffer); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("sink: receive buffer: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("sink: %w", err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("sink: %w", err)
	}
	if in, ok := sa.(*unix.SockaddrInet4); ok {
		s.port = uint16(in.Port)
	}
	for i := range s.msgs {
		s.iov[i].Base = &s.buf[i][0]
		s.iov[i].SetLen(sinkSlot)
		h := &s.msgs[i].hdr
		h.Name = (*byte)(unsafe.Pointer(&s.name[i]))
		h.Iov = &s.iov[i]
		h.SetIovlen(1)
		h.Control = &s.ctl[i][0]
	}
	return s, nil
}

// Close closes the socket.
func (s *Sink) Close() { _ = unix.Close(s.fd) }

// Port returns the port that the sink listens on.
func (s *Sink) Port() uint16 { return s.port }

// Stamps turns the kernel's receive timestamps on or off. They cost whoever
// delivers the packet, so they are on only while latency is measured.
func (s *Sink) Stamps(on bool) error {
	v := 0
	if on {
		v = 1
	}
	return unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, v)
}

// Recv reads the datagrams that are there, at most one batch, and returns how
// many. It never waits. The datagrams are valid until the next Recv.
func (s *Sink) Recv() int {
	for i := range s.msgs {
		s.msgs[i].hdr.Namelen = unix.SizeofSockaddrInet4
		s.msgs[i].hdr.SetControllen(sinkCtl)
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(s.fd),
		uintptr(unsafe.Pointer(&s.msgs[0])), sinkBatch, unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// Data returns datagram i of the last batch.
func (s *Sink) Data(i int) []byte { return s.buf[i][:min(s.msgs[i].n, sinkSlot)] }

// From returns the source of datagram i of the last batch.
func (s *Sink) From(i int) Endpoint {
	p := (*[2]byte)(unsafe.Pointer(&s.name[i].Port))
	return Endpoint{IP: s.name[i].Addr, Port: binary.BigEndian.Uint16(p[:])}
}

// Stamp returns when the kernel took datagram i of the last batch, in
// nanoseconds of CLOCK_REALTIME, or 0 without [Sink.Stamps].
func (s *Sink) Stamp(i int) int64 {
	b := s.ctl[i][:min(int(s.msgs[i].hdr.Controllen), sinkCtl)]
	if len(b) < unix.SizeofCmsghdr+16 {
		return 0
	}
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	if h.Level != unix.SOL_SOCKET || h.Type != unix.SCM_TIMESTAMPNS {
		return 0
	}
	ts := (*unix.Timespec)(unsafe.Pointer(&b[unix.SizeofCmsghdr]))
	return ts.Nano()
}
