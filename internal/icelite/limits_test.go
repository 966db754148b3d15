package icelite

import (
	"net/netip"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/stun"
)

func total(ps []Outgoing) (n int) {
	for _, p := range ps {
		n += len(p.Data)
	}
	return n
}

// What design asks of the first path: one answer, checks of our own and four
// DTLS hellos of 149 bytes fit, and never more than 1,200 bytes in all.
func TestFirstPathMayBeSent1200BytesOnceASession(t *testing.T) {
	h := newHarness(t)
	spent := total(h.check(pathA, checkOpts{}))
	for range 4 {
		if _, _, v, ok := h.a.Allow(h.now, 149); !ok || v {
			t.Fatalf("a hello does not fit after %d bytes", spent)
		}
		spent += 149
	}
	for range 500 {
		if _, _, _, ok := h.a.Allow(h.now, 8); ok {
			spent += 8
		}
	}
	// A second check can still be answered, and a check of ours sent with it.
	h.sleep(10 * time.Millisecond)
	ps := h.check(pathA, checkOpts{})
	if len(ps) == 0 {
		t.Fatal("hellos used up the room for an answer")
	}
	spent += total(ps)
	sent, _ := h.wait(20 * time.Second)
	if _, ok := findOwnCheck(h, sent, pathA); !ok {
		t.Error("hellos used up the room for a second check")
	}
	spent += total(sent)
	if spent > firstPathBytes || spent < 1000 {
		t.Errorf("%d bytes went out", spent)
	}
	if i := h.info(pathA); i.Unsent == 0 || i.BytesOut != uint64(spent) {
		t.Errorf("path statistics %+v, spent %d", i, spent)
	}

	// No other path ever gets that much for one check.
	h = newHarness(t)
	h.check(pathA, checkOpts{})
	c := h.makeCheck(checkOpts{})
	spent = total(h.stunFrom(pathC, relay1, c))
	sent, _ = h.wait(20 * time.Second)
	for _, o := range sent {
		if o.Path == pathC {
			spent += len(o.Data)
		}
	}
	if spent > 3*len(c.raw) || spent < 2*len(c.raw) {
		t.Errorf("%d bytes for a check of %d", spent, len(c.raw))
	}
}

// A client all of whose packets to us arrive and few of ours to it still gets
// through: beyond the allowance, as much as came in may go out.
func TestFirstPathIsNotStuckWhenItsAllowanceIsUsedUp(t *testing.T) {
	h := newHarness(t)
	in, out := 0, 0
	for range 200 {
		c := h.makeCheck(checkOpts{})
		in += len(c.raw)
		out += total(h.stunFrom(pathA, relay1, c))
		sent, _ := h.wait(62 * time.Millisecond)
		out += total(sent)
		if out > max(firstPathBytes, in) {
			t.Fatalf("%d bytes out for %d in", out, in)
		}
	}
	c := h.makeCheck(checkOpts{})
	ps := h.stunFrom(pathA, relay1, c)
	own, ok := findOwnCheck(h, ps, pathA)
	for i := 0; !ok && i < 20; i++ {
		h.wait(100 * time.Millisecond)
		own, ok = findOwnCheck(h, h.check(pathA, checkOpts{}), pathA)
	}
	if !ok {
		t.Fatal("no own check any more")
	}
	h.answer(clone([]Outgoing{own})[0], creds(1))
	h.wantState(StateConnected, ReasonNone)
}

// C42: an unauthenticated address gets nothing more than it sent, whatever it
// sends and however often.
func TestStrangersGetNoMoreThanTheySent(t *testing.T) {
	h := newHarness(t)
	h.prove(pathA, checkOpts{}, 20*time.Millisecond)
	in, out := 0, 0
	for i := range 1000 {
		var c packet
		switch i % 4 {
		case 0:
			c = h.makeCheck(checkOpts{password: "guess"})
		case 1:
			c = h.makeCheck(checkOpts{creds: creds(7)})
		case 2:
			var b stun.Builder
			b.Reset(nil, stun.BindingRequest, h.freshID())
			c = h.parse(b.Bytes())
		default:
			var b stun.Builder
			b.Reset(nil, 0x0003, h.freshID())
			c = h.parse(b.Bytes())
		}
		in += len(c.raw)
		out += total(h.stunFrom(pathX, relay1, c))
		sent, _ := h.wait(5 * time.Millisecond)
		for _, o := range sent {
			if o.Path == pathX {
				out += len(o.Data)
			}
		}
		if out > in {
			t.Fatalf("%d bytes out for %d in", out, in)
		}
	}
	if out == 0 {
		t.Error("nobody was refused: this test shows nothing")
	}
	if h.has(pathX) {
		t.Error("a stranger has a path")
	}
}

