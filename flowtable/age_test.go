package flowtable

import (
	"net/netip"
	"testing"
	"time"

	"github.com/usher-rtc/usher/ufrag"
)

// TestLongFlowsStayOld keeps a flow alive beyond the 25 days after which a Tick's
// difference turns negative: it must not look as if its owner had just got it, or
// nobody else could have it for as long again, nor an old claim like a new one.
func TestLongFlowsStayOld(t *testing.T) {
	table, err := New(Config{MaxFlows: 4, IdleTimeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	table.Lock()
	defer table.Unlock()
	f := numbered(1)
	f.State, f.Since, f.LastUpstream = Confirmed, 0, 0
	r, _ := table.Insert(&f)
	table.Contend(r, ufrag.Route{Kind: ufrag.KindDirectory, Host: 9}, 0)
	const minute = 60_000
	for now := Tick(0); now < 60*24*60*minute/2; now += minute {
		table.Touch(r, now)
		table.Expire(now)
		if age := table.Since(r).Age(now); age < min(uint32(now), 24*60*minute) {
			t.Fatalf("%v after its owner got it, the flow is %v old", time.Duration(now)*time.Millisecond, time.Duration(age)*time.Millisecond)
		}
		if _, age, ok := table.Contender(r, now); ok && age < min(uint32(now), 24*60*minute) {
			t.Fatalf("%v after the claim, it is %v old", time.Duration(now)*time.Millisecond, time.Duration(age)*time.Millisecond)
		}
	}
}

// TestForgedFlowsDoNotHideAnOwner makes unconfirmed flows with a client's IP address,
// as whoever has a session can: the owner of that client's own flow must be found.
func TestForgedFlowsDoNotHideAnOwner(t *testing.T) {
	table, err := New(Config{MaxFlows: 4096})
	if err != nil {
		t.Fatal(err)
	}
	table.Lock()
	defer table.Unlock()
	ip := netip.MustParseAddr("192.0.2.1")
	owner := netip.MustParseAddrPort("10.0.0.1:9000")
	insert := func(port int, state State, up netip.AddrPort) Ref {
		r, ok := table.Insert(&Flow{Key: Key{Client: netip.AddrPortFrom(ip, uint16(port))}, State: state, Upstream: up})
		if !ok {
			t.Fatal("refused")
		}
		return r
	}
	found := func(what string) {
		t.Helper()
		if got := table.Owners(ip, make([]Owner, 0, 2)); len(got) != 1 || got[0].Upstream != owner {
			t.Errorf("%s: owners %v, want %v", what, got, owner)
		}
	}
	for i := range 2 * maxChain {
		insert(1000+i, Unconfirmed, netip.MustParseAddrPort("10.0.0.2:9000"))
	}
	own := insert(1, Unconfirmed, owner)
	for i := range 2 * maxChain {
		insert(2000+i, Unconfirmed, netip.MustParseAddrPort("10.0.0.2:9000"))
	}
	table.Confirm(own, 0, nil)
	found("confirmed after the forged ones came")
	for i := range 2 * maxChain {
		insert(3000+i, Unconfirmed, netip.MustParseAddrPort("10.0.0.2:9000"))
	}
	found("confirmed before the forged ones came")
}
