package forward

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/race"
	"github.com/usher-rtc/usher/internal/trunk"
)

func TestEveryReasonHasAName(t *testing.T) {
	seen := map[string]bool{}
	for r := range NumReasons {
		if s := r.String(); s == "" || seen[s] {
			t.Errorf("reason %d is called %q", r, s)
		} else {
			seen[s] = true
		}
	}
}

// C60: clients at link-local addresses are refused, with and without a zone.
func TestScreening(t *testing.T) {
	w := newWorld(t, 1, nil)
	ok := clientAddr(0, 0)
	for _, tc := range []struct {
		p    Packet
		want Reason
	}{
		{Packet{Data: media(1), From: ok, Truncated: true}, Oversize},
		{Packet{From: ok}, Empty},
		{Packet{Data: media(1), From: netip.AddrPortFrom(ok.Addr(), 0)}, BadSource},
		{Packet{Data: media(1), From: netip.MustParseAddrPort("[fe80::1%2]:9")}, BadSource},
		{Packet{Data: media(1), From: netip.MustParseAddrPort("[fe80::1]:9")}, BadSource},
		{Packet{Data: media(1), From: netip.MustParseAddrPort("255.255.255.255:9")}, BadSource},
		{Packet{Data: media(1), From: netip.MustParseAddrPort("[ff02::1]:9")}, BadSource},
		{Packet{Data: media(1), From: ok}, NoFlow},
	} {
		var v Verdict
		w.cores[0].Begin(w.now)
		w.cores[0].Client(&tc.p, &v)
		w.cores[0].End()
		if v.Reason != tc.want {
			t.Errorf("%+v: %v, want %v", tc.p, v.Reason, tc.want)
		}
	}
}

func TestForgedCheckMakesNoFlow(t *testing.T) {
	w := newWorld(t, 1, nil)
	c := clientAddr(0, 0)
	w.wantDrop(w.client(0, c, w.check(0, 1, true)), BadIntegrity)
	if _, shard := w.owner(c); shard >= 0 {
		t.Fatal("there is a flow")
	}
	w = newWorld(t, 1, func(c *Config, _ *flowtable.Config) { c.SkipIntegrity = true })
	w.wantTo(w.client(0, c, w.check(0, 1, true)), 0)
}

// An attacker with a session of his own forges the victim's address.
func TestConfirmedFlowChangesHandsOnlyOnItsClaimantsWord(t *testing.T) {
	w := newWorld(t, 1, nil)
	c := clientAddr(0, 0)
	w.wantTo(w.client(0, c, w.check(0, 1, false)), 0)
	w.frame(0, 0, c, trunk.Validated, 9)
	w.now += 5000

	// A forged claim does nothing; a valid one is forwarded and registered.
	w.wantDrop(w.client(0, c, w.check(1, 1, true)), BadIntegrity)
	w.frame(0, 1, c, trunk.Validated)
	w.wantTo(w.client(0, c, media(9)), 0)
	if v := w.client(0, c, w.check(1, 1, false)); v.Event != EventContested {
		t.Fatalf("event %v", v.Event)
	}
	w.wantTo(w.client(0, c, media(9)), 0)
	// The claimant's Host answers the check, but that proves nothing; a third
	// Host's word does not either.
	w.frame(0, 1, c, 0)
	w.frame(0, 2, c, trunk.Validated)
	w.wantTo(w.client(0, c, media(9)), 0)
	// The client has answered: a real second session.
	if d := w.frame(0, 1, c, trunk.Validated, 9); d.Event != EventMoved {
		t.Fatalf("event %v", d.Event)
	}
	w.wantTo(w.client(0, c, media(9)), 1)
	f, _ := w.owner(c)
	if f.State != flowtable.Confirmed || f.Route != w.route(1, 1) {
		t.Fatalf("flow %+v", f)
	}
	// The displaced owner gets it back in the same way, not at once.
	w.wantTo(w.client(0, c, w.check(0, 1, false)), 0)
	w.frame(0, 0, c, trunk.Validated)
	w.wantTo(w.client(0, c, media(9)), 1)
	w.now += OwnerChangeInterval
	w.frame(0, 0, c, trunk.Validated)
	w.wantTo(w.client(0, c, media(9)), 0)
}

