package forward

import (
	"net/netip"
	"testing"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/race"
	"github.com/usher-rtc/usher/internal/stun"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/ufrag"
)

// far is a cluster whose Hosts have the addresses of the own cluster's Hosts: the
// private networks of two sites overlap.
const far = 9

var farRelay = netip.MustParseAddrPort("172.16.0.1:4000")

// farClusters has one relay, for cluster far.
type farClusters struct{ reason Reason }

func (f *farClusters) Pick(cluster uint16, _ netip.AddrPort) (netip.AddrPort, Reason) {
	if cluster != far {
		return netip.AddrPort{}, UnknownCluster
	}
	return farRelay, f.reason
}

func newTiersWorld(tb testing.TB, workers int, change func(*Config)) (*world, *farClusters) {
	clusters := new(farClusters)
	return newWorld(tb, workers, func(c *Config, _ *flowtable.Config) {
		c.Clusters = clusters
		c.AllowClusters = []netip.Prefix{netip.MustParsePrefix("172.16.0.0/16")}
		c.AllowEdges = []netip.Prefix{netip.MustParsePrefix("172.17.0.0/16")}
		if change != nil {
			change(c)
		}
	}), clusters
}

// party is a Host: of the own cluster, or of far.
type party struct {
	host   int
	remote bool
}

func (w *world) routeOf(p party, session uint32) ufrag.Route {
	r := w.route(p.host, session)
	if p.remote {
		r.Cluster = far
	}
	return r
}

func (w *world) checkFor(route ufrag.Route) []byte {
	u, err := w.codec.Encode(route)
	if err != nil {
		w.tb.Fatal(err)
	}
	pw, _ := w.codec.AppendPassword(nil, []byte(u))
	var b stun.Builder
	var a stun.Authenticator
	b.Reset(nil, 1, stun.TransactionID{1})
	b.AddUsername(u, "remote")
	b.AddIntegrity(&a, pw)
	b.AddFingerprint()
	return b.Bytes()
}

// say is a frame of a party for a client, as a reader makes it.
func (w *world) say(worker int, p party, client netip.AddrPort, flags trunk.Flags, ssrcs ...uint32) Delivery {
	var d Delivery
	f := trunk.Frame{Flags: trunk.ToClient | flags, Ingress: 1, Client: client}
	if flags&trunk.HasRoute != 0 {
		f.Route = w.routeOf(p, 1)
	}
	f.NSSRC = uint8(copy(f.SSRCs[:], ssrcs))
	peer := Peer{Addr: hostAddr(p.host)}
	if p.remote {
		peer = Peer{Addr: farRelay, Remote: true}
	}
	c := w.cores[worker]
	c.Begin(w.now)
	c.Frame(&f, peer, &d)
	c.End()
	return d
}

const told = trunk.Validated | trunk.HasRoute

func (w *world) wantHop(v Verdict, p party) {
	w.tb.Helper()
	if v.Reason != None || v.N != 1 {
		w.tb.Fatalf("dropped (%v) or sent to %v", v.Reason, v.Upstreams[:v.N])
	}
	h := v.Upstreams[0]
	if p.remote {
		if h.Addr != farRelay || !h.Remote || !h.Route.SameHost(w.routeOf(p, 0)) {
			w.tb.Fatalf("sent to %+v, want far host %d by way of its relay", h, p.host)
		}
	} else if h.Addr != hostAddr(p.host) || h.Remote {
		w.tb.Fatalf("sent to %+v, want host %d", h, p.host)
	}
}

func TestEdgeSendsByCluster(t *testing.T) {
	w, clusters := newTiersWorld(t, 1, nil)
	c := clientAddr(0, 0)
	home, away := party{0, false}, party{0, true}
	w.wantHop(w.client(0, c, w.checkFor(w.routeOf(away, 1))), away)
	w.wantHop(w.client(0, c, media(5)), away)
	w.wantHop(w.client(0, clientAddr(1, 0), w.checkFor(w.routeOf(home, 1))), home)
	w.wantHop(w.client(0, clientAddr(1, 0), media(5)), home)
	other := w.routeOf(away, 1)
	other.Cluster++
	w.wantDrop(w.client(0, c, w.checkFor(other)), UnknownCluster)
	// The cluster is asked for each packet: a flow does not outlive its relay.
	clusters.reason = ClusterUnhealthy
	w.wantDrop(w.client(0, c, media(5)), ClusterUnhealthy)
	w.wantDrop(w.client(0, c, w.checkFor(w.routeOf(away, 1))), ClusterUnhealthy)
	clusters.reason = None
	w.wantHop(w.client(0, c, media(5)), away)
}

