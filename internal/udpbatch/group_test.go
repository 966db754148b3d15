package udpbatch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/config"
)

func TestEchoKeepsContentOrderAndAddresses(t *testing.T) {
	for _, tc := range []struct{ name, server, client, dial string }{
		{"IPv4", "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1"},
		{"IPv4 wildcard", "0.0.0.0:0", "127.0.0.1:0", "127.0.0.1"},
		{"IPv6", "[::1]:0", "[::1]:0", "::1"},
		{"IPv6 to dual stack", "[::]:0", "[::1]:0", "::1"},
		{"IPv4 to dual stack", "[::]:0", "127.0.0.1:0", "127.0.0.1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			eachPath(t, func(t *testing.T, p path) {
				c := p.open(t, tc.server)
				h := newCollector()
				h.conns = []*Conn{c}
				serve(t, h, GroupConfig{Batch: 8}, c)

				u := client(t, tc.client)
				to := netip.AddrPortFrom(netip.MustParseAddr(tc.dial), c.LocalAddr().Port())
				const count = 100
				for i := range count {
					if _, err := u.WriteToUDPAddrPort(binary.BigEndian.AppendUint32(nil, uint32(i)), to); err != nil {
						t.Fatal(err)
					}
				}
				for i := range count {
					got := h.next(t)
					if n := binary.BigEndian.Uint32(got.Data); n != uint32(i) {
						t.Fatalf("got packet %d, want %d", n, i)
					}
					if got.From != addrOf(u) {
						t.Fatalf("From is %s, want %s", got.From, addrOf(u))
					}
					b, from := receive(t, u)
					if n := binary.BigEndian.Uint32(b); n != uint32(i) || from != to {
						t.Fatalf("echo %d from %s, want %d from %s", n, from, i, to)
					}
				}
				s := c.Stats()
				if s.Received != count || s.ReceivedBytes != 4*count || s.Sent != count || s.WriteErrors.Total() != 0 {
					t.Errorf("stats: %+v", s)
				}
			})
		})
	}
}

// No datagram is cut or runs into its neighbour, also when several are in one batch.
func TestNoDatagramIsCut(t *testing.T) {
	batches := [][]int{
		{0, 1, 63, 64, 65},
		{1472, 1473, 2047, 2048, 2049},
		{8192, 9000, 100, 8193},
		{65506, 65507, 65507}, // more would not fit a queue of the default size
		{65507, 20, 3000, 65507, 2048},
	}
	eachPath(t, func(t *testing.T, p path) {
		c, u := p.open(t, "127.0.0.1:0"), client(t, "127.0.0.1:0")
		h := newCollector()
		for _, sizes := range batches {
			// All are in the queue before the first is read.
			for _, n := range sizes {
				if _, err := u.WriteToUDPAddrPort(pattern(n), c.LocalAddr()); err != nil {
					t.Fatal(err)
				}
			}
			g, err := NewGroup([]*Conn{c}, GroupConfig{})
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- g.Serve(h) }()
			for _, n := range sizes {
				got := h.next(t)
				if got.Truncated || !bytes.Equal(got.Data, pattern(n)) {
					t.Errorf("datagram of %d bytes arrived as %d bytes (truncated: %v)", n, len(got.Data), got.Truncated)
				}
			}
			g.Stop()
			<-ended
		}
		if n := c.Stats().Truncated; n != 0 {
			t.Errorf("%d counted as truncated", n)
		}
	})
}

func TestEveryConnOfAGroupIsServed(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		conns := []*Conn{p.open(t, "127.0.0.1:0"), p.open(t, "127.0.0.1:0"), p.open(t, "[::1]:0")}
		h := newCollector()
		serve(t, h, GroupConfig{}, conns...)
		for i, c := range conns {
			a := "127.0.0.1:0"
			if c.LocalAddr().Addr().Is6() {
				a = "[::1]:0"
			}
			if _, err := client(t, a).WriteToUDPAddrPort([]byte{byte(i)}, c.LocalAddr()); err != nil {
				t.Fatal(err)
			}
			if got := h.next(t); got.conn != i || got.Data[0] != byte(i) {
				t.Fatalf("conn %d received %d's packet", got.conn, got.Data[0])
			}
		}
		// One closed socket leaves the others alone.
		if err := conns[0].Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := client(t, "127.0.0.1:0").WriteToUDPAddrPort([]byte{9}, conns[1].LocalAddr()); err != nil {
			t.Fatal(err)
		}
		if got := h.next(t); got.conn != 1 || got.Data[0] != 9 {
			t.Fatalf("got %v", got)
		}
	})
}