// SRTP that only claims a known SSRC pays for the check it causes, byte by
// byte, and strangers cannot cause checks without end.
func TestSRTPFromStrangersPaysForItsCheck(t *testing.T) {
	h := newHarness(t)
	h.prove(pathA, checkOpts{}, 20*time.Millisecond)
	in, out := 0, 0
	for range 2000 {
		if v := h.data(pathX, relay1, stun.ClassRTP, true, 24); v != DeliverSRTP {
			t.Fatalf("verdict %v", v)
		}
		in += 24
		out += total(h.out.Packets)
		sent, _ := h.wait(time.Millisecond)
		for _, o := range sent {
			if o.Path == pathX {
				out += len(o.Data)
			}
		}
		if out > in {
			t.Fatalf("%d bytes out for %d in", out, in)
		}
	}
	if out == 0 {
		t.Fatal("no check was sent")
	}

	// From many ports at once: a few checks, and the proven path stays.
	h = newHarness(t)
	h.prove(pathA, checkOpts{}, 20*time.Millisecond)
	checks := 0
	for i := range 4000 {
		p := pathX
		p.Client = netip.AddrPortFrom(p.Client.Addr(), uint16(1000+i))
		h.data(p, relay1, stun.ClassRTP, true, 200)
		checks += len(h.out.Packets)
		h.sleep(time.Millisecond)
		h.poll()
	}
	if checks == 0 || checks > 5*maxProvisional {
		t.Errorf("%d checks to strangers in 4 s", checks)
	}
	if len(h.a.Paths()) > 1+maxProvisional || !h.has(pathA) {
		t.Errorf("%d paths", len(h.a.Paths()))
	}
	h.wantCurrent(pathA)
}

// Proof that ran out must not leave a path with the counters of its best days:
// it could never be asked again.
func TestLapsedPathStartsOverWithItsLimits(t *testing.T) {
	h := newHarness(t)
	h.prove(pathA, checkOpts{}, 10*time.Millisecond)
	h.prove(pathC, checkOpts{}, 10*time.Millisecond)
	h.sleep(600 * time.Millisecond)
	h.rtp(pathC)
	h.wantCurrent(pathC)
	for range 1000 {
		h.a.Allow(h.now, 1000)
	}
	h.rtp(pathA)
	h.sleep(100 * time.Millisecond)
	h.rtp(pathA)
	h.wantCurrent(pathA)
	// C is asked for a last time while it is proven, stays silent, and checks
	// again just before it would be forgotten.
	h.keepAlive(25*time.Second, pathA, creds(1))
	h.check(pathC, checkOpts{})
	h.keepAlive(10*time.Second, pathA, creds(1))
	if h.info(pathC).Validated {
		t.Fatal("still proven after 30 s")
	}
	c := h.makeCheck(checkOpts{})
	ps := clone(h.stunFrom(pathC, relay1, c))
	own := h.ownCheckIn(ps, pathC)
	if total(ps) > 3*len(c.raw) {
		t.Errorf("%d bytes out for %d", total(ps), len(c.raw))
	}
	h.answer(own, creds(1))
	if !h.info(pathC).Validated {
		t.Error("not proven again")
	}
}

