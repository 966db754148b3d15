package forward

import (
	"hash/maphash"
	"net/netip"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/ufrag"
)

// PeerAllowed reports whether trunk datagrams from this address are welcome.
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
func (c *Core) Frame(f *trunk.Frame, peer netip.AddrPort, d *Delivery) {
	*d = Delivery{}
	switch {
	case f.Flags&trunk.ToClient == 0:
		d.Reason = TrunkType
		return
	case !c.serves(f.Ingress):
		d.Reason = OtherIngress
		return
	case !usable(f.Client):
		d.Reason = BadClient
		return
	}
	c.teach(f, peer, d)
}

// teach is what a frame tells about its flow: it keeps it alive, confirms it,
// hands it to a claimant, or makes it known after a restart.
func (c *Core) teach(f *trunk.Frame, peer netip.AddrPort, d *Delivery) {
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
	if f.Flags&trunk.Validated != 0 {
		c.learn(f, peer, d)
	}
}

func (c *Core) tell(t *flowtable.Table, r flowtable.Ref, f *trunk.Frame, peer netip.AddrPort, d *Delivery) {
	d.Local = t.Local(r)
	validated := f.Flags&trunk.Validated != 0
	if t.Upstream(r) == peer {
		if !validated {
			t.Touch(r, c.now)
			return
		}
		first := t.State(r) == flowtable.Unconfirmed
		t.Confirm(r, c.now, f.SSRCs[:f.NSSRC])
		if f.Flags&trunk.HasRoute != 0 && t.Route(r) == (ufrag.Route{}) {
			// Learned from a frame without one; an unverified packet needs it.
			t.SetRoute(r, f.Route, peer)
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
	if up, ok := c.allow.Resolve(route); !ok || up != peer {
		return
	}
	t.SetOwner(r, route, peer, c.now)
	t.Confirm(r, c.now, f.SSRCs[:f.NSSRC])
	d.Event = EventMoved
	d.Flow = t.Flow(r)
}

func (c *Core) learn(f *trunk.Frame, peer netip.AddrPort, d *Delivery) {
	if !c.perHost.allow(maphash.Comparable(c.seed, peer), learnedPerHost, c.now) {
		return
	}
	n := flowtable.Flow{
		Key:      flowtable.Key{Client: f.Client, Ingress: f.Ingress},
		Upstream: peer, State: flowtable.Confirmed, TCP: f.Flags&trunk.TCP != 0,
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
func (c *Core) Announced(f *trunk.Frame, peer netip.AddrPort, d *Delivery) {
	*d = Delivery{}
	if c.serves(f.Ingress) && usable(f.Client) {
		c.teach(f, peer, d)
	}
}

func (c *Core) serves(ingress uint16) bool { return c.ingresses[ingress/64]&(1<<(ingress%64)) != 0 }
