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
		found.upstream, found.route, ok = c.bySSRC(ip, ssrc)
	}
	switch {
	case ok:
		*pin = found
		v.to(found.upstream)
		v.Route = found.route
		v.Lookup = false
	case pin.client == p.From && pin.at.Age(c.now) < pinLife:
		v.to(pin.upstream)
		v.Route = pin.route
		v.Lookup = false
	default:
		c.owners(ip, v)
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

// bySSRC finds the owner and route of the flow with this IP address and SSRC, in
// any shard.
func (c *Core) bySSRC(ip netip.Addr, ssrc uint32) (up netip.AddrPort, route ufrag.Route, ok bool) {
	for i := range c.shards {
		s := c.enter(i, ip)
		if s == nil {
			continue
		}
		if r := s.BySSRC(ip, ssrc, c.now); r != 0 {
			up, route, ok = s.Upstream(r), s.Route(r), true
		}
		c.leave(s)
		if ok {
			return up, route, true
		}
	}
	return up, route, false
}

// owners puts at most two owners of confirmed flows of an IP address into v.
func (c *Core) owners(ip netip.Addr, v *Verdict) {
	found := v.Upstreams[:0]
	for i := range c.shards {
		if s := c.enter(i, ip); s != nil {
			found = s.Owners(ip, found)
			c.leave(s)
		}
	}
	v.N = len(found)
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
