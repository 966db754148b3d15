package icelite

import (
	"net/netip"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/stun"
)

func TestFirstCheckIsAnsweredAndThePathIsUsedAtOnce(t *testing.T) {
	h := newHarness(t)
	if _, _, _, ok := h.a.Allow(h.now, 100); ok {
		t.Fatal("bytes allowed before any check")
	}
	c := h.makeCheck(checkOpts{})
	ps := clone(h.stunFrom(pathA, relay1, c))
	if len(ps) != 2 {
		t.Fatalf("%d packets, want the answer and an own check", len(ps))
	}
	answer := h.parse(ps[0].Data)
	if answer.m.Type != stun.BindingSuccess || answer.m.TransactionID != c.m.TransactionID {
		t.Fatal("the first packet is not the answer")
	}
	if answer.m.XORMapped != pathA.Client {
		t.Errorf("XOR-MAPPED-ADDRESS %v, want the client's address", answer.m.XORMapped)
	}
	if !h.auth.Check(&answer.m, []byte(creds(1).LocalPassword)) || !answer.m.HasFingerprint {
		t.Error("the answer is not signed with the Host's password and a fingerprint")
	}
	own := h.parse(ps[1].Data)
	if own.m.Type != stun.BindingRequest || !own.m.Controlled || own.m.Controlling || own.m.TieBreaker != 0 ||
		!own.m.HasPriority || own.m.UseCandidate || !own.m.HasFingerprint {
		t.Errorf("own check %+v", own.m)
	}
	if string(own.m.Username) != creds(1).RemoteUfrag+":"+creds(1).LocalUfrag {
		t.Errorf("own check has USERNAME %q", own.m.Username)
	}
	if !h.auth.Check(&own.m, []byte(creds(1).RemotePassword)) {
		t.Error("own check is not signed with the client's password")
	}
	if !h.out.Events.Has(EventFirstCheck | EventAuthenticated | EventPathSelected | EventStateChanged) {
		t.Errorf("events %b", h.out.Events)
	}
	h.wantState(StateConnecting, ReasonNone)
	id, via, validated, ok := h.a.Allow(h.now, 149)
	if id != pathA || via != relay1 || validated || !ok {
		t.Fatalf("Allow: %v %v %v %v", id, via, validated, ok)
	}
	h.sleep(50 * time.Millisecond)
	h.answer(ps[1], creds(1))
	if !h.out.Events.Has(EventPathValidated|EventStateChanged) || h.out.ValidatedPath != pathA {
		t.Errorf("events %b", h.out.Events)
	}
	h.wantState(StateConnected, ReasonNone)
	if _, _, validated, ok = h.a.Allow(h.now, 1<<20); !ok || !validated {
		t.Error("a proven path has a limit")
	}
	if s, l := h.a.RTT(); s != 50*time.Millisecond || l != s {
		t.Errorf("RTT %v %v", s, l)
	}
}

func TestRequestsThatAreRefused(t *testing.T) {
	other := creds(1)
	other.RemoteUfrag = "someone"
	stranger := creds(9)
	many := func(b *stun.Builder) {
		for i := range uint16(8) {
			b.AddRaw(0x7f00+i, nil)
		}
	}
	for name, tc := range map[string]struct {
		opts   checkOpts
		code   int // 0: no answer
		signed bool
		count  func(Stats) uint64
	}{
		"wrong password":           {checkOpts{password: "wrong"}, 401, false, func(s Stats) uint64 { return s.Unauthorized }},
		"wrong remote ufrag":       {checkOpts{creds: other}, 401, false, func(s Stats) uint64 { return s.Unauthorized }},
		"ufrag of another session": {checkOpts{creds: stranger}, 0, false, func(s Stats) uint64 { return s.UnknownUfrag }},
		"client is controlled":     {checkOpts{controlled: true}, 487, true, func(s Stats) uint64 { return s.RoleConflicts }},
		"unknown attributes":       {checkOpts{raw: many}, 420, true, func(s Stats) uint64 { return s.UnknownAttributes }},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			c := h.makeCheck(tc.opts)
			ps := h.stunFrom(pathA, relay1, c)
			if tc.count(h.a.Stats()) != 1 {
				t.Errorf("not counted: %+v", h.a.Stats())
			}
			if h.out.Events != 0 || len(h.a.Paths()) != 0 {
				t.Error("a refused request has made a path")
			}
			h.wantState(StateNew, ReasonNone)
			if tc.code == 0 {
				if len(ps) != 0 {
					t.Fatal("answered")
				}
				return
			}
			if len(ps) != 1 || len(ps[0].Data) > len(c.raw) {
				t.Fatalf("%d packets", len(ps))
			}
			r := h.parse(ps[0].Data)
			if r.m.Type != stun.BindingError || r.m.ErrorCode != tc.code || r.m.TransactionID != c.m.TransactionID {
				t.Errorf("answer %v %d", r.m.Type, r.m.ErrorCode)
			}
			if got := h.auth.Check(&r.m, []byte(creds(1).LocalPassword)); got != tc.signed {
				t.Errorf("signed: %v, want %v", got, tc.signed)
			}
		})
	}
}

