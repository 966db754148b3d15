package icelite

import (
	"net/netip"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/stun"
)

// C34 and the facts about relay changes.
func TestRelayOfAPath(t *testing.T) {
	rtpVia := func(h *harness, via netip.AddrPort) { h.data(pathA, via, stun.ClassRTP, true, 150) }
	want := func(t *testing.T, h *harness, via netip.AddrPort) {
		t.Helper()
		if got := h.info(pathA).Via; got != via {
			t.Fatalf("via %v, want %v", got, via)
		}
		if _, got, _, _ := h.a.Allow(h.now, 1); got != via {
			t.Fatalf("Allow says via %v, want %v", got, via)
		}
	}
	moved := func() *harness { // from relay 1 to relay 2, by a packet of audio
		h := newHarness(t)
		h.prove(pathA, checkOpts{}, 20*time.Millisecond)
		rtpVia(h, relay1)
		h.sleep(20 * time.Millisecond)
		rtpVia(h, relay2)
		return h
	}
	t.Run("a relay never seen gets the path at once", func(t *testing.T) {
		h := moved()
		want(t, h, relay2)
		if !h.out.Events.Has(EventRelayChanged) {
			t.Error("no event")
		}
		h.wantCurrent(pathA)
	})
	t.Run("packets in flight do not flip it back", func(t *testing.T) {
		h := moved()
		asked := h.a.Stats().OwnChecks
		for range 50 {
			rtpVia(h, relay1)
			want(t, h, relay2)
			rtpVia(h, relay2)
			h.sleep(20 * time.Millisecond)
		}
		want(t, h, relay2)
		if h.a.Stats().OwnChecks != asked {
			t.Error("checks though the new relay brings packets")
		}
	})
	t.Run("a check in flight does not flip it back", func(t *testing.T) {
		h := moved()
		h.sleep(40 * time.Millisecond)
		ps := h.stunFrom(pathA, relay1, h.makeCheck(checkOpts{}))
		want(t, h, relay2)
		if ps[0].Via != relay1 {
			t.Error("the answer does not leave through the relay the check came through")
		}
	})
	t.Run("an answer to a check sent before the move does not", func(t *testing.T) {
		h := newHarness(t)
		h.prove(pathA, checkOpts{}, 20*time.Millisecond)
		var own Outgoing
		for sent, _ := h.wait(time.Second); ; sent, _ = h.wait(time.Second) {
			if o, ok := findOwnCheck(h, sent, pathA); ok {
				own = o
				break
			}
		}
		rtpVia(h, relay2)
		h.stunFrom(pathA, relay1, h.makeAnswer(own, creds(1), 0))
		want(t, h, relay2)
	})
	t.Run("a later check of the client's moves it back", func(t *testing.T) {
		h := moved()
		h.sleep(1500 * time.Millisecond)
		h.stunFrom(pathA, relay1, h.makeCheck(checkOpts{}))
		want(t, h, relay1)
	})
	t.Run("a replayed check does not", func(t *testing.T) {
		h := moved()
		c := h.makeCheck(checkOpts{})
		h.stunFrom(pathA, relay2, c)
		h.sleep(1500 * time.Millisecond)
		h.stunFrom(pathA, relay1, c)
		want(t, h, relay2)
	})
	t.Run("back to the first relay without waiting for the client's check", func(t *testing.T) {
		h := moved()
		h.sleep(150 * time.Millisecond) // relay 2 is gone, relay 1 brings audio
		rtpVia(h, relay1)
		own := h.ownCheckIn(h.out.Packets, pathA)
		if own.Via != relay1 {
			t.Fatalf("own check via %v", own.Via)
		}
		want(t, h, relay2)
		h.sleep(20 * time.Millisecond)
		h.stunFrom(pathA, relay1, h.makeAnswer(own, creds(1), 0))
		want(t, h, relay1)
	})
	t.Run("that check answered through the newer relay changes nothing", func(t *testing.T) {
		h := moved()
		h.sleep(150 * time.Millisecond)
		rtpVia(h, relay1)
		own := h.ownCheckIn(h.out.Packets, pathA)
		h.stunFrom(pathA, relay2, h.makeAnswer(own, creds(1), 0))
		want(t, h, relay2)
	})
	t.Run("a third relay is new again", func(t *testing.T) {
		h := moved()
		rtpVia(h, relay3)
		want(t, h, relay3)
		rtpVia(h, relay2)
		want(t, h, relay3)
		rtpVia(h, relay1)
		want(t, h, relay3)
	})
	t.Run("packets that are not believed move nothing", func(t *testing.T) {
		h := newHarness(t)
		h.prove(pathA, checkOpts{}, 20*time.Millisecond)
		h.stunFrom(pathA, relay2, h.makeCheck(checkOpts{password: "wrong"}))
		h.data(pathA, relay2, stun.ClassOther, true, 100)
		want(t, h, relay1)
	})
}

func port(n int) Path {
	return Path{Client: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.7"), uint16(n)), Ingress: 1}
}

func TestPathsAreBoundedAndTheBestAreKept(t *testing.T) {
	h := newHarness(t)
	h.prove(pathA, checkOpts{}, time.Millisecond)
	h.prove(pathC, checkOpts{}, time.Millisecond)
	for i := range 500 {
		h.sleep(time.Millisecond)
		h.check(port(10000+i), checkOpts{use: i%2 == 0})
		if n := len(h.a.Paths()); n > MaxPaths {
			t.Fatalf("%d paths", n)
		}
		if i%100 == 0 {
			h.data(port(20000+i), relay1, stun.ClassRTP, true, 200)
		}
	}
	if !h.has(pathA) || !h.has(pathC) {
		t.Error("a proven path made room for an unproven one")
	}
	if !h.has(port(10499)) || h.has(port(10400)) {
		t.Error("not the oldest of the unproven ones went")
	}
	h.wantCurrent(pathA)

	// Even among proven ones, the current path is not the one that goes.
	for i := range 20 {
		h.sleep(time.Millisecond)
		p := port(30000 + i)
		h.answer(h.ownCheckIn(h.check(p, checkOpts{}), p), creds(1))
	}
	h.wantCurrent(pathA)
	if h.has(pathC) {
		t.Error("the proven path that was silent for longest is still there")
	}
	if h.a.Stats().Evictions == 0 {
		t.Error("not counted")
	}
}

func TestUnusedPathsAreForgotten(t *testing.T) {
	h := newHarness(t)
	h.prove(pathA, checkOpts{}, time.Millisecond)
	h.prove(pathC, checkOpts{}, time.Millisecond)
	h.rtp(pathX)
	h.keepAlive(6*time.Second, pathA, creds(1))
	if h.has(pathX) || !h.has(pathC) {
		t.Error("a provisional path lives for 5 s, others longer")
	}
	h.keepAlive(25*time.Second, pathA, creds(1))
	if h.has(pathC) || !h.has(pathA) {
		t.Errorf("paths %v", h.a.Paths())
	}
}