func TestEdgeWithoutHostsHasNoCluster(t *testing.T) {
	w, _ := newTiersWorld(t, 1, func(c *Config) { c.Allow, c.Cluster = nil, far })
	c := clientAddr(0, 0)
	w.wantHop(w.client(0, c, w.checkFor(w.routeOf(party{1, true}, 1))), party{1, true})
	w.wantDrop(w.client(0, c, w.checkFor(w.route(0, 1))), UnknownCluster)
}

// Two Hosts of one cluster come by one relay: the route tells them apart.
func TestFarHostsAreDifferentOwners(t *testing.T) {
	w, _ := newTiersWorld(t, 1, nil)
	c := clientAddr(0, 0)
	victim, attacker := party{0, true}, party{1, true}
	w.wantHop(w.client(0, c, w.checkFor(w.routeOf(victim, 1))), victim)
	w.say(0, victim, c, told, 9)
	w.now += 5000
	if v := w.client(0, c, w.checkFor(w.routeOf(attacker, 1))); v.Event != EventContested {
		t.Fatalf("event %v", v.Event)
	}
	w.wantHop(w.client(0, c, media(9)), victim)
	// What does not say whom it is from, or not that the client was validated,
	// takes nothing over; nor do the own Hosts at these addresses.
	w.say(0, attacker, c, trunk.Validated)
	w.say(0, attacker, c, trunk.HasRoute)
	w.say(0, party{1, false}, c, told)
	w.wantHop(w.client(0, c, media(9)), victim)
	if d := w.say(0, attacker, c, told); d.Event != EventMoved {
		t.Fatalf("event %v", d.Event)
	}
	w.wantHop(w.client(0, c, media(9)), attacker)
}

func TestFarFlowIsLearnedWithItsRoute(t *testing.T) {
	w, _ := newTiersWorld(t, 2, nil)
	c := clientAddr(0, 0)
	p := party{0, true}
	w.say(0, p, c, trunk.Validated)
	w.say(0, p, c, trunk.HasRoute)
	if _, shard := w.owner(c); shard >= 0 {
		t.Fatal("learned from a frame that does not say enough")
	}
	// Nor does a far relay teach flows of the own cluster.
	var d Delivery
	f := trunk.Frame{Flags: trunk.ToClient | told, Ingress: 1, Client: c, Route: w.route(0, 1)}
	w.cores[0].Begin(w.now)
	w.cores[0].Frame(&f, Peer{Addr: farRelay, Remote: true}, &d)
	w.cores[0].Announced(&f, Peer{Addr: netip.MustParseAddrPort("172.18.0.1:9"), Remote: true}, &d)
	w.cores[0].End()
	if _, shard := w.owner(c); shard >= 0 {
		t.Fatal("learned a flow of the own cluster")
	}
	f.Route = w.routeOf(p, 1)
	w.cores[1].Begin(w.now)
	w.cores[1].Announced(&f, Peer{Addr: farRelay, Remote: true}, &d)
	w.cores[1].End()
	if d.Event != EventLearned {
		t.Fatalf("event %v", d.Event)
	}
	w.wantHop(w.client(0, c, media(9)), p) // in the other shard
	// A rebinding finds it by the SSRC or, without one, by the address.
	w.say(0, p, c, told, 9)
	for _, data := range [][]byte{media(9), {22, 254, 253}} {
		v := w.client(0, clientAddr(0, 7), data)
		if w.wantHop(v, p); !v.Unverified {
			t.Errorf("%x is taken for a flow's", data)
		}
	}
}

func TestFarPeerOutsideIsRefused(t *testing.T) {
	w, _ := newTiersWorld(t, 1, nil)
	var d Delivery
	f := trunk.Frame{Flags: trunk.ToClient, Ingress: 1, Client: clientAddr(0, 0)}
	w.cores[0].Begin(w.now)
	defer w.cores[0].End()
	w.cores[0].Frame(&f, Peer{Addr: netip.MustParseAddrPort("172.17.0.1:9"), Remote: true}, &d)
	if d.Reason != PeerNotAllowed {
		t.Errorf("an edge speaks to our clients: %v", d.Reason)
	}
}