func TestOtherMessagesAreIgnored(t *testing.T) {
	h := newHarness(t)
	h.prove(pathA, checkOpts{}, 10*time.Millisecond)
	for name, build := range map[string]func(b *stun.Builder){
		"bare request":        func(b *stun.Builder) { b.Reset(nil, stun.BindingRequest, h.freshID()) },
		"indication":          func(b *stun.Builder) { b.Reset(nil, stun.BindingIndication, h.freshID()) },
		"allocate":            func(b *stun.Builder) { b.Reset(nil, 0x0003, h.freshID()) },
		"unknown transaction": func(b *stun.Builder) { b.Reset(nil, stun.BindingSuccess, h.freshID()) },
		"unsigned request": func(b *stun.Builder) {
			b.Reset(nil, stun.BindingRequest, h.freshID())
			b.AddUsername(creds(1).LocalUfrag, creds(1).RemoteUfrag)
		},
		"username of one part": func(b *stun.Builder) {
			b.Reset(nil, stun.BindingRequest, h.freshID())
			b.AddRaw(stun.AttrUsername, []byte(creds(1).LocalUfrag))
			b.AddIntegrity(&h.auth, []byte(creds(1).LocalPassword))
		},
	} {
		var b stun.Builder
		build(&b)
		if ps := h.stunFrom(pathC, relay2, h.parse(b.Bytes())); len(ps) != 0 || h.out.Events != 0 || len(h.a.Paths()) != 1 {
			t.Errorf("%s: %d packets, events %b", name, len(ps), h.out.Events)
		}
	}
	if s := h.a.Stats(); s.Malformed != 3 || s.UnknownResponses != 1 {
		t.Errorf("stats %+v", s)
	}
}

// A client that is controlled by mistake gets 487, changes its role and
// connects with its next check: one round trip (C99).
func TestRoleConflictIsResolvedInOneRoundTrip(t *testing.T) {
	t.Run("client claims to be controlled", func(t *testing.T) {
		h := newHarness(t)
		if ps := h.check(pathA, checkOpts{controlled: true}); len(ps) != 1 {
			t.Fatal("no 487")
		}
		h.sleep(50 * time.Millisecond)
		h.prove(pathA, checkOpts{}, 50*time.Millisecond)
		h.wantState(StateConnected, ReasonNone)
	})
	t.Run("client answers with 487", func(t *testing.T) {
		h := newHarness(t)
		h.a = New(Config{Now: h.now, Credentials: creds(1), TieBreaker: 1 << 60})
		own := h.ownCheckIn(h.check(pathA, checkOpts{}), pathA)
		if m := h.parse(own.Data).m; m.TieBreaker != 1<<60 {
			t.Fatalf("tie-breaker %d", m.TieBreaker)
		}
		h.sleep(50 * time.Millisecond)
		again := h.ownCheckIn(h.stunFrom(pathA, relay1, h.makeAnswer(own, creds(1), 487)), pathA)
		if m := h.parse(again.Data).m; m.TieBreaker != 0 || !m.Controlled || m.TransactionID == h.parse(own.Data).m.TransactionID {
			t.Fatalf("second check %+v", m)
		}
		if h.info(pathA).Validated {
			t.Error("an error response proved the path")
		}
		// Again: nothing more to give in, so no endless exchange.
		if ps := h.stunFrom(pathA, relay1, h.makeAnswer(again, creds(1), 487)); len(ps) != 0 {
			t.Errorf("%d packets after the second 487", len(ps))
		}
		h.answer(again, creds(1))
		h.wantState(StateConnected, ReasonNone)
	})
}

