package delay

import (
	"bytes"
	"net"
	"net/netip"
	"testing"
	"time"
)

func socket(t *testing.T) (*net.UDPConn, netip.AddrPort) {
	t.Helper()
	c, err := listen()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c, addrOf(c)
}

// Datagrams take at least the stated time each way, keep their order, and come
// back to the client that they are for.
func TestLinkDelaysBothWays(t *testing.T) {
	const oneWay, n = 30 * time.Millisecond, 20
	server, at := socket(t)
	l, err := New(at, oneWay)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for buf := make([]byte, 100); ; {
			k, from, err := server.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = server.WriteToUDPAddrPort(buf[:k], from)
		}
	}()
	one, _ := socket(t)
	two, _ := socket(t)
	begin := time.Now()
	for i := range byte(n) {
		for j, c := range []*net.UDPConn{one, two} {
			if _, err := c.WriteToUDPAddrPort([]byte{byte(j), i}, l.Addr()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for j, c := range []*net.UDPConn{one, two} {
		buf := make([]byte, 100)
		for i := range byte(n) {
			k, _, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				t.Fatal(err)
			}
			if want := []byte{byte(j), i}; !bytes.Equal(buf[:k], want) {
				t.Fatalf("client %d got % x, want % x", j, buf[:k], want)
			}
			if took := time.Since(begin); took < 2*oneWay {
				t.Fatalf("back after %v, want at least %v", took, 2*oneWay)
			}
		}
	}
	if l.Dropped() != 0 {
		t.Errorf("%d dropped", l.Dropped())
	}
}

func TestCloseWithTrafficOnItsWay(t *testing.T) {
	_, at := socket(t)
	l, err := New(at, time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	c, _ := socket(t)
	for range 10 {
		if _, err := c.WriteToUDPAddrPort([]byte{1}, l.Addr()); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(l.Addr())); err != nil {
		t.Errorf("the port is still taken: %v", err)
	}
}
