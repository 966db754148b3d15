package icelite

import (
	"bytes"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/stun"
)

func TestARetransmissionGetsTheSameAnswerAndMovesNothing(t *testing.T) {
	h := newHarness(t)
	c := h.makeCheck(checkOpts{use: true})
	first := clone(h.stunFrom(pathA, relay1, c))
	for range 5 {
		h.sleep(100 * time.Millisecond)
		again := h.stunFrom(pathA, relay1, c)
		if len(again) != 1 || !bytes.Equal(again[0].Data, first[0].Data) {
			t.Fatal("another answer")
		}
		if h.out.Events != 0 {
			t.Fatalf("events %b", h.out.Events)
		}
	}
	if s := h.a.Stats(); s.Checks != 1 || s.Duplicates != 5 {
		t.Errorf("%+v", s)
	}
}

// Checks captured on the way and sent again from elsewhere.
func TestReplayedChecksMakeNoPath(t *testing.T) {
	h := newHarness(t)
	h.prove(pathA, checkOpts{}, 20*time.Millisecond)
	var captured []packet
	for range 10 {
		c := h.makeCheck(checkOpts{use: true})
		h.stunFrom(pathA, relay1, c)
		captured = append(captured, c)
		h.keepAlive(time.Second, pathA, creds(1))
	}
	h.sleep(10 * time.Second) // the client is silent: the best moment for a thief
	for range 20 {
		for _, c := range captured {
			ps := h.stunFrom(pathX, relay1, c)
			if total(ps) > len(c.raw) {
				t.Fatalf("%d bytes for a replay of %d", total(ps), len(c.raw))
			}
			if h.has(pathX) || h.out.Events != 0 {
				t.Fatal("a replay has made a path")
			}
		}
		sent, _ := h.wait(50 * time.Millisecond)
		for _, o := range sent {
			if o.Path == pathX {
				t.Fatal("a check to the replayer's address")
			}
		}
	}
	h.wantCurrent(pathA)
}

// The copy may overtake the original. The client must still get its path.
func TestACopyThatArrivesFirstDoesNotLockTheClientOut(t *testing.T) {
	h := newHarness(t)
	c := h.makeCheck(checkOpts{})
	h.stunFrom(pathX, relay1, c)
	h.wantCurrent(pathX)
	own := h.ownCheckIn(h.stunFrom(pathA, relay1, c), pathA)
	// Once, not for every repetition.
	if ps := h.stunFrom(pathA, relay1, c); len(ps) != 1 {
		t.Errorf("%d packets for a repetition", len(ps))
	}
	h.sleep(50 * time.Millisecond)
	h.answer(own, creds(1))
	h.wait(200 * time.Millisecond)
	h.wantCurrent(pathA)
	h.wantState(StateConnected, ReasonNone)
}

// 40 freshly signed checks from an address that does not answer, half of them
// with USE-CANDIDATE, and junk SRTP: no byte of media goes there.
func TestFreshlySignedChecksFromAnAddressThatDoesNotAnswer(t *testing.T) {
	for name, silence := range map[string]time.Duration{"client talks": 0, "client is silent": 12 * time.Second} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.prove(pathA, checkOpts{}, 50*time.Millisecond)
			h.keepAlive(time.Second, pathA, creds(1))
			h.sleep(silence)
			in, out := 0, 0
			for i := range 40 {
				c := h.makeCheck(checkOpts{use: i%2 == 0})
				in += len(c.raw)
				out += total(h.stunFrom(pathX, relay1, c))
				h.data(pathX, relay1, stun.ClassRTP, i%3 == 0, 100)
				in += 100
				for _, o := range h.out.Packets {
					if o.Path == pathX {
						out += len(o.Data)
					}
				}
				sent, _ := h.wait(20 * time.Millisecond)
				for _, o := range sent {
					if o.Path == pathX {
						out += len(o.Data)
					}
				}
				if p, _, _, ok := h.a.Allow(h.now, 1200); !ok || p != pathA {
					t.Fatalf("media to %v (%v)", p, ok)
				}
				if silence == 0 {
					h.rtp(pathA)
				}
			}
			if out > 3*in {
				t.Errorf("%d bytes out for %d in", out, in)
			}
		})
	}
}

func TestReplayMemoryForgetsTheOldest(t *testing.T) {
	var r replay
	id := func(n int) *stun.TransactionID { return &stun.TransactionID{byte(n), byte(n >> 8), 1} }
	for n := range 100 {
		if _, ok := r.find(id(n)); ok {
			t.Fatalf("%d is known", n)
		}
		r.add(id(n), uint32(n+1))
		for m := max(0, n-replaySize+1); m <= n; m++ {
			if s, ok := r.find(id(m)); !ok || s != uint32(m+1) {
				t.Fatalf("%d is not known after %d", m, n)
			}
		}
		if n >= replaySize {
			if _, ok := r.find(id(n - replaySize)); ok {
				t.Fatal("memory without bounds")
			}
		}
	}
}