// C18.
func TestForgedResponsesProveNothing(t *testing.T) {
	h := newHarness(t)
	own := h.ownCheckIn(h.check(pathA, checkOpts{}), pathA)
	wrong := creds(1)
	wrong.RemotePassword = "not the client's"
	h.answer(own, wrong)
	if h.info(pathA).Validated || h.a.Stats().BadResponses != 1 {
		t.Fatal("a response with a wrong signature counts")
	}
	if ps := h.stunFrom(pathA, relay1, h.makeAnswer(own, creds(1), 400)); len(ps) != 0 || h.info(pathA).Validated {
		t.Fatal("an error response counts")
	}
	good := h.makeAnswer(own, creds(1), 0)
	// Only the transaction id matters, not where the answer comes from.
	h.stunFrom(pathX, relay2, good)
	if !h.info(pathA).Validated || h.has(pathX) {
		t.Fatal("the answer did not prove the path the check was sent to")
	}
	h.stunFrom(pathA, relay1, good)
	if h.a.Stats().LateResponses != 1 {
		t.Error("the same answer counts twice")
	}
}

func TestOwnCheckIsTriedThreeTimes(t *testing.T) {
	h := newHarness(t)
	start := h.now
	first := h.ownCheckIn(h.check(pathA, checkOpts{}), pathA)
	var at []time.Duration
	ids := map[stun.TransactionID]bool{h.parse(first.Data).m.TransactionID: true}
	var last Outgoing
	for h.now.Before(start.Add(1100 * time.Millisecond)) {
		sent, _ := h.wait(time.Millisecond)
		for _, o := range sent {
			at = append(at, h.now.Sub(start))
			ids[h.parse(o.Data).m.TransactionID] = true
			last = o
		}
	}
	if len(at) != 2 || at[0] < 100*time.Millisecond || len(ids) != 3 {
		t.Fatalf("retransmissions at %v with %d transaction ids", at, len(ids))
	}
	// It is late, but an answer to any try counts, and says the right time.
	h.stunFrom(pathA, relay1, h.makeAnswer(last, creds(1), 0))
	if _, l := h.a.RTT(); l != h.now.Sub(start.Add(at[1])) {
		t.Errorf("RTT %v", l)
	}
}

func TestFirstPathIsCheckedUntilItIsProvenOrTimeIsUp(t *testing.T) {
	h := newHarness(t)
	h.check(pathA, checkOpts{})
	sent, events := h.wait(31 * time.Second)
	h.wantState(StateFailed, ReasonNoAnswer)
	if !events.Has(EventStateChanged) || events.Has(EventConsentLost) {
		t.Errorf("events %b", events)
	}
	if len(sent) < 5 {
		t.Errorf("only %d checks", len(sent))
	}
	if _, _, _, ok := h.a.Allow(h.now, 10); ok {
		t.Error("bytes allowed after failure")
	}
	if ps := h.check(pathA, checkOpts{}); len(ps) != 0 {
		t.Error("answered after failure")
	}
	if next := h.a.Next(); !next.IsZero() {
		t.Errorf("next %v after failure", next)
	}
}

func TestNoCheckInTime(t *testing.T) {
	h := newHarness(t)
	h.wait(29 * time.Second)
	h.wantState(StateNew, ReasonNone)
	h.wait(time.Second)
	h.wantState(StateFailed, ReasonNoCheck)
}

// A round trip of seconds is longer than all tries of one check.
func TestVeryLongRoundTrip(t *testing.T) {
	for _, rtt := range []time.Duration{300 * time.Millisecond, 1500 * time.Millisecond, 2200 * time.Millisecond} {
		h := newHarness(t)
		type flight struct {
			at time.Time
			o  Outgoing
		}
		flights := []flight{{h.now.Add(rtt), h.ownCheckIn(h.check(pathA, checkOpts{}), pathA)}}
		for range 800 {
			sent, _ := h.wait(5 * time.Millisecond)
			for _, o := range sent {
				flights = append(flights, flight{h.now.Add(rtt), o})
			}
			for len(flights) > 0 && !h.now.Before(flights[0].at) {
				h.answer(flights[0].o, creds(1))
				flights = flights[1:]
			}
		}
		h.wantState(StateConnected, ReasonNone)
		if _, l := h.a.RTT(); l != rtt {
			t.Errorf("RTT %v, want %v", l, rtt)
		}
	}
}

