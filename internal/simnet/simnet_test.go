package simnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func addr(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// open opens a socket for one test.
func open(t *testing.T, l interface {
	Listen(netip.AddrPort, int) (*Conn, error)
}, at string, queue int) *Conn {
	t.Helper()
	c, err := l.Listen(addr(at), queue)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func send(t *testing.T, c *Conn, to netip.AddrPort, text string) {
	t.Helper()
	if _, err := c.WriteTo([]byte(text), net.UDPAddrFromAddrPort(to)); err != nil {
		t.Fatal(err)
	}
}

// drain reads all that is in the queue, "from: text" each.
func drain(t *testing.T, c *Conn) (got []string) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(time.Nanosecond)); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.SetReadDeadline(time.Time{}) }()
	buf := make([]byte, 2000)
	for {
		n, from, err := c.ReadFrom(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return got
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, from.String()+": "+string(buf[:n]))
	}
}

func TestDelayIsExactAndKeepsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(1, Link{Delay: 30 * time.Millisecond})
		a, b := open(t, n, "10.0.0.1:1", 0), open(t, n, "10.0.0.2:2", 0)
		n.SetLink(b.AddrPort().Addr(), a.AddrPort().Addr(), Link{Delay: 5 * time.Millisecond})
		for i := range 50 {
			send(t, a, b.AddrPort(), fmt.Sprint(i))
		}
		time.Sleep(30*time.Millisecond - 2)
		if got := drain(t, b); len(got) > 0 { // takes a nanosecond
			t.Errorf("early: %v", got)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		got := drain(t, b)
		if len(got) != 50 {
			t.Fatalf("%d arrived", len(got))
		}
		for i := range got {
			if want := fmt.Sprintf("10.0.0.1:1: %d", i); got[i] != want {
				t.Fatalf("%d is %q", i, got[i])
			}
		}
		start := time.Now()
		send(t, b, a.AddrPort(), "back")
		if _, _, err := a.ReadFrom(make([]byte, 9)); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != 5*time.Millisecond {
			t.Errorf("the way back took %v", took)
		}
	})
}

// run sends 500 datagrams 1 ms apart over a bad link and returns what arrived, in order.
func run(t *testing.T, seed uint64, other bool) (got []string, s Stats) {
	synctest.Test(t, func(t *testing.T) {
		n := New(seed, Link{Delay: 10 * time.Millisecond, Jitter: 5 * time.Millisecond, Loss: 0.2, Duplicate: 0.1})
		a, b := open(t, n, "10.0.0.1:1", 0), open(t, n, "10.0.0.2:2", 1000)
		c := open(t, n, "10.0.0.3:3", 1)
		for i := range 500 {
			send(t, a, b.AddrPort(), fmt.Sprint(i))
			if other {
				send(t, c, b.AddrPort(), "other")
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		for _, d := range drain(t, b) {
			if d != "10.0.0.3:3: other" {
				got = append(got, d)
			}
		}
		s = n.Stats()
	})
	return got, s
}

func TestChanceComesFromTheSeed(t *testing.T) {
	first, s := run(t, 7, false)
	if s.Lost < 50 || s.Lost > 150 || s.Delivered < 400 || s.Delivered > 480 || s.Sent != 500 {
		t.Errorf("%+v", s)
	}
	if second, _ := run(t, 7, false); !reflect.DeepEqual(first, second) {
		t.Error("two runs with one seed differ")
	}
	if third, _ := run(t, 8, false); reflect.DeepEqual(first, third) {
		t.Error("two seeds give the same")
	}
	if fourth, _ := run(t, 7, true); !reflect.DeepEqual(first, fourth) {
		t.Error("another flow changed what happens to this one")
	}
	ordered, seen, twice := true, map[string]bool{}, 0
	last := -1
	for _, d := range first {
		var i int
		if _, err := fmt.Sscanf(d, "10.0.0.1:1: %d", &i); err != nil {
			t.Fatal(err)
		}
		ordered = ordered && i >= last
		last = i
		if seen[d] {
			twice++
		}
		seen[d] = true
	}
	if ordered {
		t.Error("jitter did not reorder")
	}
	if twice < 20 || twice > 80 {
		t.Errorf("%d duplicates", twice)
	}
}

func TestWhatIsNotDeliveredIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(1, Link{MTU: 100})
		a, b := open(t, n, "10.0.0.1:1", 0), open(t, n, "[2001:db8::2]:2", 3)
		for range 5 {
			send(t, a, b.AddrPort(), "x")
		}
		send(t, a, addr("10.0.0.9:9"), "nobody")
		send(t, a, b.AddrPort(), string(make([]byte, 101)))
		want := Stats{Sent: 7, Delivered: 3, Overflowed: 2, Unreachable: 1, Lost: 1}
		if got := n.Stats(); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		if got := drain(t, b); len(got) != 3 {
			t.Errorf("%v", got)
		}
	})
}

