package forward

import (
	"hash/maphash"
	"net/netip"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/ufrag"
)

// Peer is the sender of a frame.
type Peer struct {
	Addr netip.AddrPort
	// Remote peers are relays of other clusters, or Hosts of theirs that answer
	// directly. Which Host a frame comes from, only the route in it tells.
	Remote bool
}

// PeerAllowed reports whether trunk datagrams of a Host at this address are
// welcome.
func (c *Core) PeerAllowed(peer netip.AddrPort) bool { return c.allow.Contains(peer.Addr()) }

// Delivery is the decision about a frame.
type Delivery struct {
	// Reason is None if the payload goes to the frame's client.
	Reason Reason
	// Local is the address of ours to send from, if the flow knows one.
	Local netip.Addr
	Event Event
	// Flow is what Event is about, if it is not EventNone: a copy, since the
	// flow may be in another worker's shard.
	Flow flowtable.Flow
}

// Frame decides about a data frame from a peer whose datagram was authentic
// and whose address is allowed. A frame for one of our ingresses is delivered
// whether there is a flow or not, so replies need no state.
func (c *Core) Frame(f *trunk.Frame, peer Peer, d *Delivery) {
	*d = Delivery{}
	switch {
	case peer.Remote && !c.tiers.remotes.Contains(peer.Addr.Addr()):
		d.Reason = PeerNotAllowed
		return
	case f.Flags&trunk.ToClient == 0:
		d.Reason = TrunkType
		return
	case !c.serves(f.Ingress):
		d.Reason = OtherIngress
		return
	case !usable(f.Client), c.ours(f.Client, netip.Addr{}):
		d.Reason = BadClient
		return
	}
	c.teach(f, peer, d, !c.unlearned)
}

// teach is what a frame tells about its flow: it keeps it alive, confirms it,
// hands it to a claimant, or makes it known after a restart.
func (c *Core) teach(f *trunk.Frame, peer Peer, d *Delivery, learn bool) {
	k := flowtable.Key{Client: f.Client, Ingress: f.Ingress}
	if r := c.own.Lookup(k); r != 0 {
		c.tell(c.own, r, f, peer, d)
		return
	}
	for _, s := range c.shards {
		if s == c.own || !s.MayHave(f.Client.Addr()) {
			continue
		}
		// The flow stays where the client's packets arrive.
		c.own.Unlock()
		s.Lock()
		r := s.Lookup(k)
		if r != 0 {
			c.tell(s, r, f, peer, d)
		}
		s.Unlock()
		c.own.Lock()
		if r != 0 {
			return
		}
	}
	if learn && teaches(f, peer) {
		c.learn(f, peer, d)
	}
}

func (c *Core) tell(t *flowtable.Table, r flowtable.Ref, f *trunk.Frame, peer Peer, d *Delivery) {
	d.Local = t.Local(r)
	validated := teaches(f, peer)
	if c.owns(t, r, f, peer) {
		if !validated {
			t.Touch(r, c.now)
			return
		}
		first := t.State(r) == flowtable.Unconfirmed
		t.Confirm(r, c.now, f.SSRCs[:f.NSSRC])
		if f.Flags&trunk.HasRoute != 0 && t.Route(r) == (ufrag.Route{}) {
			// Learned from a frame without one; an unverified packet needs it.
			t.SetRoute(r, f.Route, peer.Addr)
		}
		if first {
			d.Event = EventConfirmed
			d.Flow = t.Flow(r)
		}
		return
	}
	if !validated {
		return
	}
	route, age, ok := t.Contender(r, c.now)
	if !ok || age > claimLife || !c.mayChange(t, r) {
		return
	}
	if !c.speaksFor(route, f, peer) {
		return
	}
	t.SetOwner(r, route, peer.Addr, c.now)
	t.Confirm(r, c.now, f.SSRCs[:f.NSSRC])
	d.Event = EventMoved
	d.Flow = t.Flow(r)
}

// teaches reports whether a frame says that its client was validated, and by whom.
func teaches(f *trunk.Frame, peer Peer) bool {
	return f.Flags&trunk.Validated != 0 && (!peer.Remote || f.Flags&trunk.HasRoute != 0)
}

// owns reports whether a frame comes from the owner of a flow. One of a remote
// peer that does not say whom it is from keeps a flow alive that leads there.
func (c *Core) owns(t *flowtable.Table, r flowtable.Ref, f *trunk.Frame, peer Peer) bool {
	route := t.Route(r)
	if !peer.Remote {
		return t.Upstream(r) == peer.Addr && !c.remote(route)
	}
	return c.remote(route) && (f.Flags&trunk.HasRoute == 0 || route.SameHost(f.Route))
}

// speaksFor reports whether a frame comes from the Host of a route.
func (c *Core) speaksFor(route ufrag.Route, f *trunk.Frame, peer Peer) bool {
	if !peer.Remote {
		return c.hostOf(route, peer.Addr)
	}
	return c.remote(route) && f.Flags&trunk.HasRoute != 0 && route.SameHost(f.Route)
}

func (c *Core) learn(f *trunk.Frame, peer Peer, d *Delivery) {
	host := maphash.Comparable(c.seed, peer.Addr)
	if peer.Remote {
		if !c.remote(f.Route) {
			return
		}
		// Many Hosts are behind a relay.
		route := f.Route
		route.Session = 0
		host = maphash.Comparable(c.seed, route)
	}
	if !c.perHost.allow(host, learnedPerHost, c.now) {
		return
	}
	n := flowtable.Flow{
		Key:      flowtable.Key{Client: f.Client, Ingress: f.Ingress},
		Upstream: peer.Addr, State: flowtable.Confirmed, TCP: f.Flags&trunk.TCP != 0,
		SSRCs: f.SSRCs, NumSSRCs: f.NSSRC,
		LastUpstream: c.now, Since: c.now,
	}
	if f.Flags&trunk.HasRoute != 0 {
		n.Route = f.Route
	}
	if _, ok := c.own.Insert(&n); ok {
		d.Event = EventLearned
		d.Flow = n
	}
}

// Announced decides about a flow in an announcement: it teaches like a frame
// without a packet.
func (c *Core) Announced(f *trunk.Frame, peer Peer, d *Delivery) {
	*d = Delivery{}
	if peer.Remote && !c.tiers.remotes.Contains(peer.Addr.Addr()) {
		return
	}
	if c.serves(f.Ingress) && usable(f.Client) && !c.ours(f.Client, netip.Addr{}) {
		c.teach(f, peer, d, true)
	}
}

func (c *Core) serves(ingress uint16) bool { return c.ingresses[ingress/64]&(1<<(ingress%64)) != 0 }
