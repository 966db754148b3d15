package udpbatch

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"
)

// ticker counts how often Idle runs and asks for it every millisecond.
type ticker struct {
	*collector
	idles atomic.Int64
	wait  time.Duration
}

func (h *ticker) Idle(time.Time) time.Duration {
	h.idles.Add(1)
	return h.wait
}

// A shared loop does what a locked one does: it reads in order, keeps the time
// that Idle asks for, wakes, and ends.
func TestSharedLoop(t *testing.T) {
	for _, wait := range []time.Duration{0, time.Millisecond} {
		c, err := Listen(SocketConfig{Addr: netip.MustParseAddrPort("127.0.0.1:0")})
		if err != nil {
			t.Fatal(err)
		}
		h := &ticker{collector: newCollector(), wait: wait}
		h.conns = []*Conn{c}
		g, stop := serve(t, h, GroupConfig{Shared: true, Batch: 8}, c)
		u := client(t, "127.0.0.1:0")
		const count = 500
		for i := range count {
			if _, err := u.WriteToUDPAddrPort(binary.BigEndian.AppendUint32(nil, uint32(i)), c.LocalAddr()); err != nil {
				t.Fatal(err)
			}
			if got := h.next(t); binary.BigEndian.Uint32(got.Data) != uint32(i) {
				t.Fatalf("got packet %x, want %d", got.Data, i)
			}
		}
		more := func(what string) {
			t.Helper()
			before := h.idles.Load()
			for deadline := time.Now().Add(patience); h.idles.Load() == before; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("Idle did not run after %s", what)
				}
				if wait == 0 {
					g.Wake()
				}
			}
		}
		if wait == 0 {
			more("Wake")
		} else {
			more("its time")
		}
		stop()
	}
}