func TestPassage(t *testing.T) {
	w, clusters := newTiersWorld(t, 1, nil)
	c := w.cores[0]
	edge, other := netip.MustParseAddrPort("172.17.0.1:4000"), netip.MustParseAddrPort("172.17.0.2:4000")
	home := w.route(0, 5)
	away := home
	away.Cluster = far
	client := clientAddr(0, 0)
	var p Passage
	for name, tc := range map[string]struct {
		frame  trunk.Frame
		peer   netip.AddrPort
		hops   uint8
		reason Reason
		to     Hop
		ret    netip.AddrPort
	}{
		"to a Host":                     {trunk.Frame{Client: client, Route: home}, edge, 4, None, Hop{Addr: hostAddr(0)}, edge},
		"with the edge's own return":    {trunk.Frame{Client: client, Route: home, Return: other}, edge, 4, None, Hop{Addr: hostAddr(0)}, other},
		"on to a further cluster":       {trunk.Frame{Client: client, Route: away, Return: other}, edge, 2, None, Hop{Addr: farRelay, Remote: true, Route: away}, other},
		"the last hop":                  {trunk.Frame{Client: client, Route: home}, edge, 1, NoHops, Hop{}, netip.AddrPort{}},
		"a return address that is none": {trunk.Frame{Client: client, Route: home, Return: hostAddr(1)}, edge, 4, EdgeNotAllowed, Hop{}, hostAddr(1)},
		"not an edge":                   {trunk.Frame{Client: client, Route: home}, farRelay, 4, EdgeNotAllowed, Hop{}, netip.AddrPort{}},
		"no route":                      {trunk.Frame{Client: client}, edge, 4, NoRoute, Hop{}, netip.AddrPort{}},
		"no client":                     {trunk.Frame{Route: home}, edge, 4, BadClient, Hop{}, netip.AddrPort{}},
	} {
		f := tc.frame
		f.Flags = trunk.TCP | trunk.Unverified | trunk.Validated
		c.FromEdge(&f, tc.hops, tc.peer, &p)
		if p.Reason != tc.reason || p.To != tc.to || f.Return != tc.ret {
			t.Errorf("%s: %+v, return %v", name, p, f.Return)
		}
		if p.Reason == None && (p.Hops != tc.hops-1 || f.Flags != trunk.TCP|trunk.Unverified) {
			t.Errorf("%s: %d hops, flags %b", name, p.Hops, f.Flags)
		}
	}
	clusters.reason = ClusterUnhealthy
	f := trunk.Frame{Client: client, Route: away}
	if c.FromEdge(&f, 4, edge, &p); p.Reason != ClusterUnhealthy {
		t.Errorf("to an unhealthy cluster: %+v", p)
	}

	for name, tc := range map[string]struct {
		route   ufrag.Route
		ret     netip.AddrPort
		hops    uint8
		reason  Reason
		vouched bool
	}{
		"its own route":          {home, edge, 4, None, true},
		"another Host's":         {w.route(1, 5), edge, 4, None, false},
		"another cluster's":      {away, edge, 4, None, false},
		"none":                   {ufrag.Route{}, edge, 4, None, false},
		"the last hop":           {home, edge, 1, NoHops, false},
		"to where no edge is":    {home, farRelay, 4, EdgeNotAllowed, false},
		"with nowhere to return": {home, netip.AddrPort{}, 4, EdgeNotAllowed, false},
	} {
		f := trunk.Frame{Flags: trunk.ToClient | trunk.Validated, Client: client, Route: tc.route, Return: tc.ret, NSSRC: 1}
		if got := c.Vouched(&f, hostAddr(0)); got != tc.vouched && tc.reason != NoHops {
			t.Errorf("%s: announced: %v", name, got)
		}
		c.ToEdge(&f, tc.hops, hostAddr(0), &p)
		if p.Reason != tc.reason {
			t.Errorf("%s: %+v", name, p)
			continue
		}
		if p.Reason != None {
			continue
		}
		if p.To != (Hop{Addr: tc.ret, Remote: true}) || p.Hops != tc.hops-1 || f.Return.IsValid() {
			t.Errorf("%s: %+v, return %v", name, p, f.Return)
		}
		if vouched := f.Flags&trunk.Validated != 0 && f.Route == tc.route && f.NSSRC == 1; vouched != tc.vouched {
			t.Errorf("%s: passed on as %+v", name, f)
		}
	}
	if f, shard := w.owner(client); shard >= 0 {
		t.Errorf("passing on has left a flow: %+v", f)
	}
}