func TestWakeRunsIdle(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		calls := make(chan struct{}, 1000)
		h := newCollector()
		h.idle = func(time.Time) time.Duration { calls <- struct{}{}; return 0 }
		g, stop := serve(t, h, GroupConfig{}, p.open(t, "127.0.0.1:0"))
		wait(t, calls, "the first Idle")
		for range 100 {
			g.Wake()
			wait(t, calls, "Idle after Wake")
		}
		stop()
		g.Wake() // must not write to a descriptor that is gone
	})
}

func TestIdleRunsAgainAfterItsWait(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		for _, wanted := range []time.Duration{time.Nanosecond, 300 * time.Microsecond, 20 * time.Millisecond} {
			times := make(chan time.Time, 1)
			n := 0
			h := newCollector()
			h.idle = func(now time.Time) time.Duration {
				if n++; n > 5 {
					return 0 // and never again
				}
				times <- now
				return wanted
			}
			_, stop := serve(t, h, GroupConfig{}, p.open(t, "127.0.0.1:0"))
			last := wait(t, times, "the first Idle")
			longest := time.Duration(0)
			for range 4 {
				now := wait(t, times, "Idle when the wait is over")
				longest = max(longest, now.Sub(last)) // a signal may cut one short
				last = now
			}
			if longest < wanted {
				t.Errorf("called after %v each time, want %v", longest, wanted)
			}
			stop()
		}
	})
}

func wait[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatalf("waited in vain for %s", what)
		panic("not reached")
	}
}

func TestHandlerCallsAreSerial(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		conns := []*Conn{p.open(t, "127.0.0.1:0"), p.open(t, "127.0.0.1:0")}
		const each = 200
		h := &serialHandler{t: t, want: each * len(conns), done: make(chan struct{})}
		g, _ := serve(t, h, GroupConfig{}, conns...)
		ready := make(chan struct{})
		for _, c := range conns {
			u := client(t, "127.0.0.1:0")
			go func() {
				<-ready
				for range each {
					if _, err := u.WriteToUDPAddrPort([]byte("x"), c.LocalAddr()); err != nil {
						t.Error(err)
					}
					g.Wake()
				}
			}()
		}
		close(ready)
		wait(t, h.done, "all packets")
	})
}

// serialHandler has no lock: the race detector finds calls that overlap.
type serialHandler struct {
	t       *testing.T
	inside  bool
	n, want int
	done    chan struct{}
}

func (h *serialHandler) enter() {
	if h.inside {
		h.t.Error("two calls at a time")
	}
	h.inside = true
	runtime.Gosched()
}

func (h *serialHandler) HandleBatch(_ int, pkts []Packet) {
	h.enter()
	defer func() { h.inside = false }()
	if h.n += len(pkts); h.n == h.want {
		close(h.done)
	}
}

func (h *serialHandler) Idle(time.Time) time.Duration {
	h.enter()
	defer func() { h.inside = false }()
	return time.Hour
}

func TestStopLeavesTheQueueToTheNextGroup(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		c := p.open(t, "127.0.0.1:0")
		u := client(t, "127.0.0.1:0")
		h := newCollector()
		for round := range 3 {
			g, err := NewGroup([]*Conn{c}, GroupConfig{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := NewGroup([]*Conn{c}, GroupConfig{}); err == nil {
				t.Fatal("a Conn went into two groups")
			}
			ended := make(chan error, 1)
			go func() { ended <- g.Serve(h) }()
			if got := send(t, u, c, h, byte(round)); got != byte(round) {
				t.Fatalf("got %d, want %d", got, round)
			}
			g.Stop()
			if err := wait(t, ended, "Serve to end"); err != nil {
				t.Fatal(err)
			}
			if err := g.Serve(h); err != nil {
				t.Fatalf("Serve after Stop: %v", err)
			}
			g.Stop() // a second one changes nothing
		}
		// What arrives while nobody reads is not lost.
		if _, err := u.WriteToUDPAddrPort([]byte{42}, c.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		serve(t, h, GroupConfig{}, c)
		if got := h.next(t); got.Data[0] != 42 {
			t.Fatalf("got %d", got.Data[0])
		}
	})
}

func send(t *testing.T, u *net.UDPConn, c *Conn, h *collector, b byte) byte {
	t.Helper()
	if _, err := u.WriteToUDPAddrPort([]byte{b}, c.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	return h.next(t).Data[0]
}

func TestServeTwiceIsAnError(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		h := newCollector()
		first := make(chan struct{}, 10)
		h.idle = func(time.Time) time.Duration { first <- struct{}{}; return 0 }
		g, _ := serve(t, h, GroupConfig{}, p.open(t, "127.0.0.1:0"))
		wait(t, first, "Idle")
		if err := g.Serve(h); err == nil {
			t.Error("no error")
		}
	})
}

