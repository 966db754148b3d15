package udpbatch

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fakeKernel is a sendmmsg that fails as it is told, and by the rules of the
// real one: an error is reported only if it hits the first message of a call.
type fakeKernel struct {
	// decide returns the error for a message, known by its destination port.
	decide func(d datagramOut) unix.Errno
	// silent makes a call return 0 in place of EAGAIN.
	silent bool
	calls  int
	taken  []datagramOut
}

type datagramOut struct {
	port    int
	data    []byte
	tos     uint8
	segment int
}

func (k *fakeKernel) send(_ int, hdrs []mmsghdr) (int, unix.Errno) {
	k.calls++
	for i := range hdrs {
		d := readOut(&hdrs[i].hdr)
		errno := k.decide(d)
		switch {
		case errno == 0:
			k.taken = append(k.taken, d)
		case i > 0:
			return i, 0
		case errno == unix.EAGAIN && k.silent:
			return 0, 0
		default:
			return -1, errno
		}
	}
	return len(hdrs), 0
}

// readOut reads a header as the kernel does.
func readOut(h *unix.Msghdr) (d datagramOut) {
	sa := (*unix.RawSockaddrInet4)(unsafe.Pointer(h.Name))
	d.port = int(getPort(&sa.Port))
	if h.Iovlen > 0 {
		for _, v := range unsafe.Slice(h.Iov, h.Iovlen) {
			d.data = append(d.data, unsafe.Slice(v.Base, v.Len)...)
		}
	}
	var b []byte
	if h.Controllen > 0 {
		b = unsafe.Slice(h.Control, h.Controllen)
	}
	for len(b) > 0 {
		c := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
		data := b[unix.CmsgLen(0):c.Len]
		switch {
		case c.Level == unix.IPPROTO_IP && c.Type == unix.IP_TOS:
			d.tos = data[0]
		case c.Level == unix.IPPROTO_UDP && c.Type == unix.UDP_SEGMENT:
			d.segment = int(data[0]) | int(data[1])<<8 // on the little-endian machines that run this test
		default:
			panic(fmt.Sprint("control message ", c.Level, c.Type))
		}
		b = b[unix.CmsgSpace(len(data)):]
	}
	return d
}

// fakeConn is a Conn on a fake kernel, with GSO on.
func fakeConn(t testing.TB, k *fakeKernel) (*Conn, *mmsgConn) {
	c, m := listenOn(t, "127.0.0.1:0")
	m.out.send = k.send
	m.gso.Store(uint32(OffloadOn))
	return c, m
}

// numbered makes n messages to ports 1, 2, 3 …
func numbered(n int) []Message {
	ms := make([]Message, n)
	for i := range ms {
		ms[i] = message(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(i+1)), []byte("message "), []byte{byte(i)})
	}
	return ms
}