// Strangers who spray ports do not keep the client, whose packets are too short
// for a check at once, from being asked.
func TestStrangersDoNotPushOutTheClient(t *testing.T) {
	h := newHarness(t)
	h.prove(pathA, checkOpts{}, 20*time.Millisecond)
	for i := range 100 {
		h.data(pathC, relay1, stun.ClassRTP, true, 60)
		if _, ok := findOwnCheck(h, h.out.Packets, pathC); ok {
			return
		}
		for j := range 10 {
			h.data(port(1000+10*i+j), relay1, stun.ClassRTP, true, 30)
		}
		h.sleep(time.Millisecond)
	}
	t.Error("the client was never asked")
}

// The longest answer to the shortest request: over IPv6, with acknowledgements.
func TestReplayIsNotAnsweredWithMoreThanItHad(t *testing.T) {
	h := newHarness(t)
	h.prove(pathA, checkOpts{}, time.Millisecond)
	h.check(pathA, checkOpts{raw: func(b *stun.Builder) { b.AddRaw(stun.AttrDTLSInSTUN, []byte{22}) }})
	for n := range byte(4) {
		h.a.NoteDTLS([]byte{22, n})
	}
	var b stun.Builder
	b.Reset(nil, stun.BindingRequest, h.freshID())
	b.AddUsername(creds(1).LocalUfrag, creds(1).RemoteUfrag)
	b.AddRaw(stun.AttrDTLSInSTUNAck, nil)
	b.AddIntegrity(&h.auth, []byte(creds(1).LocalPassword))
	c := h.parse(b.Bytes())
	if ps := h.stunFrom(pathA, relay1, c); len(ps) != 1 {
		t.Fatal("the original is not answered")
	}
	six := Path{Client: netip.MustParseAddrPort("[2001:db8::1]:5000"), Ingress: 1}
	if ps := h.stunFrom(six, relay1, c); len(ps) != 0 {
		t.Errorf("%d bytes for a replay of %d", total(ps), len(c.raw))
	}
	if h.a.Stats().Limited == 0 {
		t.Error("not counted")
	}
}

// What the first path may be sent before it is proven, it may not once its
// proof has run out; nor is it believed any more.
func TestFirstPathIsOrdinaryOnceProven(t *testing.T) {
	h := newHarness(t)
	h.prove(pathA, checkOpts{}, 10*time.Millisecond)
	h.prove(pathC, checkOpts{}, 10*time.Millisecond)
	h.sleep(100 * time.Millisecond)
	h.rtp(pathC)
	h.wantCurrent(pathC)
	for range 32 {
		h.check(pathA, checkOpts{}) // answers none of ours
		h.keepAlive(time.Second, pathC, creds(1))
	}
	if v := h.data(pathA, relay1, stun.ClassDTLS, false, 100); v != Drop {
		t.Errorf("DTLS: %v", v)
	}
}

// Somebody who knows the password, or has the client's own checks, and wants
// somebody else to be sent something gets little of it.
func TestAThirdAddressIsSentLittle(t *testing.T) {
	for name, packets := range map[string]func(h *harness) []packet{
		"forged": func(h *harness) (all []packet) {
			for i := range 100 {
				all = append(all, h.makeCheck(checkOpts{use: i%2 == 0}))
			}
			return all
		},
		"replayed": func(h *harness) (all []packet) {
			for range 10 {
				c := h.makeCheck(checkOpts{})
				h.stunFrom(pathA, relay1, c)
				all = append(all, c)
			}
			for len(all) < 100 {
				all = append(all, all[:10]...)
			}
			return all
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.prove(pathA, checkOpts{}, 20*time.Millisecond)
			out := 0
			for _, c := range packets(h) {
				out += total(h.stunFrom(pathX, relay1, c))
				sent, _ := h.wait(20 * time.Millisecond)
				for _, o := range sent {
					if o.Path == pathX {
						out += len(o.Data)
					}
				}
			}
			if out == 0 || out >= 1500 {
				t.Errorf("%d bytes in 2 s, want some and fewer than 1,500", out)
			}
			// The allowance comes back, so that a client whose packets were lost on
			// the way back is answered when its network works again.
			h.keepAlive(20*time.Second, pathA, creds(1))
			if len(h.stunFrom(pathX, relay1, h.makeCheck(checkOpts{}))) == 0 {
				t.Error("never answered again")
			}
		})
	}
}
