package forward

import (
	"hash/maphash"
	"net/netip"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/stun"
	"github.com/usher-rtc/usher/ufrag"
)

// recover decides about a packet without a flow that is not a routable check.
// Most likely a NAT has given a client a new port; whose client it is, the
// confirmed flows of its IP address tell.
func (c *Core) recover(p *Packet, class stun.Class, v *Verdict) {
	v.Reason = NoFlow
	if class == stun.ClassOther || class == stun.ClassSTUN && c.msg.Type.IsRequest() {
		return
	}
	v.Lookup = c.lookups != nil
	if class == stun.ClassSTUN && !c.msg.Type.IsSuccess() && !c.msg.Type.IsError() {
		return // a keepalive authenticates nobody: no Host would believe it
	}
	ip := p.From.Addr()
	if !c.known(ip) {
		return
	}
	if !c.search.allow(searches, c.now) {
		v.Reason = UnverifiedLimit
		return
	}
	pin := &c.pins[maphash.Comparable(c.seed, p.From)%uint64(len(c.pins))]
	ssrc, hasSSRC := uint32(0), false
	if class == stun.ClassRTP {
		ssrc, hasSSRC = stun.SSRC(p.Data)
	}
	found := pinned{client: p.From, at: c.now}
	ok := false
	if hasSSRC {
		found.owner, ok = c.bySSRC(ip, ssrc)
	}
	switch {
	case ok:
		*pin = found
		c.guess(found.owner, p.From, v)
		v.Lookup = false
	case pin.client == p.From && pin.at.Age(c.now) < pinLife:
		c.guess(pin.owner, p.From, v)
		v.Lookup = false
	default:
		c.owners(p.From, v)
	}
	if v.N == 0 {
		return
	}
	if !c.perIP.allow(maphash.Comparable(c.seed, ip), unverifiedPerIP, c.now) ||
		!c.unverified.allow(unverifiedAll, c.now) {
		v.N = 0
		v.Reason = UnverifiedLimit
		return
	}
	v.Reason = None
	v.Unverified = true
}

// known reports whether any worker may have flows of an IP address.
func (c *Core) known(ip netip.Addr) bool {
	for _, s := range c.shards {
		if s.MayHave(ip) {
			return true
		}
	}
	return false
}

// guess adds an owner, by way of a relay if it is in another cluster.
func (c *Core) guess(o flowtable.Owner, client netip.AddrPort, v *Verdict) {
	hop := Hop{Addr: o.Upstream, Route: o.Route}
	if c.remote(o.Route) {
		var reason Reason
		if hop, reason = c.resolve(o.Route, client); reason != None {
			v.Reason = reason
			return
		}
	}
	v.Upstreams[v.N] = hop
	v.N++
}

// bySSRC finds the owner of the flow with this IP address and SSRC, and the flow's
// route, in any shard.
func (c *Core) bySSRC(ip netip.Addr, ssrc uint32) (o flowtable.Owner, ok bool) {
	for i := range c.shards {
		s := c.enter(i, ip)
		if s == nil {
			continue
		}
		if r := s.BySSRC(ip, ssrc, c.now); r != 0 {
			o, ok = flowtable.Owner{Upstream: s.Upstream(r), Route: s.Route(r)}, true
		}
		c.leave(s)
		if ok {
			return o, true
		}
	}
	return o, false
}

// owners puts at most two owners of confirmed flows of an IP address into v.
func (c *Core) owners(client netip.AddrPort, v *Verdict) {
	var room [len(v.Upstreams)]flowtable.Owner
	found := room[:0]
	for i := range c.shards {
		if s := c.enter(i, client.Addr()); s != nil {
			found = s.Owners(client.Addr(), found)
			c.leave(s)
		}
	}
	for _, o := range found {
		if !c.remote(o.Route) {
			// One of the session's at random would not be the right one.
			o.Route = ufrag.Route{}
		}
		c.guess(o, client, v)
	}
}

// enter locks the i-th shard if it may have flows of an IP address, leave
// undoes it. At no time are two shards locked.
func (c *Core) enter(i int, ip netip.Addr) *flowtable.Table {
	s := c.shards[i]
	if !s.MayHave(ip) {
		return nil
	}
	if s != c.own {
		c.own.Unlock()
		s.Lock()
	}
	return s
}

func (c *Core) leave(s *flowtable.Table) {
	if s != c.own {
		s.Unlock()
		c.own.Lock()
	}
}
