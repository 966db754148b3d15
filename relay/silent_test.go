package relay

import (
	"bytes"
	"errors"
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
	b.eventually(func() error {
		c.send(id.check())
		time.Sleep(10 * time.Millisecond)
		if silent() == 0 {
			return errors.New("packets for a dead Host are not counted")
		}
		return nil
	})
	b.alive()

	h := b.hostOn(conn, b.ring, nil)
	again := b.mintFor(dead, 2).check() // the others may have come before it was taken for silent
	b.eventually(func() error {
		c.send(again)
		select {
		case r := <-h.got:
			if bytes.Equal(r.Payload, again) {
				return nil
			}
		case <-time.After(10 * time.Millisecond):
		}
		return errors.New("a Host that answers again is not served")
	})
}
