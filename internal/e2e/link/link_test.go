package link

import (
	"net"
	"net/netip"
	"testing"
	"time"
)

// relay is a socket that stands for one: it answers every packet with "echo".
type relay struct {
	conn *net.UDPConn
	from chan netip.AddrPort
}

func newRelay(t *testing.T) *relay {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{conn, make(chan netip.AddrPort, 16)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for buf := make([]byte, 2048); ; {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			r.from <- from
			_, _ = conn.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
	t.Cleanup(func() {
		_ = conn.Close()
		<-done
	})
	return r
}

func newLink(t *testing.T, r *relay, delay time.Duration) *Link {
	t.Helper()
	l, err := New(Config{
		Listen: netip.MustParseAddrPort("127.0.0.1:0"), Relay: r.conn.LocalAddr().(*net.UDPAddr).AddrPort(),
		Source: netip.MustParseAddr("127.0.0.1"), Delay: delay,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func newClient(t *testing.T, l *Link) (*net.UDPConn, netip.AddrPort) {
	t.Helper()
	conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(l.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn, conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

// ping sends b and reports how long the echo took, or that none came.
func ping(t *testing.T, c *net.UDPConn, b []byte, limit time.Duration) (time.Duration, bool) {
	t.Helper()
	begin := time.Now()
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(begin.Add(limit))
	buf := make([]byte, 2048)
	n, err := c.Read(buf)
	if err == nil && string(buf[:n]) != string(b) {
		t.Fatalf("got %x, want %x", buf[:n], b)
	}
	return time.Since(begin), err == nil
}

func TestDelay(t *testing.T) {
	const delay = 40 * time.Millisecond
	r := newRelay(t)
	l := newLink(t, r, delay)
	c, addr := newClient(t, l)
	took, ok := ping(t, c, []byte("hello"), 2*time.Second)
	if !ok || took < 2*delay {
		t.Errorf("echo: %v after %v, want one after %v or more", ok, took, 2*delay)
	}
	outer, ok := l.Outer(addr)
	if !ok || outer != <-r.from {
		t.Errorf("Outer: %v, %v", outer, ok)
	}
	if client, ok := l.Client(outer); !ok || client != addr {
		t.Errorf("Client: %v, %v; want %v", client, ok, addr)
	}
}

func TestRebind(t *testing.T) {
	r := newRelay(t)
	l := newLink(t, r, 0)
	c, addr := newClient(t, l)
	if _, ok := ping(t, c, []byte("before"), 2*time.Second); !ok {
		t.Fatal("no echo before")
	}
	before := <-r.from
	if _, err := l.Rebind(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.conn.WriteToUDPAddrPort([]byte("late"), before); err != nil {
		t.Fatal(err)
	}
	if _, ok := ping(t, c, []byte("after"), 2*time.Second); !ok {
		t.Fatal("no echo after")
	}
	after := <-r.from
	if now, _ := l.Outer(addr); before == after || now != after {
		t.Errorf("from %v, then %v; Outer says %v", before, after, now)
	}
	deadline := time.Now().Add(2 * time.Second)
	for l.Late() == 0 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	if l.Late() != 1 {
		t.Errorf("%d packets for the old port, want 1", l.Late())
	}
}

func TestDrop(t *testing.T) {
	for name, d := range map[string]Direction{"up": Up, "down": Down} {
		t.Run(name, func(t *testing.T) {
			r := newRelay(t)
			l := newLink(t, r, 0)
			c, _ := newClient(t, l)
			l.Drop(d, true)
			if _, ok := ping(t, c, []byte("lost"), 50*time.Millisecond); ok {
				t.Error("an echo came through")
			}
			l.Drop(d, false)
			if _, ok := ping(t, c, []byte("found"), 2*time.Second); !ok {
				t.Error("no echo came through")
			}
		})
	}
}

// TestStrangersAreKeptOut checks that only the relay reaches a client.
func TestStrangersAreKeptOut(t *testing.T) {
	r := newRelay(t)
	l := newLink(t, r, 0)
	c, _ := newClient(t, l)
	if _, ok := ping(t, c, []byte("hello"), 2*time.Second); !ok {
		t.Fatal("no echo")
	}
	stranger := newRelay(t)
	if _, err := stranger.conn.WriteToUDPAddrPort([]byte("stranger"), <-r.from); err != nil {
		t.Fatal(err)
	}
	if _, ok := ping(t, c, []byte("hello again"), 2*time.Second); !ok { // ping checks what comes
		t.Fatal("no echo")
	}
}

func TestTrace(t *testing.T) {
	request := []byte("\x00\x01\x00\x00\x21\x12\xa4\x42aaaaaaaaaaaa")
	success := []byte("\x01\x01\x00\x00\x21\x12\xa4\x42aaaaaaaaaaaa")
	failure := []byte("\x01\x11\x00\x00\x21\x12\xa4\x42aaaaaaaaaaaa")
	for _, tt := range []struct {
		data []byte
		want Kind
	}{
		{request, Request}, {success, STUN}, {failure, STUN},
		{[]byte{22, 254, 253, 0}, Handshake}, {[]byte{23, 254, 253, 0}, DTLS}, {[]byte{21, 254, 253, 0}, DTLS},
		{[]byte{0x80, 111, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1}, RTP}, {[]byte{0x80, 200, 0, 1, 0, 0, 0, 0}, RTCP},
		{[]byte{100}, Other}, {nil, Other},
	} {
		if got := kindOf(tt.data); got != tt.want {
			t.Errorf("%x is %d, want %d", tt.data, got, tt.want)
		}
	}
	l := newLink(t, newRelay(t), 0)
	first, addr := newClient(t, l)
	second, _ := newClient(t, l)
	ping(t, first, request, 2*time.Second)
	middle := time.Now()
	ping(t, first, []byte("other"), 2*time.Second)
	ping(t, second, request, 2*time.Second)
	if got := l.Find(addr, Up, time.Time{}, Request, Other); len(got) != 2 || string(got[0].Data) != string(request) || got[1].Data != nil {
		t.Errorf("of one client: %+v", got)
	}
	if got := l.Find(netip.AddrPort{}, Up, time.Time{}, Request); len(got) != 2 {
		t.Errorf("of all clients: %+v", got)
	}
	ping(t, second, []byte{0x80, 111, 3, 4, 0, 0, 0, 0, 0, 0, 1, 2}, 2*time.Second)
	if got := l.Find(netip.AddrPort{}, Down, middle, RTP); len(got) != 1 || got[0].SSRC != 0x102 || got[0].Seq != 0x304 {
		t.Errorf("audio: %+v", got)
	}
	if got := l.Find(addr, Down, middle, Request, Other); len(got) != 1 || got[0].Kind != Other || got[0].Size != 5 {
		t.Errorf("since a time: %+v", got)
	}
}

// TestOrder checks that packets of several clients, many on their way at a time,
// stay in order and come back to whose they are.
func TestOrder(t *testing.T) {
	const delay, each = 20 * time.Millisecond, 8
	r := newRelay(t)
	l := newLink(t, r, delay)
	var clients [2]*net.UDPConn
	for i := range clients {
		clients[i], _ = newClient(t, l)
	}
	begin := time.Now()
	for n := range byte(each) {
		for i, c := range clients {
			if _, err := c.Write([]byte{byte(i), n}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, c := range clients {
		_ = c.SetReadDeadline(begin.Add(10 * time.Second))
		buf := make([]byte, 2048)
		for n := range byte(each) {
			size, err := c.Read(buf)
			if err != nil || string(buf[:size]) != string([]byte{byte(i), n}) {
				t.Fatalf("client %d got % x (%v), want % x", i, buf[:size], err, []byte{byte(i), n})
			}
			if took := time.Since(begin); took < 2*delay {
				t.Fatalf("back after %v, want %v at least", took, 2*delay)
			}
		}
	}
}

func TestCloseWithTrafficOnItsWay(t *testing.T) {
	l := newLink(t, newRelay(t), time.Hour)
	c, _ := newClient(t, l)
	for range 10 {
		if _, err := c.Write([]byte("late")); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(l.Addr()))
	if err != nil {
		t.Fatalf("the port is still taken: %v", err)
	}
	_ = conn.Close()
}
