package forward

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/race"
	"github.com/usher-rtc/usher/internal/stun"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/ufrag"
)

func newStoreWorld(tb testing.TB, workers, lookups int) *world {
	return newWorld(tb, workers, func(c *Config, _ *flowtable.Config) { c.Lookups = lookups })
}

func stunMessage(typ stun.Type) []byte {
	var b stun.Builder
	b.Reset(nil, typ, stun.TransactionID{1})
	b.AddFingerprint()
	return b.Bytes()
}

func TestWhatIsWorthALookup(t *testing.T) {
	rtcp := append([]byte{0x80, 201, 0, 1, 0, 0, 0, 9}, make([]byte, 20)...)
	dtls := []byte{22, 254, 253, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0}
	for _, tc := range []struct {
		name string
		data []byte
		want bool
	}{
		{"media", media(1), true},
		{"rtcp", rtcp, true},
		{"dtls", dtls, true},
		{"a STUN answer", stunMessage(0x0101), true},
		{"a STUN error", stunMessage(0x0111), true},
		{"a STUN indication", stunMessage(0x0011), true},
		{"a STUN request without ufrags", stunMessage(0x0001), false},
		{"a TURN channel", []byte{0x40, 0, 0, 4, 1, 2, 3, 4}, false},
		{"text", []byte("GET / HTTP/1.1\r\n"), false},
		{"a zero", []byte{0}, false},
		{"damaged STUN", stunMessage(0x0101)[:20], false},
	} {
		w := newStoreWorld(t, 1, 100)
		v := w.client(0, clientAddr(0, 0), tc.data)
		if v.Lookup != tc.want || v.Reason == None {
			t.Errorf("%s: lookup %v, reason %v; want lookup %v", tc.name, v.Lookup, v.Reason, tc.want)
		}
		if v := newWorld(t, 1, nil).client(0, clientAddr(0, 0), tc.data); v.Lookup {
			t.Errorf("%s: lookup without a store", tc.name)
		}
	}
	w := newStoreWorld(t, 1, 100)
	if v := w.client(0, clientAddr(0, 0), w.check(0, 1, false)); v.Lookup {
		t.Error("a routable check needs no lookup")
	}
	if v := w.client(0, clientAddr(0, 0), media(1)); v.Lookup {
		t.Error("a packet of a flow needs no lookup")
	}
	if v := w.client(0, clientAddr(1, 0), w.check(0, 1, true)); v.Lookup {
		t.Error("a forged check is worth no lookup")
	}
}

// A packet with the SSRC of a flow at its address is a rebinding and no lost flow;
// a guess by address alone may be wrong.
func TestLookupsBesideUnverifiedPackets(t *testing.T) {
	w := newStoreWorld(t, 1, 100)
	w.wantTo(w.client(0, clientAddr(0, 0), w.check(0, 1, false)), 0)
	w.frame(0, 0, clientAddr(0, 0), trunk.Validated, 9)
	v := w.client(0, clientAddr(0, 1), media(9))
	if w.wantTo(v, 0); !v.Unverified || v.Lookup {
		t.Errorf("by SSRC: %+v", v)
	}
	// Pinned by its media.
	v = w.client(0, clientAddr(0, 1), stunMessage(0x0101))
	if w.wantTo(v, 0); !v.Unverified || v.Lookup {
		t.Errorf("pinned: %+v", v)
	}
	v = w.client(0, clientAddr(0, 2), media(8))
	if w.wantTo(v, 0); !v.Unverified || !v.Lookup {
		t.Errorf("by address: %+v", v)
	}
}

func (w *world) restore(worker int, client netip.AddrPort, route ufrag.Route) (v Verdict) {
	c := w.cores[worker]
	c.Begin(w.now)
	c.Restore(flowtable.Key{Client: client, Ingress: 1}, route, netip.Addr{}, &v)
	c.End()
	return v
}

