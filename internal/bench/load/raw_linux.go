package load

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// Slots is how many datagrams one sendmmsg call carries at most. More
	// does not lower the cost per packet.
	Slots = 64
	// MaxPayload is the largest UDP payload that fits a 1,500-byte packet.
	MaxPayload = 1472

	headerLen = 28 // IPv4 header without options, and UDP header
)

// Endpoint is an IPv4 address and port.
type Endpoint struct {
	IP   [4]byte
	Port uint16
}

// String formats the endpoint as host:port.
func (e Endpoint) String() string {
	return fmt.Sprintf("%d.%d.%d.%d:%d", e.IP[0], e.IP[1], e.IP[2], e.IP[3], e.Port)
}

// mmsghdr is struct mmsghdr on 64-bit Linux.
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
	_   uint32
}

// Raw sends UDP datagrams whose source address the caller picks, so that one
// socket stands for a thousand clients. It is not safe for concurrent use.
type Raw struct {
	fd   int
	used int
	buf  [Slots][headerLen + MaxPayload]byte
	iov  [Slots]unix.Iovec
	name [Slots]unix.RawSockaddrInet4
	msgs [Slots]mmsghdr
	sent uint64
	lost uint64
}

// NewRaw opens the socket in the caller's network namespace; it needs CAP_NET_RAW.
func NewRaw() (*Raw, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, fmt.Errorf("raw socket: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 16<<20); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("raw socket: send buffer: %w", err)
	}
	r := &Raw{fd: fd}
	for i := range r.msgs {
		b := r.buf[i][:]
		b[0] = 0x45 // version 4, five words
		b[8] = 64   // TTL
		b[9] = unix.IPPROTO_UDP
		r.name[i].Family = unix.AF_INET
		r.iov[i].Base = &b[0]
		h := &r.msgs[i].hdr
		h.Name = (*byte)(unsafe.Pointer(&r.name[i]))
		h.Namelen = unix.SizeofSockaddrInet4
		h.Iov = &r.iov[i]
		h.SetIovlen(1)
	}
	return r, nil
}

// Close closes the socket.
func (r *Raw) Close() { _ = unix.Close(r.fd) }

// Buffer returns the payload space of the next datagram; it is valid until [Raw.Push].
func (r *Raw) Buffer() []byte { return r.buf[r.used][headerLen:] }

// Push queues the datagram whose n payload bytes are in [Raw.Buffer], and
// sends the queue when it is full. The UDP checksum is left out (zero), which
// IPv4 allows; it saves every receiver the same work.
func (r *Raw) Push(src, dst Endpoint, n int) {
	b := r.buf[r.used][:]
	binary.BigEndian.PutUint16(b[2:], uint16(headerLen+n))
	copy(b[12:], src.IP[:])
	copy(b[16:], dst.IP[:])
	binary.BigEndian.PutUint16(b[20:], src.Port)
	binary.BigEndian.PutUint16(b[22:], dst.Port)
	binary.BigEndian.PutUint16(b[24:], uint16(8+n))
	r.name[r.used].Addr = dst.IP
	r.iov[r.used].SetLen(headerLen + n)
	r.used++
	if r.used == Slots {
		r.Flush()
	}
}

// Flush sends what is queued. A datagram that the kernel refuses is counted
// in [Raw.Lost] and skipped.
func (r *Raw) Flush() {
	off := 0
	for retries := 0; off < r.used; {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(r.fd),
			uintptr(unsafe.Pointer(&r.msgs[off])), uintptr(r.used-off), 0, 0, 0)
		switch {
		case errno == 0:
			off += int(n)
			r.sent += uint64(n)
		case errors.Is(errno, unix.EINTR) && retries < 8:
			retries++
		default:
			off++
			r.lost++
		}
	}
	r.used = 0
}

// Sent returns how many datagrams the kernel took since the socket was opened.
func (r *Raw) Sent() uint64 { return r.sent }

// Lost returns how many datagrams the kernel refused.
func (r *Raw) Lost() uint64 { return r.lost }