// runTiers is run with Hosts in two clusters: far ones come by one relay, and have
// the addresses of the own.
func runTiers(t *testing.T, data []byte) {
	w, _ := newTiersWorld(t, 2, nil)
	parties := []party{{0, false}, {1, false}, {0, true}, {1, true}}
	type flow struct {
		owner, claimant party
		confirmed       bool
		claimed, since  flowtable.Tick
		contested       bool
	}
	var checks [4][]byte
	for i, p := range parties {
		checks[i] = w.checkFor(w.routeOf(p, 1))
	}
	m := map[netip.AddrPort]*flow{}
	for step := 0; len(data) >= 3; step++ {
		op, sel, more := data[0], int(data[1]), int(data[2])
		data = data[3:]
		c := clientAddr(sel&1, sel>>1&3)
		who := more & 3
		p, f := parties[who], m[c]
		switch op % 4 {
		case 0: // a check, always in the worker of the flow
			w.wantHop(w.client(0, c, checks[who]), p)
			switch {
			case f == nil:
				m[c] = &flow{owner: p, since: w.now}
			case f.owner == p:
			case !f.confirmed && w.now-f.since >= OwnerChangeInterval:
				*f = flow{owner: p, since: w.now}
			default:
				f.contested, f.claimant, f.claimed = true, p, w.now
			}
		case 1: // media
			v := w.client(0, c, media(200))
			if f != nil {
				w.wantHop(v, f.owner)
				break
			}
			for _, up := range v.Upstreams[:v.N] {
				ok := false
				for k, o := range m {
					to := hostAddr(o.owner.host)
					if o.owner.remote {
						to = farRelay
					}
					ok = ok || k.Addr() == c.Addr() && o.confirmed && up.Addr == to && up.Remote == o.owner.remote &&
						up.Route.IsValid() == up.Remote
				}
				if !ok || !v.Unverified {
					t.Fatalf("step %d: unverified packet to %v: %+v", step, up, v)
				}
			}
		case 2: // an answer
			flags := [4]trunk.Flags{0, trunk.Validated, trunk.HasRoute, told}[more>>2&3]
			worker := more >> 4 & 1
			if d := w.say(worker, p, c, flags); d.Reason != None {
				t.Fatalf("step %d: frame dropped: %v", step, d.Reason)
			}
			if flags&trunk.Validated == 0 || p.remote && flags&trunk.HasRoute == 0 {
				break
			}
			switch {
			case f == nil && worker == 0:
				m[c] = &flow{owner: p, confirmed: true, since: w.now}
			case f == nil: // in the other shard, which the client's packets move
				m[c] = &flow{owner: p, confirmed: true, since: w.now}
				v := w.client(0, c, media(201))
				w.wantHop(v, p)
			case f.owner == p:
				f.confirmed = true
			case f.contested && f.claimant == p && w.now-f.claimed <= claimLife && w.now-f.since >= OwnerChangeInterval:
				*f = flow{owner: p, confirmed: true, since: w.now}
			}
		case 3: // time
			w.now += flowtable.Tick(more * 4)
			for _, s := range w.shards {
				s.Lock()
				for k := range m {
					if r := s.Lookup(flowtable.Key{Client: k, Ingress: 1}); r != 0 {
						s.Touch(r, w.now)
					}
				}
				s.Unlock()
			}
		}
		for k, f := range m {
			got, shard := w.owner(k)
			remote := got.Route.Kind != 0 && got.Route.Cluster == far
			owner := party{f.owner.host, remote}
			up := hostAddr(f.owner.host)
			if remote {
				up, owner.host = farRelay, 0
				if got.Route.SameHost(w.routeOf(party{1, true}, 0)) {
					owner.host = 1
				}
			}
			if shard < 0 || owner != f.owner || got.Upstream != up || (got.State == flowtable.Confirmed) != f.confirmed || got.Since != f.since {
				t.Fatalf("step %d: flow of %v: %+v, want %+v", step, k, got, *f)
			}
		}
	}
}