func TestRestoredFlowCarriesMediaAndIsConfirmedByItsHost(t *testing.T) {
	w := newStoreWorld(t, 1, 100)
	c := clientAddr(0, 0)
	v := w.restore(0, c, w.route(0, 1))
	if w.wantTo(v, 0); v.Event != EventRestored {
		t.Errorf("event %v", v.Event)
	}
	w.wantTo(w.client(0, c, media(1)), 0)
	if f, _ := w.owner(c); f.State != flowtable.Unconfirmed || f.Route != w.route(0, 1) {
		t.Errorf("flow %+v", f)
	}
	d := w.frame(0, 0, c, trunk.Validated, 9)
	if d.Event != EventConfirmed || d.Flow.State != flowtable.Confirmed || d.Flow.Route != w.route(0, 1) {
		t.Errorf("%+v", d)
	}
	if d := w.frame(0, 0, c, trunk.Validated, 9); d.Event != EventNone {
		t.Errorf("the second frame: event %v", d.Event)
	}
}

func TestRestoredFlowGivesWayToAnyValidCheck(t *testing.T) {
	w := newStoreWorld(t, 1, 100)
	c := clientAddr(0, 0)
	w.wantTo(w.restore(0, c, w.route(0, 1)), 0)
	w.now += OwnerChangeInterval
	if v := w.client(0, c, w.check(1, 1, false)); v.Event != EventMoved {
		t.Errorf("event %v", v.Event)
	}
	w.wantTo(w.client(0, c, media(1)), 1)
}

func TestTheStoreChangesNoFlowThatLives(t *testing.T) {
	for name, confirmed := range map[string]bool{"unconfirmed": false, "confirmed": true} {
		w := newStoreWorld(t, 3, 100)
		c := clientAddr(0, 0)
		w.wantTo(w.client(1, c, w.check(0, 1, false)), 0)
		if confirmed {
			w.frame(1, 0, c, trunk.Validated)
		}
		// Also if another worker asks.
		v := w.restore(2, c, w.route(1, 1))
		if w.wantTo(v, 0); v.Event == EventRestored {
			t.Errorf("%s: restored over a flow", name)
		}
		w.wantTo(w.client(0, c, media(1)), 0)
	}
}

func TestRestoreIsHeldAgainstTheSameTestsAsAUfrag(t *testing.T) {
	w := newStoreWorld(t, 1, 100)
	c := clientAddr(0, 0)
	outside, err := ufrag.IPv4Route(0, netip.MustParseAddrPort("127.0.0.1:9"), 1)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := w.route(0, 1)
	elsewhere.Cluster = 9
	for _, tc := range []struct {
		route ufrag.Route
		want  Reason
	}{
		{outside, UpstreamNotAllowed},
		{ufrag.Route{Kind: ufrag.KindIPv4}, Unresolved}, // 0.0.0.0:0
		{ufrag.Route{Kind: ufrag.KindDirectory, Host: 17}, Unresolved},
		{elsewhere, OtherCluster},
	} {
		w.wantDrop(w.restore(0, c, tc.route), tc.want)
	}
	if _, shard := w.owner(c); shard >= 0 {
		t.Error("there is a flow")
	}
}

func TestRestoreIntoAFullTable(t *testing.T) {
	w := newWorld(t, 1, func(c *Config, f *flowtable.Config) { c.Lookups, f.MaxFlows = 100, 2 })
	for i := range 2 {
		w.wantTo(w.client(0, clientAddr(i, 0), w.check(0, 1, false)), 0)
		w.frame(0, 0, clientAddr(i, 0), trunk.Validated)
	}
	w.wantDrop(w.restore(0, clientAddr(2, 0), w.route(0, 1)), TableFull)
}

func (w *world) mayAsk(k flowtable.Key) bool {
	c := w.cores[0]
	c.Begin(w.now)
	defer c.End()
	return c.MayAsk(k)
}

func (w *world) absent(k flowtable.Key) {
	c := w.cores[0]
	c.Begin(w.now)
	c.Absent(k)
	c.End()
}

func source(n int) flowtable.Key {
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], uint32(n)*2654435761|1<<24)
	return flowtable.Key{Client: netip.AddrPortFrom(netip.AddrFrom4(a), uint16(n)|1), Ingress: 1}
}

