package forward

import (
	"net/netip"

	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/ufrag"
)

// Clusters finds a relay of another cluster that takes packets at present, for a
// client's packets. The reason is None, UnknownCluster, ClusterUnhealthy or
// UpstreamNotAllowed. One client gets the same relay as long as that one is well.
// It is called for each packet: it neither blocks nor allocates.
type Clusters interface {
	Pick(cluster uint16, client netip.AddrPort) (netip.AddrPort, Reason)
}

// tiers is what a core knows about other relays. As an edge it sends its clients'
// packets to relays of other clusters; as a cluster relay it passes packets on
// between edges and its own Hosts, and keeps nothing about them.
type tiers struct {
	own      bool // there is an own cluster
	clusters Clusters
	// edges may send packets of their clients; remotes may send packets for ours.
	edges, remotes *ufrag.AllowList
}

func newTiers(c *Config) tiers {
	return tiers{
		own: len(c.Allow) > 0, clusters: c.Clusters,
		edges: ufrag.Allow(c.AllowEdges, nil), remotes: ufrag.Allow(c.AllowClusters, nil),
	}
}

// remote reports whether a route leads to another cluster. The zero route leads
// nowhere: it is that of a flow whose Host has not told it.
func (c *Core) remote(r ufrag.Route) bool {
	return r.Kind != 0 && (r.Cluster != c.cluster || !c.tiers.own)
}

func (c *Core) pick(route ufrag.Route, client netip.AddrPort) (Hop, Reason) {
	if c.tiers.clusters == nil {
		return Hop{}, OtherCluster
	}
	up, reason := c.tiers.clusters.Pick(route.Cluster, client)
	if reason != None {
		return Hop{}, reason
	}
	return Hop{Addr: up, Remote: true, Route: route}, None
}

// RelayAllowed reports whether another relay at this address may send trunk
// datagrams, under the keys for relays.
func (c *Core) RelayAllowed(peer netip.AddrPort) bool {
	return c.tiers.edges.Contains(peer.Addr()) || c.tiers.remotes.Contains(peer.Addr())
}

// EdgeAllowed reports whether a relay at this address may send packets of its
// clients to be passed on.
func (c *Core) EdgeAllowed(peer netip.AddrPort) bool { return c.tiers.edges.Contains(peer.Addr()) }

// Next finds where packets of a flow go, as Client does.
func (c *Core) Next(route ufrag.Route, upstream, client netip.AddrPort) (Hop, Reason) {
	if c.remote(route) {
		return c.resolve(route, client)
	}
	return Hop{Addr: upstream}, None
}

// Passage is the decision about a frame that is another relay's.
type Passage struct {
	// Reason is None if the frame goes to To, with Hops left.
	Reason Reason
	To     Hop
	Hops   uint8
}

// FromEdge decides about a client's packet that another relay has sent, in an
// authentic datagram that had this many hops left. It looks at the frame alone and
// leaves nothing behind. A frame without a return address gets the address it came
// from: the relay that sent it may not know how it is seen.
func (c *Core) FromEdge(f *trunk.Frame, hops uint8, peer netip.AddrPort, p *Passage) {
	*p = Passage{}
	switch {
	case !c.EdgeAllowed(peer), f.Return.IsValid() && !c.EdgeAllowed(f.Return):
		p.Reason = EdgeNotAllowed
		return
	case !f.Route.IsValid():
		p.Reason = NoRoute
		return
	case !usable(f.Client):
		p.Reason = BadClient
		return
	case hops <= 1:
		p.Reason = NoHops
		return
	}
	if p.To, p.Reason = c.resolve(f.Route, f.Client); p.Reason != None {
		return
	}
	p.Hops = hops - 1
	f.Flags &= trunk.TCP | trunk.Unverified
	if !f.Return.IsValid() {
		f.Return = peer
	}
}

// ToEdge decides about a frame from an own Host for another relay's client: it
// goes to its return address.
func (c *Core) ToEdge(f *trunk.Frame, hops uint8, peer netip.AddrPort, p *Passage) {
	*p = Passage{}
	switch {
	case !c.EdgeAllowed(f.Return):
		p.Reason = EdgeNotAllowed
		return
	case !usable(f.Client):
		p.Reason = BadClient
		return
	case hops <= 1:
		p.Reason = NoHops
		return
	}
	p.To, p.Hops = Hop{Addr: f.Return, Remote: true}, hops-1
	f.Return = netip.AddrPort{}
	c.vouch(f, peer)
}

// vouch lets a frame teach the edge only about its sender: the edge cannot see
// which Host a frame comes from, and believes the route in it.
func (c *Core) vouch(f *trunk.Frame, peer netip.AddrPort) {
	if f.Flags&trunk.Validated == 0 && !f.Route.IsValid() {
		return
	}
	if c.hostOf(f.Route, peer) {
		return
	}
	f.Flags &^= trunk.Validated
	f.Route, f.NSSRC = ufrag.Route{}, 0
}

// hostOf reports whether a route is that of the own Host at an address.
func (c *Core) hostOf(route ufrag.Route, peer netip.AddrPort) bool {
	if c.remote(route) {
		return false
	}
	up, ok := c.allow.Resolve(route)
	return ok && up == peer
}

// Vouched reports whether a flow in an announcement of an own Host may be passed
// on to its return address, and prepares it.
func (c *Core) Vouched(f *trunk.Frame, peer netip.AddrPort) bool {
	return c.EdgeAllowed(f.Return) && usable(f.Client) && c.hostOf(f.Route, peer)
}
