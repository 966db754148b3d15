package udpbatch

import (
	"math"
	"net/netip"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/usher-rtc/usher/internal/race"
)

func TestSockaddrRoundTrip(t *testing.T) {
	for _, tc := range []struct {
		family int
		to     string
		want   string
		errno  unix.Errno
	}{
		{unix.AF_INET, "192.0.2.1:65535", "192.0.2.1:65535", 0},
		{unix.AF_INET, "[::ffff:192.0.2.1]:258", "192.0.2.1:258", 0},
		{unix.AF_INET, "[2001:db8::1]:1", "", unix.EAFNOSUPPORT},
		{unix.AF_INET6, "192.0.2.1:1", "192.0.2.1:1", 0},
		{unix.AF_INET6, "[::ffff:192.0.2.1]:1", "192.0.2.1:1", 0},
		{unix.AF_INET6, "[2001:db8::1]:513", "[2001:db8::1]:513", 0},
		{unix.AF_INET6, "[fe80::1%3]:1", "[fe80::1%3]:1", 0},
		{unix.AF_INET6, "[fe80::1%12345]:1", "[fe80::1%12345]:1", 0},
		{unix.AF_INET6, "[fe80::1%eth0]:1", "", unix.EINVAL},
		{unix.AF_INET6, "[fe80::1%9999999999]:1", "", unix.EINVAL},
	} {
		var zones zoneTable
		sa := sockaddr{Scope_id: 77, Flowinfo: 77} // left by an earlier datagram
		size, errno := putSockaddr(&sa, tc.family, netip.MustParseAddrPort(tc.to))
		if errno != tc.errno {
			t.Errorf("%s: %v, want %v", tc.to, errno, tc.errno)
		}
		if errno != 0 {
			continue
		}
		if got := getSockaddr(&sa, &zones); got.String() != tc.want {
			t.Errorf("%s became %s, want %s", tc.to, got, tc.want)
		}
		if want := map[int]uint32{unix.AF_INET: 16, unix.AF_INET6: 28}[tc.family]; size != want {
			t.Errorf("%s: size %d, want %d", tc.to, size, want)
		}
	}
	if _, errno := putSockaddr(&sockaddr{}, unix.AF_INET, netip.AddrPort{}); errno != unix.EDESTADDRREQ {
		t.Errorf("no address: %v", errno)
	}
	if got := getSockaddr(&sockaddr{Family: unix.AF_UNSPEC}, nil); got.IsValid() {
		t.Errorf("no family: %s", got)
	}
}

// Zones differ, cost nothing once known, and cannot fill memory.
func TestZoneTable(t *testing.T) {
	var zones zoneTable
	addr := netip.MustParseAddr("fe80::1")
	if zones.with(addr, 2) == zones.with(addr, 3) {
		t.Error("one address on two links")
	}
	for i := range uint32(1000) {
		if got := zones.with(addr, i+1).Zone(); got != strconv.Itoa(int(i+1)) {
			t.Fatalf("zone %d is %q", i+1, got)
		}
	}
	if len(zones.zones) > maxZones {
		t.Errorf("%d zones kept", len(zones.zones))
	}
	runtime.GC() // the runtime forgets names that nobody holds
	var got netip.Addr
	if n := testing.AllocsPerRun(100, func() { got = zones.with(addr, 3) }); n != 0 {
		t.Errorf("%v allocations for a known zone", n)
	}
	if got.Zone() != "3" {
		t.Error(got)
	}
}

func FuzzParseControl(f *testing.F) {
	var buf ctrlBuf
	w := controlWriter{b: buf.bytes()}
	w.addTOS(0xb8, true)
	w.addLocal(netip.MustParseAddr("192.0.2.1"))
	w.addSegment(1200)
	f.Add(w.b[:w.n])
	w = controlWriter{b: buf.bytes()}
	w.addTOS(3, false)
	w.addLocal(netip.MustParseAddr("2001:db8::1"))
	f.Add(w.b[:w.n])
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > ctrlSize {
			return
		}
		var aligned ctrlBuf
		n := copy(aligned.bytes(), b)
		var c control
		parseControl(aligned.bytes()[:n], &c)
		if c.local.IsValid() && n < unix.CmsgLen(unix.SizeofInet4Pktinfo) {
			t.Errorf("an address out of %d bytes", n)
		}
	})
}

// benchHandler echoes and says when it has seen a number of datagrams.
type benchHandler struct {
	c    *Conn
	msgs []Message
	bufs [][]byte
	n    int
	want int
	done chan struct{}
}

func newBenchHandler(c *Conn, want int) *benchHandler {
	return &benchHandler{c: c, msgs: make([]Message, 0, 64), bufs: make([][]byte, 64), want: want, done: make(chan struct{}, 1)}
}

func (h *benchHandler) HandleBatch(_ int, pkts []Packet) {
	h.msgs = h.msgs[:0]
	for i := range pkts {
		h.bufs[i] = pkts[i].Data
		h.msgs = append(h.msgs, Message{Buffers: h.bufs[i : i+1], To: pkts[i].From, TOS: pkts[i].TOS, Local: pkts[i].Local})
	}
	h.c.WriteBatch(h.msgs)
	if h.n += len(pkts); h.n >= h.want {
		h.n = 0
		h.done <- struct{}{}
	}
}

func (h *benchHandler) Idle(time.Time) time.Duration { return time.Hour }

// sinkHandler counts.
type sinkHandler struct {
	n, want int
	done    chan struct{}
}

func (h *sinkHandler) HandleBatch(_ int, pkts []Packet) {
	if h.n += len(pkts); h.n >= h.want {
		h.n = 0
		h.done <- struct{}{}
	}
}

func (h *sinkHandler) Idle(time.Time) time.Duration { return time.Hour }

func TestSteadyStateAllocatesNothing(t *testing.T) {
	race.NoAllocs(t)
	for _, addr := range []string{"127.0.0.1:0", "0.0.0.0:0", "[::]:0"} {
		const count = 100
		c, _ := linuxConn(t, SocketConfig{Addr: netip.MustParseAddrPort(addr), ReadBuffer: bigBuffer})
		back, _ := linuxConn(t, SocketConfig{Addr: netip.MustParseAddrPort("127.0.0.1:0"), ReadBuffer: bigBuffer})
		sink := &sinkHandler{want: count, done: make(chan struct{}, 1)}
		serve(t, newBenchHandler(c, math.MaxInt), GroupConfig{}, c)
		g, _ := serve(t, sink, GroupConfig{}, back)
		to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), c.LocalAddr().Port())
		ms := make([]Message, count)
		payload := [][]byte{make([]byte, 100), make([]byte, 3000)} // longer than a slot
		for i := range ms {
			ms[i] = Message{Buffers: payload, To: to, TOS: 0xb8}
		}
		// The last is bad: its error must not allocate either.
		all := append(ms, message(netip.MustParseAddrPort("192.0.2.1:9"), []byte("x")))
		if n := testing.AllocsPerRun(100, func() {
			if back.WriteBatch(all) != count {
				t.Error(all[0].Err)
			}
			g.Wake()
			<-sink.done
		}); n != 0 {
			t.Errorf("%s: %v allocations a round of %d datagrams", addr, n, count)
		}
	}
}