func TestConsentIsCheckedAndLost(t *testing.T) {
	h := newHarness(t)
	h.prove(pathA, checkOpts{}, 20*time.Millisecond)
	proved := h.now
	// The client goes on sending, checks included, and answers nothing.
	var sent []Outgoing
	var last time.Time
	var events Events
	for h.now.Before(proved.Add(31 * time.Second)) {
		s, e := h.wait(100 * time.Millisecond)
		for range s {
			if gap := h.now.Sub(last); !last.IsZero() && (gap < 3900*time.Millisecond || gap > 6200*time.Millisecond) {
				t.Errorf("consent checks %v apart", gap)
			}
			last = h.now
		}
		sent = append(sent, s...)
		events |= e
		if h.now.Before(proved.Add(29900 * time.Millisecond)) {
			h.wantState(StateConnected, ReasonNone)
			h.rtp(pathA)
			h.check(pathA, checkOpts{})
		}
	}
	if len(sent) < 4 || len(sent) > 8 {
		t.Errorf("%d consent checks in 30 s", len(sent))
	}
	if !events.Has(EventConsentLost) {
		t.Error("no event")
	}
	h.wantState(StateFailed, ReasonConsentLost)
	if _, _, _, ok := h.a.Allow(h.now, 10); ok {
		t.Error("bytes allowed without consent")
	}
	if v := h.rtp(pathA); v != Drop {
		t.Errorf("data: %v", v)
	}

	// Only a restart helps, and then the new path needs proof of its own.
	if g := h.a.Restart(creds(2)); g != 2 {
		t.Fatalf("generation %d", g)
	}
	h.wantState(StateConnecting, ReasonNone)
	if ps := h.check(pathA, checkOpts{}); len(ps) != 0 {
		t.Error("the old credentials are answered")
	}
	own := h.ownCheckIn(h.check(pathA, checkOpts{creds: creds(2)}), pathA)
	if _, _, _, ok := h.a.Allow(h.now, 10); ok {
		t.Error("the first path's allowance was given twice")
	}
	h.answer(own, creds(2))
	h.wantCurrent(pathA)
	h.wantState(StateConnected, ReasonNone)
}

// Allow must not wait for Poll to notice.
func TestAllowRefusesWithoutConsentBeforePoll(t *testing.T) {
	h := newHarness(t)
	h.prove(pathA, checkOpts{}, 20*time.Millisecond)
	h.sleep(29999 * time.Millisecond)
	if _, _, v, ok := h.a.Allow(h.now, 10); !ok || !v {
		t.Fatal("refused too early")
	}
	h.sleep(time.Millisecond)
	if _, _, _, ok := h.a.Allow(h.now, 10); ok {
		t.Fatal("allowed after 30 s without an answer")
	}
	if v := h.rtp(pathA); v != Drop || !h.out.Events.Has(EventConsentLost) {
		t.Errorf("data after consent ran out: %v", v)
	}
}

func TestConsentLossFallsBackToAnotherProvenPath(t *testing.T) {
	h := newHarness(t)
	h.prove(pathA, checkOpts{}, 20*time.Millisecond)
	h.wait(10 * time.Second)
	h.prove(pathC, checkOpts{}, 20*time.Millisecond)
	h.rtp(pathA)
	for range 100 { // audio keeps A current though it answers nothing
		if _, e := h.wait(200 * time.Millisecond); e.Has(EventConsentLost) {
			break
		}
		h.rtp(pathA)
	}
	h.wantCurrent(pathC)
	h.wantState(StateConnected, ReasonNone)
	// The same credentials must not be used on A again (RFC 7675 section 5.1).
	if ps := h.check(pathA, checkOpts{}); len(ps) != 0 || h.has(pathA) {
		t.Error("the lost path is answered with the same credentials")
	}
	h.a.Restart(creds(2))
	if ps := h.check(pathA, checkOpts{creds: creds(2)}); len(ps) != 2 {
		t.Errorf("%d packets to the lost path after a restart", len(ps))
	}
}

func TestDisconnectedAndBack(t *testing.T) {
	h := newHarness(t)
	h.prove(pathA, checkOpts{}, 20*time.Millisecond)
	h.wait(9 * time.Second)
	h.wantState(StateConnected, ReasonNone)
	if _, e := h.wait(2 * time.Second); !e.Has(EventStateChanged) {
		t.Error("no event")
	}
	h.wantState(StateDisconnected, ReasonNone)
	if _, _, _, ok := h.a.Allow(h.now, 10); !ok {
		t.Error("consent goes on for 30 s, so sending does")
	}
	old := h.makeCheck(checkOpts{})
	h.stunFrom(pathA, relay1, old)
	h.wantState(StateConnected, ReasonNone)
	// A repetition of it is no sign of life.
	h.wait(11 * time.Second)
	h.stunFrom(pathA, relay1, old)
	h.wantState(StateDisconnected, ReasonNone)
	h.rtp(pathA)
	h.wantState(StateConnected, ReasonNone)
}