func TestClaimGoesStale(t *testing.T) {
	w := newWorld(t, 1, nil)
	c := clientAddr(0, 0)
	w.client(0, c, w.check(0, 1, false))
	w.frame(0, 0, c, trunk.Validated)
	w.now += 2000
	w.client(0, c, w.check(1, 1, false))
	w.now += claimLife + 1
	w.frame(0, 1, c, trunk.Validated)
	w.wantTo(w.client(0, c, media(9)), 0)
}

func TestUnconfirmedFlowGoesToTheLatestValidCheckOnceASecond(t *testing.T) {
	w := newWorld(t, 1, nil)
	c := clientAddr(0, 0)
	w.client(0, c, w.check(0, 1, false))
	w.client(0, c, w.check(1, 1, false))
	w.wantTo(w.client(0, c, media(1)), 0)
	w.now += OwnerChangeInterval
	w.wantDrop(w.client(0, c, w.check(1, 1, true)), BadIntegrity)
	if v := w.client(0, c, w.check(1, 1, false)); v.Event != EventMoved {
		t.Fatalf("event %v", v.Event)
	}
	w.wantTo(w.client(0, c, media(1)), 1)
}

func TestIceRestartOnOneHostKeepsTheFlow(t *testing.T) {
	w := newWorld(t, 1, nil)
	c := clientAddr(0, 0)
	w.client(0, c, w.check(0, 1, false))
	w.frame(0, 0, c, trunk.Validated, 9)
	w.wantDrop(w.client(0, c, w.check(0, 2, true)), BadIntegrity)
	if v := w.client(0, c, w.check(0, 2, false)); v.Event != EventRerouted {
		t.Fatalf("event %v", v.Event)
	}
	f, _ := w.owner(c)
	if f.Route != w.route(0, 2) || f.State != flowtable.Confirmed || f.NumSSRCs != 1 {
		t.Fatalf("flow %+v", f)
	}
}

// "Client traffic alone does not keep a flow alive."
func TestOnlyTheUpstreamKeepsAFlowAlive(t *testing.T) {
	for _, tc := range []struct {
		name            string
		flags           trunk.Flags
		client, answers bool
		alive           bool
	}{
		{"unconfirmed, client only", 0, true, false, false},
		{"confirmed, client only", trunk.Validated, true, false, false},
		{"unconfirmed, answered", 0, true, true, true},
		{"confirmed, answered", trunk.Validated, false, true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, 1, func(_ *Config, f *flowtable.Config) {
				f.IdleTimeout, f.UnconfirmedTimeout = 3*time.Second, time.Second
			})
			c := clientAddr(0, 0)
			w.client(0, c, w.check(0, 1, false))
			w.frame(0, 0, c, tc.flags)
			for range 100 {
				w.now += 50
				if tc.client {
					w.client(0, c, w.check(0, 1, false)[:0])
					w.client(0, c, media(1))
				}
				if tc.answers {
					w.frame(0, 0, c, 0)
				}
				w.client(0, clientAddr(9, 9), media(1)) // time goes on
			}
			if _, shard := w.owner(c); (shard >= 0) != tc.alive {
				t.Fatalf("alive: %v", shard >= 0)
			}
		})
	}
}

// A flood of checks cannot push confirmed flows out.
func TestFloodOfChecksLeavesConfirmedFlowsAlone(t *testing.T) {
	w := newWorld(t, 1, func(_ *Config, f *flowtable.Config) { f.MaxFlows, f.MaxUnconfirmed = 40, 10 })
	for i := range 30 {
		w.client(0, clientAddr(0, i), w.check(0, uint32(i), false))
		w.frame(0, 0, clientAddr(0, i), trunk.Validated)
	}
	check := w.check(1, 1, false)
	for i := range 500 {
		w.wantTo(w.client(0, clientAddr(1, i), check), 1)
	}
	for i := range 30 {
		if f, _ := w.owner(clientAddr(0, i)); f.State != flowtable.Confirmed {
			t.Fatalf("flow %d is %v", i, f.State)
		}
	}
	for i := range 10 {
		w.frame(0, 1, clientAddr(1, 490+i), trunk.Validated)
	}
	w.wantDrop(w.client(0, clientAddr(2, 0), check), TableFull)
}

