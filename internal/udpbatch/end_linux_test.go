package udpbatch

import (
	"net/netip"
	"testing"
	"time"
)

// A handler that ends its Group leaves what is in the queue to whoever has the
// socket next.
func TestEndFromAHandlerReadsNothingMore(t *testing.T) {
	c, err := Listen(SocketConfig{Addr: netip.MustParseAddrPort("127.0.0.1:0")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { c.Close() }() // the last one
	u := client(t, "127.0.0.1:0")
	for _, cfg := range []GroupConfig{{}, {Shared: true}, {Interval: time.Millisecond}} {
		g, err := NewGroup([]*Conn{c}, cfg)
		if err != nil {
			t.Fatal(err)
		}
		h := newCollector()
		h.idle = func(time.Time) time.Duration {
			if _, err := u.WriteToUDPAddrPort([]byte{7}, c.LocalAddr()); err != nil {
				t.Error(err)
			}
			g.End()
			return 0
		}
		if err := g.Serve(h); err != nil {
			t.Error(err)
		}
		g.Stop()
		if n := len(h.got); n != 0 {
			t.Errorf("%+v: %d packets were read after End", cfg, n)
		}
		next := newCollector()
		_, stop := serve(t, next, GroupConfig{}, c)
		next.next(t)
		stop()
		if c, err = Listen(SocketConfig{Addr: netip.MustParseAddrPort("127.0.0.1:0")}); err != nil { // stop has closed it
			t.Fatal(err)
		}
	}
}