func TestCloseEndsEverything(t *testing.T) {
	h := newHarness(t)
	h.prove(pathA, checkOpts{}, time.Millisecond)
	h.a.Close()
	h.wantState(StateClosed, ReasonClosed)
	if ps := h.check(pathA, checkOpts{}); len(ps) != 0 {
		t.Error("answers")
	}
	if h.rtp(pathA) != Drop {
		t.Error("delivers")
	}
	if _, _, _, ok := h.a.Allow(h.now, 1); ok {
		t.Error("allows")
	}
	if next := h.a.Poll(h.now, &h.out); !next.IsZero() {
		t.Error("wants to be polled")
	}
	h.a.Restart(creds(2))
	h.wantState(StateClosed, ReasonClosed)
}

func TestMappedAddressesAreOnePath(t *testing.T) {
	h := newHarness(t)
	h.prove(pathA, checkOpts{}, time.Millisecond)
	mapped := pathA
	mapped.Client = netip.AddrPortFrom(netip.AddrFrom16(pathA.Client.Addr().As16()), pathA.Client.Port())
	ps := h.check(mapped, checkOpts{})
	if len(h.a.Paths()) != 1 || ps[0].Path != pathA {
		t.Errorf("paths %v", h.a.Paths())
	}
	tcp := pathA
	tcp.TCP = true
	h.check(tcp, checkOpts{})
	if len(h.a.Paths()) != 2 {
		t.Error("TCP and UDP are one path")
	}
}

// The time may begin with the first call, and may go back without harm.
func TestTimeBase(t *testing.T) {
	h := newHarness(t)
	h.a = New(Config{Credentials: creds(1)})
	h.sleep(100 * 24 * time.Hour)
	h.prove(pathA, checkOpts{}, 10*time.Millisecond)
	h.now = h.now.Add(-time.Hour)
	h.check(pathA, checkOpts{})
	if next := h.a.Next(); next.Before(h.now) {
		t.Errorf("next %v", next)
	}
	h.wantState(StateConnected, ReasonNone)
}

func TestAnswerThatIsFarTooLateProvesNothing(t *testing.T) {
	h := newHarness(t)
	h.prove(pathA, checkOpts{}, time.Millisecond)
	own := h.ownCheckIn(h.check(pathC, checkOpts{}), pathC)
	h.sleep(5001 * time.Millisecond)
	if h.answer(own, creds(1)); h.info(pathC).Validated {
		t.Error("proven")
	}
}

// A path in reserve stays proven as long as the client checks it and answers.
func TestPathInReserveIsKeptProven(t *testing.T) {
	h := newHarness(t)
	h.prove(pathA, checkOpts{}, time.Millisecond)
	h.prove(pathC, checkOpts{}, time.Millisecond)
	own := 0
	for range 20 {
		h.keepAlive(2656*time.Millisecond, pathA, creds(1))
		if o, ok := findOwnCheck(h, h.check(pathC, checkOpts{}), pathC); ok {
			own++
			h.answer(clone([]Outgoing{o})[0], creds(1))
		}
	}
	if !h.info(pathC).Validated || own != 20 {
		t.Errorf("proven %v after %d own checks", h.info(pathC).Validated, own)
	}
}

// A path that was proven long ago is asked as soon as it is chosen: its consent
// may end before the first regular check.
func TestChosenPathIsAskedAtOnceIfItsProofIsOld(t *testing.T) {
	h := newHarness(t)
	h.prove(pathA, checkOpts{}, time.Millisecond)
	h.prove(pathC, checkOpts{}, time.Millisecond)
	h.keepAlive(28*time.Second, pathA, creds(1))
	h.sleep(50 * time.Millisecond)
	h.rtp(pathC)
	h.wantCurrent(pathC)
	h.answer(h.ownCheckIn(h.out.Packets, pathC), creds(1))
	h.wait(5 * time.Second)
	h.wantCurrent(pathC)
	h.wantState(StateConnected, ReasonNone)
}
