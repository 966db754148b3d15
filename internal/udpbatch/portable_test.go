package udpbatch

import (
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/usher-rtc/usher/internal/simnet"
)

func TestLastingReadErrorDoesNotSpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failingConn{done: make(chan struct{})}
		c, err := NewConn(f)
		if err != nil {
			t.Fatal(err)
		}
		_, stop := serve(t, newCollector(), GroupConfig{}, c)
		time.Sleep(time.Second) // of the simulated clock
		stop()
		reads := f.reads.Load()
		if reads < 500 || reads > 1100 {
			t.Errorf("%d reads in a second, want about one a millisecond", reads)
		}
		if got := c.Stats().ReadErrors.Other; got < 500 {
			t.Errorf("%d errors counted of %d", got, reads)
		}
	})
}

func TestStopClosesAConnWithoutDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failingConn{noDeadlines: true, done: make(chan struct{})}
		c, err := NewConn(f)
		if err != nil {
			t.Fatal(err)
		}
		_, stop := serve(t, newCollector(), GroupConfig{}, c)
		synctest.Wait()
		stop()
		if !f.closed.Load() {
			t.Error("it is open")
		}
	})
}

func TestSimulatedNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := simnet.New(1, simnet.Link{Delay: 10 * time.Millisecond})
		server, err := n.Listen(netip.MustParseAddrPort("10.0.0.1:3478"), 0)
		if err != nil {
			t.Fatal(err)
		}
		u, err := n.Listen(netip.MustParseAddrPort("10.0.0.2:0"), 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = u.Close() }()
		c, err := NewConn(server)
		if err != nil {
			t.Fatal(err)
		}
		h := newCollector()
		h.conns = []*Conn{c}
		serve(t, h, GroupConfig{}, c)
		start := time.Now()
		if _, err := u.WriteTo([]byte("ping"), net.UDPAddrFromAddrPort(c.LocalAddr())); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 10)
		size, _, err := u.ReadFrom(b)
		if err != nil || string(b[:size]) != "ping" {
			t.Fatalf("%q, %v", b[:size], err)
		}
		if took := time.Since(start); took != 20*time.Millisecond {
			t.Errorf("there and back took %v", took)
		}
	})
}

func TestIdleTimerOfThePortablePathIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := simnet.New(1, simnet.Link{})
		pc, err := n.Listen(netip.MustParseAddrPort("10.0.0.1:1"), 0)
		if err != nil {
			t.Fatal(err)
		}
		c, err := NewConn(pc)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		var at []time.Duration
		h := newCollector()
		h.idle = func(now time.Time) time.Duration {
			at = append(at, now.Sub(start))
			return []time.Duration{500 * time.Microsecond, 3 * time.Second, 0}[min(len(at)-1, 2)]
		}
		_, stop := serve(t, h, GroupConfig{}, c)
		time.Sleep(time.Hour)
		stop()
		if len(at) != 3 || at[0] != 0 || at[1] != 500*time.Microsecond || at[2] != 3*time.Second+500*time.Microsecond {
			t.Errorf("Idle at %v", at)
		}
	})
}

// oddConn fails a number of writes, or reports an odd sender once.
type oddConn struct {
	onlyPacketConn
	from  net.Addr
	fails int
	err   error
}

func (o *oddConn) WriteTo(b []byte, to net.Addr) (int, error) {
	if o.fails > 0 {
		o.fails--
		return 0, o.err
	}
	return o.onlyPacketConn.WriteTo(b, to)
}

func (o *oddConn) ReadFrom(b []byte) (int, net.Addr, error) {
	n, from, err := o.onlyPacketConn.ReadFrom(b)
	if err == nil && o.from != nil {
		from, o.from = o.from, nil
	}
	return n, from, err
}

func TestSenderWithoutIPAddressIsCounted(t *testing.T) {
	u := client(t, "127.0.0.1:0")
	pc := client(t, "127.0.0.1:0")
	c, err := NewConn(&oddConn{onlyPacketConn: onlyPacketConn{pc}, from: &net.UnixAddr{Name: "peer"}})
	if err != nil {
		t.Fatal(err)
	}
	h := newCollector()
	serve(t, h, GroupConfig{}, c)
	for i := range 2 {
		if _, err := u.WriteToUDPAddrPort([]byte{byte(i)}, c.LocalAddr()); err != nil {
			t.Fatal(err)
		}
	}
	if got := h.next(t); got.Data[0] != 1 {
		t.Errorf("got packet %d", got.Data[0])
	}
	if got := c.Stats().BadSource; got != 1 {
		t.Errorf("counted %d", got)
	}
}

func TestAddrPortForms(t *testing.T) {
	for _, tc := range []struct {
		addr net.Addr
		want string
		ok   bool
	}{
		{&net.UDPAddr{IP: net.ParseIP("192.0.2.1"), Port: 7}, "192.0.2.1:7", true}, // ParseIP makes the 16-byte form
		{&net.UDPAddr{IP: net.IPv4(192, 0, 2, 1).To4(), Port: 7}, "192.0.2.1:7", true},
		{&net.UDPAddr{IP: net.ParseIP("fe80::1"), Zone: "eth0", Port: 7}, "[fe80::1%eth0]:7", true},
		{&net.TCPAddr{IP: net.ParseIP("192.0.2.1"), Port: 7}, "192.0.2.1:7", true},
		{textAddr("[2001:db8::1]:9"), "[2001:db8::1]:9", true},
		{textAddr("nonsense"), "", false},
		{nil, "", false},
	} {
		got, ok := addrPort(tc.addr)
		if ok != tc.ok || ok && got.String() != tc.want {
			t.Errorf("%v: %s, %v", tc.addr, got, ok)
		}
	}
}

type textAddr string

func (a textAddr) Network() string { return "udp" }
func (a textAddr) String() string  { return string(a) }