func TestSocketErrorsAreBoundedAndCounted(t *testing.T) {
	always := func(e unix.Errno) func(datagramOut) unix.Errno {
		return func(datagramOut) unix.Errno { return e }
	}
	// onPort fails the first n attempts for one destination.
	onPort := func(port, n int, e unix.Errno) func(datagramOut) unix.Errno {
		return func(d datagramOut) unix.Errno {
			if d.port == port && n > 0 {
				n--
				return e
			}
			return 0
		}
	}
	const lasting = 1 << 30
	for _, tc := range []struct {
		name   string
		decide func(datagramOut) unix.Errno
		failed []int // ports
		calls  int   // at most
		class  func(ErrorCounts) uint64
	}{
		{"EAGAIN once", onPort(5, 1, unix.EAGAIN), nil, 3, nil},
		{"EAGAIN lasting", onPort(14, lasting, unix.EAGAIN), []int{14, 15, 16}, 3, func(e ErrorCounts) uint64 { return e.Again }},
		{"EAGAIN for all", always(unix.EAGAIN), seq(1, 16), 2, func(e ErrorCounts) uint64 { return e.Again }},
		{"ENOBUFS once", onPort(5, 1, unix.ENOBUFS), nil, 3, nil},
		{"ENOBUFS for all", always(unix.ENOBUFS), seq(1, 16), 17, func(e ErrorCounts) uint64 { return e.NoBuffers }},
		{"ENOBUFS on one", onPort(5, lasting, unix.ENOBUFS), []int{5}, 4, func(e ErrorCounts) uint64 { return e.NoBuffers }},
		{"pending ECONNREFUSED", onPort(1, 1, unix.ECONNREFUSED), nil, 2, nil},
		{"lasting ECONNREFUSED", onPort(3, lasting, unix.ECONNREFUSED), []int{3}, 4, func(e ErrorCounts) uint64 { return e.Refused }},
		{"ECONNREFUSED for all", always(unix.ECONNREFUSED), seq(1, 16), 32, func(e ErrorCounts) uint64 { return e.Refused }},
		{"EPERM on one", onPort(16, lasting, unix.EPERM), []int{16}, 3, func(e ErrorCounts) uint64 { return e.Permission }},
		{"EMSGSIZE on one", onPort(1, lasting, unix.EMSGSIZE), []int{1}, 3, func(e ErrorCounts) uint64 { return e.MessageSize }},
		{"pending EHOSTUNREACH", onPort(1, 1, unix.EHOSTUNREACH), nil, 2, nil},
		{"EHOSTUNREACH on one", onPort(9, lasting, unix.EHOSTUNREACH), []int{9}, 4, func(e ErrorCounts) uint64 { return e.Unreachable }},
		{"EINVAL on one", onPort(9, lasting, unix.EINVAL), []int{9}, 4, func(e ErrorCounts) uint64 { return e.Invalid }},
		{"EIO on one", onPort(9, lasting, unix.EIO), []int{9}, 4, func(e ErrorCounts) uint64 { return e.IO }},
		{"EINTR once", onPort(9, 1, unix.EINTR), nil, 3, nil},
		{"EINTR for all", always(unix.EINTR), seq(1, 16), 16 + maxInterrupted, func(e ErrorCounts) uint64 { return e.Other }},
		{"EBADF for all", always(unix.EBADF), seq(1, 16), 16, func(e ErrorCounts) uint64 { return e.Other }},
	} {
		for _, silent := range []bool{false, true} {
			t.Run(fmt.Sprint(tc.name, silent), func(t *testing.T) {
				k := &fakeKernel{decide: tc.decide, silent: silent}
				c, _ := fakeConn(t, k)
				ms := numbered(16)
				sent := c.WriteBatch(ms)
				if k.calls > tc.calls {
					t.Errorf("%d system calls, want at most %d", k.calls, tc.calls)
				}
				if sent != 16-len(tc.failed) {
					t.Errorf("sent %d, want %d", sent, 16-len(tc.failed))
				}
				var failed []int
				for i := range ms {
					if ms[i].Err != nil {
						failed = append(failed, i+1)
					}
				}
				if fmt.Sprint(failed) != fmt.Sprint(tc.failed) {
					t.Errorf("failed %v, want %v", failed, tc.failed)
				}
				checkTaken(t, ms, k, c)
				errs := c.Stats().WriteErrors
				if tc.class != nil && tc.class(errs) != uint64(len(tc.failed)) || errs.Total() != uint64(len(tc.failed)) {
					t.Errorf("counted %+v", errs)
				}
			})
		}
	}
}

func seq(from, to int) (s []int) {
	for i := from; i <= to; i++ {
		s = append(s, i)
	}
	return s
}

// checkTaken compares what the kernel took with what the messages say: each
// that has no error once and in order, nothing twice, nothing else.
func checkTaken(t testing.TB, ms []Message, k *fakeKernel, c *Conn) {
	t.Helper()
	var got []datagramOut
	for _, d := range k.taken {
		for _, b := range cut(d.data, d.segment) {
			got = append(got, datagramOut{port: d.port, data: b, tos: d.tos})
		}
	}
	sent := 0
	for i := range ms {
		m := &ms[i]
		if m.Err != nil {
			continue
		}
		if !m.To.IsValid() {
			t.Errorf("message %d without address has no error", i)
			continue
		}
		if sent == len(got) {
			t.Fatalf("message %d was not taken and has no error", i)
		}
		d := got[sent]
		if d.port != int(m.To.Port()) || !bytes.Equal(d.data, bytes.Join(m.Buffers, nil)) || d.tos != 0 && d.tos != m.TOS {
			t.Fatalf("in place of message %d went %d bytes to %d with TOS %#x", i, len(d.data), d.port, d.tos)
		}
		sent++
	}
	if sent != len(got) {
		t.Errorf("the kernel took %d datagrams that no message explains", len(got)-sent)
	}
	if n := c.Stats().Sent; n != uint64(sent) {
		t.Errorf("%d datagrams counted, %d taken", n, sent)
	}
}

func cut(b []byte, segment int) (out [][]byte) {
	for segment > 0 && len(b) > segment {
		out = append(out, b[:segment])
		b = b[segment:]
	}
	return append(out, b)
}

// inRuns makes eleven messages to each of five ports, the last ones shorter.
func inRuns() (ms []Message) {
	for port := range 5 {
		for i := range 11 {
			b := bytes.Repeat([]byte{byte(port*11 + i)}, 100) // no two are equal: a repeated one is seen
			m := numbered(port + 1)[port]
			m.Buffers = [][]byte{b[:30], b[30 : 100-i/10*50]}
			ms = append(ms, m)
		}
	}
	return ms
}

