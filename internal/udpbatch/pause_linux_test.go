package udpbatch

import (
	"net/netip"
	"runtime"
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

// What arrives within a pause is one batch: the first packet is not handled
// before the second is there. One round may fail, since the machine may stall
// the sender in between.
func TestPauseGathersBatches(t *testing.T) {
	c, err := Listen(SocketConfig{Addr: netip.MustParseAddrPort("127.0.0.1:0")})
	if err != nil {
		t.Fatal(err)
	}
	h := new(batchCounter)
	serve(t, h, GroupConfig{Pause: maxPause}, c)
	u := client(t, "127.0.0.1:0")
	send := func() {
		if _, err := u.WriteToUDPAddrPort([]byte("x"), c.LocalAddr()); err != nil {
			t.Fatal(err)
		}
	}
	const rounds = 10
	for round := range int64(rounds) {
		send()
		for half := time.Now().Add(maxPause / 2); time.Now().Before(half) && h.packets.Load() == 2*round; {
			runtime.Gosched()
		}
		send()
		for deadline := time.Now().Add(5 * time.Second); h.packets.Load() < 2*round+2; {
			if time.Now().After(deadline) {
				t.Fatalf("%d packets arrived", h.packets.Load())
			}
			runtime.Gosched()
		}
	}
	if n := h.batches.Load(); n > rounds+1 {
		t.Errorf("%d pairs of packets came in %d batches", rounds, n)
	}
}
