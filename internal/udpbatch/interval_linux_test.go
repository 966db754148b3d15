package udpbatch

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"
)

// batchCounter counts what HandleBatch was given.
type batchCounter struct{ batches, packets atomic.Int64 }

func (h *batchCounter) HandleBatch(_ int, pkts []Packet) {
	h.batches.Add(1)
	h.packets.Add(int64(len(pkts)))
}

func (h *batchCounter) Idle(time.Time) time.Duration { return 0 }

// A busy loop reads once an interval, a loop that is no longer busy waits for
// packets again, and both hear a wake.
func TestIntervalGathersBatches(t *testing.T) {
	for _, shared := range []bool{false, true} {
		c, err := Listen(SocketConfig{Addr: netip.MustParseAddrPort("127.0.0.1:0")})
		if err != nil {
			t.Fatal(err)
		}
		h := new(batchCounter)
		_, stop := serve(t, h, GroupConfig{Interval: maxInterval, Shared: shared}, c)
		u := client(t, "127.0.0.1:0")
		sent := int64(0)
		send := func() {
			if _, err := u.WriteToUDPAddrPort([]byte("x"), c.LocalAddr()); err != nil {
				t.Fatal(err)
			}
			sent++
		}
		arrived := func() {
			for deadline := time.Now().Add(patience); h.packets.Load() < sent; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%d of %d packets arrived, shared %v", h.packets.Load(), sent, shared)
				}
			}
		}
		start := time.Now()
		for time.Since(start) < 10*maxInterval {
			send()
			time.Sleep(100 * time.Microsecond)
		}
		arrived()
		// One batch an interval, the first two, and one that straddles the end.
		most := int64(time.Since(start)/maxInterval) + 3
		if n := h.batches.Load(); n > most {
			t.Errorf("%d packets came in %d batches, want %d at most, shared %v", sent, n, most, shared)
		}
		for range 3 { // alone, each of them
			time.Sleep(2 * maxInterval)
			send()
			arrived()
		}
		stop()
	}
}