func TestKernelMovesAClientToAnotherWorker(t *testing.T) {
	w := newWorld(t, 3, nil)
	c := clientAddr(0, 0)
	w.client(0, c, w.check(0, 1, false))
	w.frame(0, 0, c, trunk.Validated, 9)
	if v := w.client(2, c, media(9)); v.Event != EventAdopted || v.Upstreams[0].Addr != hostAddr(0) {
		t.Fatalf("%+v", v)
	}
	if f, shard := w.owner(c); shard != 2 || f.State != flowtable.Confirmed || f.NumSSRCs != 1 {
		t.Fatalf("shard %d, %+v", shard, f)
	}
	// An answer that reaches another worker keeps it alive where it is.
	w.now += 100
	w.frame(1, 0, c, trunk.Validated)
	if f, shard := w.owner(c); shard != 2 || f.LastUpstream != w.now {
		t.Fatalf("shard %d, %+v", shard, f)
	}
}

func TestUnverified(t *testing.T) {
	w := newWorld(t, 2, nil)
	for i := range 3 {
		c := clientAddr(0, i)
		w.client(i%2, c, w.check(i, 1, false))
		w.frame(i%2, i, c, trunk.Validated, uint32(100+i))
	}
	unconfirmed := clientAddr(1, 0)
	w.client(0, unconfirmed, w.check(0, 7, false))

	fresh := clientAddr(0, 50)
	v := w.client(0, fresh, media(101)) // the owner's flow is in the other shard
	if !v.Unverified {
		t.Fatal("not marked")
	}
	w.wantTo(v, 1)
	response := []byte{1, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	w.wantTo(w.client(0, fresh, response), 1) // pinned
	if v := w.client(0, clientAddr(0, 51), media(7)); !v.Unverified || v.N != 2 {
		t.Fatalf("%+v", v) // an unknown SSRC: at most two owners
	}
	hello := []byte{22, 254, 253, 0, 0}
	if v := w.client(1, clientAddr(0, 52), hello); !v.Unverified || v.N != 2 {
		t.Fatalf("%+v", v)
	}
	for name, p := range map[string][]byte{
		"request without username": append([]byte{0}, response[1:]...)[:20],
		"channel data":             {0x40, 0, 0, 0},
		"junk":                     {255, 1},
	} {
		if name == "request without username" {
			p[1] = 1
		}
		w.wantDrop(w.client(0, clientAddr(0, 53), p), NoFlow)
	}
	w.wantDrop(w.client(0, clientAddr(1, 9), media(1)), NoFlow)   // only an unconfirmed flow there
	w.wantDrop(w.client(0, clientAddr(3, 9), media(101)), NoFlow) // another address
	if _, shard := w.owner(fresh); shard >= 0 {
		t.Fatal("an unverified packet made a flow")
	}

	passed := 0
	for range 1000 {
		if v := w.client(0, clientAddr(0, 54), media(101)); v.Reason == None {
			passed++
		} else if v.Reason != UnverifiedLimit {
			t.Fatal(v.Reason)
		}
	}
	if passed == 0 || passed > int(unverifiedPerIP.burst) {
		t.Fatalf("%d unverified packets passed at once", passed)
	}
	w.now += 1000
	w.wantTo(w.client(0, clientAddr(0, 54), media(101)), 1)
}

func TestLearningIsCappedPerHost(t *testing.T) {
	w := newWorld(t, 1, func(_ *Config, f *flowtable.Config) { f.MaxFlows = 30_000 })
	for i := range 20_000 {
		w.frame(0, 0, clientAddr(i%200, i/200), trunk.Validated)
	}
	if n := w.shards[0].Len(); n != int(learnedPerHost.burst) {
		t.Fatalf("learned %d flows", n)
	}
	if d := w.frame(0, 1, clientAddr(201, 0), trunk.Validated); d.Event != EventLearned {
		t.Fatal("another Host is held back too")
	}
}

func TestBucket(t *testing.T) {
	var b bucket
	r := rate{perSecond: 10, burst: 3}
	now := flowtable.Tick(1<<32 - 150)
	got := ""
	for range 60 { // 10 ms steps across the wrap
		if b.allow(r, now) {
			got += "+"
		} else {
			got += "."
		}
		now += 10
	}
	if want := "+++.......+.........+.........+.........+.........+........."; got != want {
		t.Fatalf("%s, want %s", got, want)
	}
}

// C72: workers that expire, adopt, answer and change owners at once. For the
// race detector and for the balance of the counters.
func TestWorkersShareNothingButTheirLocks(t *testing.T) {
	w := newWorld(t, 4, func(_ *Config, f *flowtable.Config) {
		f.IdleTimeout, f.UnconfirmedTimeout = time.Millisecond, time.Millisecond
		f.MaxFlows, f.MaxUnconfirmed = 50, 25
	})
	checks := [2][]byte{w.check(0, 1, false), w.check(1, 1, false)}
	var wg sync.WaitGroup
	for i := range w.cores {
		wg.Go(func() {
			c := w.cores[i]
			var v Verdict
			var d Delivery
			for n := range 5_000 {
				from := clientAddr(n%5, n%29)
				c.Begin(flowtable.Tick(n / 20))
				c.Client(&Packet{Data: checks[n%2], From: from, Ingress: 1}, &v)
				c.Client(&Packet{Data: media(byte(n % 4)), From: from, Ingress: 1}, &v)
				c.Client(&Packet{Data: media(byte(n % 4)), From: clientAddr(n%5, n%300), Ingress: 1}, &v)
				f := trunk.Frame{Flags: trunk.ToClient | trunk.Validated, Ingress: 1, Client: from, NSSRC: 1, SSRCs: [4]uint32{uint32(n % 4)}}
				c.Frame(&f, Peer{Addr: hostAddr(n % 3)}, &d)
				c.End()
			}
		})
	}
	wg.Wait()
	for i, s := range w.shards {
		if c := s.Counters(); c.Inserted-c.Removed-c.Expired-c.Evicted != uint64(s.Len()) || c.Expired == 0 {
			t.Errorf("shard %d: %+v, %d flows", i, c, s.Len())
		}
	}
	for n := range 300 {
		w.owner(clientAddr(n%5, n)) // reports a flow in two shards
	}
}

func TestNothingAllocates(t *testing.T) {
	race.NoAllocs(t)
	w := newWorld(t, 2, nil)
	checks := [][]byte{w.check(0, 1, false), w.check(1, 1, false), w.check(0, 1, true), w.check(0, 2, false)}
	n := 0
	rtp := [][]byte{media(0), media(1), media(2), media(3), media(4)}
	packets := [][]byte{nil, nil, {22, 1, 2, 3}, {}}
	step := func() {
		n++
		w.now += 3
		packets[0], packets[1] = checks[n%4], rtp[n%5]
		from := clientAddr(n%7, n%31)
		c := w.cores[n%2]
		c.Begin(w.now)
		for _, data := range packets {
			scratch.p = Packet{Data: data, From: from, Ingress: 1}
			c.Client(&scratch.p, &scratch.v)
		}
		scratch.f = trunk.Frame{Flags: trunk.ToClient | trunk.Flags(n%2)*trunk.Validated, Ingress: 1, Client: from, NSSRC: 1}
		c.Frame(&scratch.f, Peer{Addr: hostAddr(n % 2)}, &scratch.d)
		c.End()
	}
	for range 2000 {
		step()
	}
	if n := testing.AllocsPerRun(2000, step); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

var scratch struct {
	p Packet
	v Verdict
	f trunk.Frame
	d Delivery
}

// A relay that learned a flow from a frame without a route learns the route from
// a later one: packets of the client's next port need it to find their session.
func TestLearnedFlowsGetTheirRouteLater(t *testing.T) {
	w := newWorld(t, 1, nil)
	client := clientAddr(0, 0)
	w.frame(0, 0, client, trunk.Validated, 7)
	f := trunk.Frame{
		Flags: trunk.ToClient | trunk.Validated | trunk.HasRoute, Ingress: 1, Client: client, Route: w.route(0, 5),
		SSRCs: [4]uint32{7}, NSSRC: 1, Payload: []byte("x"),
	}
	var d Delivery
	w.cores[0].Begin(w.now)
	w.cores[0].Frame(&f, Peer{Addr: hostAddr(0)}, &d)
	w.cores[0].End()
	audio := []byte{0x80, 111, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7}
	if v := w.client(0, clientAddr(0, 1), audio); !v.Unverified || v.Upstreams[0].Route != f.Route {
		t.Errorf("a packet from the next port: %+v, want route %v", v, f.Route)
	}
}
