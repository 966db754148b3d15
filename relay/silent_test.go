package relay

import (
	"net"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/forward"
)

// A Host that is not heard of gets nothing more, with a counter that says so;
// others go on, and it is served again as soon as it answers a hello.
func TestSilentUpstreamIsCountedAndComesBack(t *testing.T) {
	b := newBench(t, nil)
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	dead := conn.LocalAddr().(*net.UDPAddr).AddrPort()
	id := b.mintFor(dead, 1)
	c := b.client("127.0.1.1", 0)
	silent := func() uint64 { return b.srv.Stats().Drops[forward.UpstreamSilent.String()] }
	for deadline := time.Now().Add(4 * silentAfter); silent() == 0; {
		if time.Now().After(deadline) {
			t.Fatal("packets for a dead Host are not counted")
		}
		c.send(id.check())
		time.Sleep(20 * time.Millisecond)
	}
	b.alive()

	h := b.hostOn(conn, b.ring, nil)
	for deadline := time.Now().Add(4 * silentAfter); ; {
		if time.Now().After(deadline) {
			t.Fatal("a Host that answers again is not served")
		}
		before := silent()
		c.send(id.check())
		time.Sleep(20 * time.Millisecond)
		if silent() == before {
			break
		}
	}
	h.want(c.addr())
}