func TestOffloadIsSwitchedOffWhenItFails(t *testing.T) {
	for _, tc := range []struct {
		name    string
		errno   unix.Errno
		batches int // until it is off
	}{
		{"EIO at once", unix.EIO, 1},
		{"EINVAL when it lasts", unix.EINVAL, 4}, // 5 runs a batch
	} {
		t.Run(tc.name, func(t *testing.T) {
			k := &fakeKernel{decide: func(d datagramOut) unix.Errno {
				if d.segment > 0 {
					return tc.errno
				}
				return 0
			}}
			c, _ := fakeConn(t, k)
			for i := range tc.batches {
				if got := c.Stats().GSO; got != OffloadOn {
					t.Fatalf("%s before batch %d", got, i)
				}
				ms := inRuns()
				if sent := c.WriteBatch(ms); sent != len(ms) {
					t.Fatalf("sent %d: %v", sent, ms[0].Err)
				}
			}
			s := c.Stats()
			if s.GSO != OffloadFailed || s.GSORefused == 0 || s.Sent != uint64(55*tc.batches) || s.WriteErrors.Total() != 0 {
				t.Errorf("%+v", s)
			}
			calls := k.calls
			ms := inRuns()
			c.WriteBatch(ms)
			if k.calls-calls != 1 {
				t.Errorf("%d system calls after it was off", k.calls-calls)
			}
		})
	}
}

// One path with a small MTU does not cost the others their offload.
func TestOffloadStaysForTheOtherPaths(t *testing.T) {
	k := &fakeKernel{decide: func(d datagramOut) unix.Errno {
		if d.segment > 0 && d.port == 3 {
			return unix.EINVAL
		}
		return 0
	}}
	c, _ := fakeConn(t, k)
	for i := range 50 {
		k.taken = nil
		ms := inRuns()
		if sent := c.WriteBatch(ms); sent != len(ms) {
			t.Fatal(ms[2].Err)
		}
		if n := len(k.taken); n != 4+11 {
			t.Fatalf("batch %d: %d datagrams given to the kernel", i, n)
		}
	}
	if s := c.Stats(); s.GSO != OffloadOn || s.GSORefused != 50 {
		t.Errorf("GSO %s, refused %d", s.GSO, s.GSORefused)
	}
}

func TestRefusedControlMessageFallsBackToAPlainSend(t *testing.T) {
	k := &fakeKernel{decide: func(d datagramOut) unix.Errno {
		if d.tos != 0 {
			return unix.EINVAL
		}
		return 0
	}}
	c, _ := fakeConn(t, k)
	ms := append(inRuns(), numbered(2)...)
	for i := range ms {
		ms[i].TOS = 0xb8
	}
	if sent := c.WriteBatch(ms); sent != len(ms) {
		t.Fatalf("sent %d: %v", sent, ms[0].Err)
	}
	checkTaken(t, ms, k, c)
	if s := c.Stats(); s.TOSRefused == 0 || s.WriteErrors.Total() != 0 {
		t.Errorf("%+v", s)
	}
}

// Whatever a kernel answers, WriteBatch ends, repeats nothing and tells the truth.
func FuzzWriteBatch(f *testing.F) {
	f.Add([]byte{3, 0, 1, 2, 3}, []byte{0, 0, 0, 0})
	f.Add([]byte{200, 17, 99, 4, 250}, []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12})
	f.Add([]byte{9, 9, 9, 9, 9, 9, 9, 9}, bytes.Repeat([]byte{4, 0, 4}, 40))
	errnos := []unix.Errno{
		0, 0, 0, unix.EAGAIN, unix.ENOBUFS, unix.ECONNREFUSED, unix.EPERM, unix.EMSGSIZE,
		unix.EHOSTUNREACH, unix.EINVAL, unix.EIO, unix.EINTR, unix.EBADF,
	}
	f.Fuzz(func(t *testing.T, shape, answers []byte) {
		if len(shape) > 150 {
			return
		}
		k := &fakeKernel{silent: len(answers)%2 == 1}
		k.decide = func(datagramOut) unix.Errno {
			if len(answers) == 0 {
				return 0
			}
			e := errnos[int(answers[0])%len(errnos)]
			answers = answers[1:]
			return e
		}
		c, m := fakeConn(t, k)
		defer func() { _ = c.Close() }()
		ms := numbered(len(shape))
		for i, s := range shape {
			whole := make([]byte, int(s%8)*300)
			for j := range whole {
				whole[j] = byte(i + j*7/13)
			}
			a, b := len(whole)/3, len(whole)/2
			ms[i].Buffers = [][]byte{whole[:a], nil, whole[a:b], whole[b:]}
			ms[i].TOS = s / 8 % 2
			if i > 0 && s < 192 {
				ms[i].To = ms[i-1].To
			}
			if s == 255 {
				ms[i].To = netip.AddrPort{}
			}
		}
		if len(shape) > 0 && shape[0]%2 == 1 {
			m.gso.Store(uint32(OffloadOff))
		}
		sent := c.WriteBatch(ms)
		failed := 0
		for i := range ms {
			if ms[i].Err != nil {
				failed++
			}
		}
		if sent+failed != len(ms) {
			t.Errorf("%d sent and %d failed of %d", sent, failed, len(ms))
		}
		// A datagram may be tried in a run, marked, again for an old error, and plain.
		if k.calls > 5*len(ms)+maxInterrupted+1 {
			t.Errorf("%d calls for %d messages", k.calls, len(ms))
		}
		checkTaken(t, ms, k, c)
	})
}