func TestConfigErrorsNameTheField(t *testing.T) {
	for _, tc := range []struct {
		field string
		cfg   SocketConfig
	}{
		{"ReadBuffer", SocketConfig{ReadBuffer: -1}},
		{"ReadBuffer", SocketConfig{ReadBuffer: 1 << 30}},
		{"WriteBuffer", SocketConfig{WriteBuffer: -1}},
		{"WriteBuffer", SocketConfig{WriteBuffer: 1 << 30}},
		{"Addr", SocketConfig{Addr: netip.MustParseAddrPort("[fe80::1]:0")}},
	} {
		c, err := Listen(tc.cfg)
		if err == nil {
			_ = c.Close()
		}
		wantField(t, err, tc.field)
	}
	_, err := NewConn(nil)
	wantField(t, err, "PacketConn")
	_, err = FromFile(nil, SocketConfig{})
	wantField(t, err, "File")

	eachPath(t, func(t *testing.T, p path) {
		c := p.open(t, "127.0.0.1:0")
		for _, tc := range []struct {
			field string
			conns []*Conn
			cfg   GroupConfig
		}{
			{"conns", nil, GroupConfig{}},
			{"conns", []*Conn{c, nil}, GroupConfig{}},
			{"conns", []*Conn{c, c}, GroupConfig{}},
			{"Batch", []*Conn{c}, GroupConfig{Batch: -1}},
			{"Batch", []*Conn{c}, GroupConfig{Batch: 1025}},
			{"Interval", []*Conn{c}, GroupConfig{Interval: -1}},
			{"Interval", []*Conn{c}, GroupConfig{Interval: maxInterval + 1}},
		} {
			_, err := NewGroup(tc.conns, tc.cfg)
			wantField(t, err, tc.field)
		}
		// None of these kept the Conn.
		serve(t, newCollector(), GroupConfig{}, c)
	})
}

func wantField(t *testing.T, err error, field string) {
	t.Helper()
	var ce *config.Error
	if !errors.As(err, &ce) || ce.Field != field {
		t.Errorf("got %v, want a config.Error for %s", err, field)
	}
}

func TestFileHandsTheSocketOver(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		old := p.open(t, "127.0.0.1:0")
		f, err := old.File()
		if errors.Is(err, errors.ErrUnsupported) {
			if p.batched {
				t.Fatal(err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		h := newCollector()
		_, stop := serve(t, h, GroupConfig{}, old)
		u := client(t, "127.0.0.1:0")
		if got := send(t, u, old, h, 1); got != 1 {
			t.Fatal(got)
		}
		stop()
		// The duplicate keeps port and queue.
		if _, err := u.WriteToUDPAddrPort([]byte{2}, old.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		c, err := FromFile(f, SocketConfig{})
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if c.LocalAddr() != old.LocalAddr() {
			t.Errorf("address %s became %s", old.LocalAddr(), c.LocalAddr())
		}
		_, stop = serve(t, h, GroupConfig{}, c)
		if got := h.next(t); got.Data[0] != 2 {
			t.Fatal(got)
		}
		stop()
		again, err := p.listen(old.LocalAddr())
		if err != nil {
			t.Fatalf("the port is not free: %v", err)
		}
		_ = again.Close()
		if _, err := old.File(); !errors.Is(err, net.ErrClosed) && !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("File of a closed Conn: %v", err)
		}
	})
}