func FuzzOwnershipInTwoTiers(f *testing.F) {
	for seed := range uint64(4) {
		f.Add(randomOps(seed, 50))
	}
	f.Fuzz(func(t *testing.T, data []byte) { runTiers(t, data[:min(len(data), 3*200)]) })
}

func TestOwnershipInTwoTiersAgreesWithModel(t *testing.T) {
	for seed := range uint64(30) {
		runTiers(t, randomOps(seed+90, 200))
	}
}

// FuzzPassage throws what a trunk datagram can hold at a cluster relay: whatever
// it is, it goes to an allowed address with fewer hops, or has one reason.
func FuzzPassage(f *testing.F) {
	f.Add(uint8(4), uint8(0), uint16(0), uint32(0x0a000001), uint32(0xac110001), uint32(0xac110002))
	f.Add(uint8(2), uint8(255), uint16(far), uint32(0x0a000001), uint32(0x0a000001), uint32(0))
	f.Fuzz(func(t *testing.T, hops, flags uint8, cluster uint16, host, from, ret uint32) {
		w, _ := newTiersWorld(t, 1, nil)
		addr := func(n uint32) netip.AddrPort {
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}), 9000)
		}
		fr := trunk.Frame{Flags: trunk.Flags(flags), Client: clientAddr(0, 0), Route: ufrag.Route{Kind: ufrag.KindIPv4, Cluster: cluster & 4095, Host: uint64(host)<<16 | 9000}}
		if ret != 0 {
			fr.Return = addr(ret)
		}
		c := w.cores[0]
		edges, hosts := netip.MustParsePrefix("172.17.0.0/16"), netip.MustParsePrefix("10.0.0.0/8")
		var p Passage
		up := fr
		c.FromEdge(&up, hops, addr(from), &p)
		if p.Reason == None {
			okTo := p.To.Remote && p.To.Addr == farRelay || !p.To.Remote && hosts.Contains(p.To.Addr.Addr())
			if !okTo || p.Hops == 0 || p.Hops >= hops || !edges.Contains(addr(from).Addr()) || !edges.Contains(up.Return.Addr()) || up.Flags&(trunk.ToClient|trunk.Validated) != 0 {
				t.Fatalf("up: %+v, %+v", p, up)
			}
		} else if p.To != (Hop{}) {
			t.Fatalf("up: dropped and sent: %+v", p)
		}
		down := fr
		c.ToEdge(&down, hops, addr(from), &p)
		if p.Reason == None {
			if !p.To.Remote || !edges.Contains(p.To.Addr.Addr()) || p.Hops == 0 || p.Hops >= hops || down.Return.IsValid() {
				t.Fatalf("down: %+v, %+v", p, down)
			}
			if down.Route.IsValid() && down.Flags&trunk.Validated != 0 && addr(host) != addr(from) {
				t.Fatalf("down: %v speaks for %v", addr(from), down.Route)
			}
		} else if p.To != (Hop{}) {
			t.Fatalf("down: dropped and sent: %+v", p)
		}
	})
}

func TestPassageAllocatesNothing(t *testing.T) {
	race.NoAllocs(t)
	w, _ := newTiersWorld(t, 1, nil)
	c := w.cores[0]
	edge, route := netip.MustParseAddrPort("172.17.0.1:4000"), w.route(0, 5)
	var p Passage
	var f trunk.Frame
	if n := testing.AllocsPerRun(1000, func() {
		f = trunk.Frame{Client: clientAddr(0, 0), Route: route}
		c.FromEdge(&f, 4, edge, &p)
		f = trunk.Frame{Flags: trunk.ToClient | trunk.Validated, Client: clientAddr(0, 0), Route: route, Return: edge}
		c.ToEdge(&f, 4, hostAddr(0), &p)
	}); n != 0 || p.Reason != None {
		t.Errorf("%v allocations, %v", n, p.Reason)
	}
}
