package forward

import (
	"hash/maphash"
	"net/netip"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/ufrag"
)

// Which unknown sources are worth a question to the flow store. The store is
// asked by somebody else; here is only who may ask, and what an answer does.

const (
	// absentFor is how long in milliseconds the store's "nothing" is remembered
	// at first: a flow may be on its way into the store. It doubles with each
	// further "nothing", up to absentMost; the client's next check repairs all.
	absentFor  = 1_000
	absentMost = 32_000
	// absentSlots and seenSlots bound the memory. What a flood pushes out of
	// them is asked about again, within the rates.
	absentSlots = 1 << 13
	seenSlots   = 1 << 14
	// seenFor is within how many milliseconds the second packet of a source must
	// come to count as seen. Media has a packet every 20 ms, RTCP one a second.
	seenFor = 2_000
)

// lookups decides which sources may be asked about. The rates together are the
// worker's share of Config.Lookups.
//
// A flood of one packet each from forged sources must not keep a real client
// from its recovery. So half of the rate is for sources that were seen before:
// media comes again within milliseconds, and forged sources do not. And one IP
// address gets at most a quarter, again separately for sources seen before.
type lookups struct {
	seed            maphash.Seed
	fresh, seen     bucket
	each            rate // of fresh, and of seen
	freshIP, seenIP buckets
	perIP           rate
	known           []seenSource
	absent          []absence
}

type seenSource struct {
	hash uint32 // 0: free
	at   flowtable.Tick
}

type absence struct {
	hash uint64 // 0: free
	at   flowtable.Tick
	life uint32 // milliseconds
}

func newLookups(perSecond int, seed maphash.Seed) *lookups {
	share := func(n int) uint32 { return uint32(max(1, perSecond/n)) }
	return &lookups{
		seed:   seed,
		each:   rate{perSecond: share(2), burst: share(1)},
		perIP:  rate{perSecond: share(4), burst: share(2)},
		known:  make([]seenSource, seenSlots),
		absent: make([]absence, absentSlots),
	}
}

func (l *lookups) hash(k flowtable.Key) uint64 { return maphash.Comparable(l.seed, k.Canonical()) | 1 }

func (l *lookups) allow(k flowtable.Key, now flowtable.Tick) bool {
	h := l.hash(k)
	if a := &l.absent[h>>32%absentSlots]; a.hash == h && a.at.Age(now) < a.life {
		return false
	}
	ip := maphash.Comparable(l.seed, k.Client.Addr())
	s := &l.known[h>>16%seenSlots]
	again := s.hash == uint32(h) && s.at.Age(now) < seenFor
	s.hash, s.at = uint32(h), now
	if again {
		return l.seenIP.allow(ip, l.perIP, now) && l.seen.allow(l.each, now)
	}
	return l.freshIP.allow(ip, l.perIP, now) && l.fresh.allow(l.each, now)
}

// nothing notes that the store has nothing for a key.
func (l *lookups) nothing(k flowtable.Key, now flowtable.Tick) {
	h := l.hash(k)
	a := &l.absent[h>>32%absentSlots]
	life := uint32(absentFor)
	if a.hash == h && a.at.Age(now) < 2*absentMost {
		life = min(2*a.life, absentMost)
	}
	*a = absence{hash: h, at: now, life: life}
}

// MayAsk reports whether the flow store may be asked about the source of a packet
// whose verdict said Lookup, and counts it against the limits.
func (c *Core) MayAsk(k flowtable.Key) bool { return c.lookups.allow(k, c.now) }

// Absent notes that the flow store has nothing for a key, or nothing of use.
func (c *Core) Absent(k flowtable.Key) { c.lookups.nothing(k, c.now) }

// Restore makes a flow from what the flow store said about a client, under a MAC
// that was verified, and decides about packets of this client as Client does. The
// store knows the past only: a flow that lives stays as it is, the route has to
// pass the same tests as a ufrag's, and the flow is unconfirmed until its Host
// speaks.
func (c *Core) Restore(k flowtable.Key, route ufrag.Route, local netip.Addr, v *Verdict) {
	*v = Verdict{}
	r := c.find(&Packet{From: k.Client, Ingress: k.Ingress}, v)
	if r == 0 {
		var hop Hop
		if hop, v.Reason = c.resolve(route, k.Client); v.Reason != None {
			return
		}
		var ok bool
		r, ok = c.own.Insert(&flowtable.Flow{
			Key: k, Route: route, Upstream: hop.Addr, Local: local,
			State: flowtable.Unconfirmed, LastUpstream: c.now, Since: c.now,
		})
		if !ok {
			v.Reason = TableFull
			return
		}
		v.Event = EventRestored
	}
	c.follow(r, k.Client, v)
}