// C81: whatever arrives, the rate of lookups is fixed, and a client that sends again
// and again gets its turn.
func TestLookupsUnderAFlood(t *testing.T) {
	const perSecond, seconds = 1000, 10
	w := newStoreWorld(t, 1, perSecond)
	client := flowtable.Key{Client: clientAddr(0, 0), Ingress: 1}
	asked, n := 0, 0
	var waits []flowtable.Tick
	var since flowtable.Tick
	for range seconds * 1000 {
		w.now++
		for range 100 { // 100,000 a second
			n++
			if w.mayAsk(source(n)) {
				asked++
			}
		}
		if w.now%20 != 0 { // media at 50 a second
			continue
		}
		if since == 0 {
			since = w.now
		}
		if w.mayAsk(client) {
			asked++
			waits = append(waits, w.now-since)
			since = 0
			// The next client.
			client.Client = netip.AddrPortFrom(client.Client.Addr(), client.Client.Port()+1)
		}
	}
	if most := perSecond*seconds + 2*perSecond; asked > most {
		t.Errorf("%d lookups in %d s, want at most %d with the bursts", asked, seconds, most)
	}
	if asked < perSecond*seconds/3 {
		t.Errorf("only %d lookups", asked)
	}
	if len(waits) < 100 {
		t.Fatalf("%d clients had their turn", len(waits))
	}
	for i, d := range waits {
		if d > 500 {
			t.Errorf("client %d waited %d ms", i, d)
		}
	}
}

func TestOneAddressGetsAQuarterOfTheLookups(t *testing.T) {
	w := newStoreWorld(t, 1, 1000)
	asked := 0
	for range 10_000 {
		w.now++
		for port := range 10 {
			k := flowtable.Key{Client: netip.AddrPortFrom(clientAddr(9, 0).Addr(), uint16(1+port+10*int(w.now%6000))), Ingress: 1}
			if w.mayAsk(k) {
				asked++
			}
		}
	}
	if asked > 10*250+500+500 {
		t.Errorf("%d lookups in 10 s", asked)
	}
	if !w.mayAsk(flowtable.Key{Client: clientAddr(1, 0), Ingress: 1}) {
		t.Error("another address is refused")
	}
}

func TestAbsenceIsRememberedAndGrows(t *testing.T) {
	w := newStoreWorld(t, 1, 1000)
	k, other := source(1), source(2)
	life := flowtable.Tick(absentFor)
	for range 8 {
		if !w.mayAsk(k) {
			t.Fatal("may not ask")
		}
		w.absent(k)
		w.now += life - 1
		if w.mayAsk(k) {
			t.Fatalf("asked again within %d ms", life)
		}
		if !w.mayAsk(other) {
			t.Fatal("another source is refused")
		}
		w.now++
		life = min(2*life, absentMost)
	}
	// Long after, it is like new.
	w.now += 3 * absentMost
	w.absent(k)
	w.now += absentFor
	if !w.mayAsk(k) {
		t.Error("the growth is never forgotten")
	}
}

func TestLookupsAllocateNothing(t *testing.T) {
	race.NoAllocs(t)
	w := newStoreWorld(t, 1, 1000)
	c := w.cores[0]
	n := 0
	var v Verdict
	route := w.route(0, 1)
	if a := testing.AllocsPerRun(1000, func() {
		n++
		w.now++
		k := source(n % 100)
		c.Begin(w.now)
		c.MayAsk(k)
		c.Absent(k)
		c.Restore(k, route, netip.Addr{}, &v)
		c.End()
	}); a != 0 {
		t.Errorf("%v allocations", a)
	}
}

func BenchmarkLookupFlood(b *testing.B) {
	w := newStoreWorld(b, 1, 1000)
	c := w.cores[0]
	n := 0
	for b.Loop() {
		n++
		if n%64 == 0 {
			w.now++
		}
		c.Begin(w.now)
		c.MayAsk(source(n))
		c.End()
	}
	report(b)
}