func TestNATRebindsAndFilters(t *testing.T) {
	for _, symmetric := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			n := New(1, Link{})
			nat, err := n.NAT(NATConfig{Public: netip.MustParseAddr("198.51.100.1"), Symmetric: symmetric})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := n.NAT(NATConfig{Public: netip.MustParseAddr("198.51.100.1")}); err == nil {
				t.Error("two NATs with one address")
			}
			inside := open(t, nat, "192.168.0.2:5000", 0)
			neighbour := open(t, nat, "192.168.0.3:5000", 0)
			x, y := open(t, n, "10.0.0.1:1", 0), open(t, n, "10.0.0.2:2", 0)

			// A stranger gets nowhere, the one that was written to answers.
			mapped := func(c *Conn) netip.AddrPort {
				t.Helper()
				send(t, inside, c.AddrPort(), "hello")
				buf := make([]byte, 9)
				_, from, err := c.ReadFrom(buf)
				if err != nil {
					t.Fatal(err)
				}
				return addr(from.String())
			}
			atX := mapped(x)
			send(t, y, atX, "stranger")
			send(t, x, atX, "answer")
			if got := drain(t, inside); len(got) != 1 || got[0] != "10.0.0.1:1: answer" {
				t.Errorf("inside got %v", got)
			}
			if atY := mapped(y); (atY == atX) == symmetric {
				t.Errorf("symmetric is %v, mapped to %s and %s", symmetric, atX, atY)
			}
			if again := mapped(x); again != atX {
				t.Errorf("the mapping changed from %s to %s", atX, again)
			}

			nat.Rebind()
			after := mapped(x)
			if after == atX || after.Addr() != atX.Addr() {
				t.Errorf("%s became %s", atX, after)
			}
			send(t, x, atX, "to the old port")
			send(t, x, after, "to the new port")
			if got := drain(t, inside); len(got) != 1 || got[0] != "10.0.0.1:1: to the new port" {
				t.Errorf("inside got %v", got)
			}

			if err := nat.Move(netip.MustParseAddr("203.0.113.7")); err != nil {
				t.Fatal(err)
			}
			if moved := mapped(x); moved.Addr() != netip.MustParseAddr("203.0.113.7") {
				t.Errorf("moved to %s", moved)
			}
			send(t, inside, neighbour.AddrPort(), "next door")
			if got := drain(t, neighbour); len(got) != 1 || got[0] != "192.168.0.2:5000: next door" {
				t.Errorf("the neighbour got %v", got)
			}
		})
	}
}

func TestPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(1, Link{})
		a := open(t, n, "10.0.0.1:0", 0)
		if a.AddrPort().Port() == 0 {
			t.Error("no port")
		}
		if _, err := n.Listen(a.AddrPort(), 0); err == nil {
			t.Error("two sockets on one port")
		}
		if _, err := n.Listen(addr("0.0.0.0:1"), 0); err == nil {
			t.Error("a socket on no host")
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		b := open(t, n, a.AddrPort().String(), 0)
		// Closing the old one again must not take the address from the new one.
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		c := open(t, n, "10.0.0.2:0", 0)
		send(t, c, b.AddrPort(), "x")
		if got := drain(t, b); len(got) != 1 {
			t.Errorf("%v", got)
		}
	})
}

func TestCloseAndDeadlineEndReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(1, Link{})
		c := open(t, n, "10.0.0.1:1", 0)
		read := func() <-chan error {
			errs := make(chan error, 1)
			go func() {
				_, _, err := c.ReadFrom(make([]byte, 1))
				errs <- err
			}()
			synctest.Wait()
			return errs
		}
		for _, wait := range []time.Duration{-time.Second, 0, time.Second} {
			if err := c.SetReadDeadline(time.Now().Add(time.Hour)); err != nil {
				t.Fatal(err)
			}
			errs := read()
			start := time.Now()
			if err := c.SetReadDeadline(start.Add(wait)); err != nil {
				t.Fatal(err)
			}
			if err := <-errs; !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%v", err)
			}
			if took := time.Since(start); took != max(wait, 0) {
				t.Errorf("ended after %v, want %v", took, wait)
			}
			if err := c.SetReadDeadline(time.Time{}); err != nil {
				t.Fatal(err)
			}
		}
		errs := read()
		time.Sleep(24 * time.Hour)
		select {
		case err := <-errs:
			t.Errorf("a read without deadline ended: %v", err)
		default:
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-errs; !errors.Is(err, net.ErrClosed) {
			t.Errorf("%v", err)
		}
		if _, err := c.WriteTo(nil, c.LocalAddr()); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%v", err)
		}
	})
}
