package forward

import (
	"errors"
	"hash/maphash"
	"net/netip"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/stun"
	"github.com/usher-rtc/usher/ufrag"
)

// The limits, all for one worker unless they say otherwise.
const (
	// OwnerChangeInterval is the least time in milliseconds between two changes
	// of a flow's owner.
	OwnerChangeInterval = 1000
	// claimLife is how long in milliseconds a claim to a confirmed flow waits
	// for its owner's word: some check intervals.
	claimLife = 15_000
)

var (
	// A rebinding client sends some 50 to 150 packets a second until its Host
	// has validated the new path, which takes one or two round trips.
	unverifiedPerIP = rate{perSecond: 50, burst: 100}
	unverifiedAll   = rate{perSecond: 5_000, burst: 5_000}
	// Looking for the owner of unknown packets takes other workers' locks, so a
	// flood must not do it for each.
	searches = rate{perSecond: 20_000, burst: 2_000}
	// After a restart a Host teaches all its flows at once.
	learnedPerHost = rate{perSecond: 2_000, burst: 10_000}
)

// Config describes a Core. All fields are required unless they say otherwise.
type Config struct {
	Cluster  uint16
	Codec    ufrag.Codec
	Resolver ufrag.Resolver
	// Allow lists where packets may go, and which peers may send frames. Without
	// any, no cluster is this relay's own and Cluster means nothing.
	Allow []netip.Prefix
	// Clusters finds the relays of other clusters; nil if there are none.
	Clusters Clusters
	// AllowEdges lists which relays may send packets of their clients to be
	// passed on; AllowClusters whose frames for own clients are believed.
	AllowEdges, AllowClusters []netip.Prefix
	// SkipIntegrity turns the check of MESSAGE-INTEGRITY off, for passwords
	// that the codec cannot derive.
	SkipIntegrity bool
	// SkipLearning makes frames teach no flows; announcements still do.
	SkipLearning bool
	// Ingresses are the ids of this relay's ingresses.
	Ingresses []uint16
	// Public are the addresses of those, as seen here and by clients: no client has one.
	Public []netip.AddrPort
	// Shards are the flow tables of all workers; Shards[Own] is this core's.
	Shards []*flowtable.Table
	Own    int
	// Lookups is how many questions to the flow store a second this core may
	// permit. 0 means that there is no store.
	Lookups int
}

// Core decides for one worker. It is used by one goroutine at a time, between
// Begin and End.
type Core struct {
	cluster   uint16
	codec     ufrag.Codec
	resolver  ufrag.Resolver
	allow     *ufrag.AllowList
	skip      bool
	unlearned bool // frames teach no flows
	tiers     tiers
	ingresses [65536 / 64]uint64 // a bit for each id
	ports     [65536 / 64]uint64 // a bit for each port of public
	public    map[netip.AddrPort]bool
	shards    []*flowtable.Table
	own       *flowtable.Table
	now       flowtable.Tick

	msg  stun.Message
	auth stun.Authenticator
	pw   [256]byte
	seed maphash.Seed

	search, unverified bucket
	perIP, perHost     buckets
	pins               [256]pinned
	lookups            *lookups // nil without a store
}

// pinned remembers where unverified packets of a client went by SSRC, so that its
// answers to the owner's checks, which have no SSRC, go there too.
type pinned struct {
	client netip.AddrPort
	owner  flowtable.Owner
	at     flowtable.Tick
}

const pinLife = 5_000 // milliseconds; longer than the owner's checks take

// New makes a Core. The configuration has been validated.
func New(c Config) *Core {
	k := &Core{
		unlearned: c.SkipLearning,

		cluster:  c.Cluster,
		codec:    c.Codec,
		resolver: c.Resolver,
		allow:    ufrag.Allow(c.Allow, c.Resolver),
		skip:     c.SkipIntegrity,
		tiers:    newTiers(&c),
		shards:   c.Shards,
		own:      c.Shards[c.Own],
		public:   make(map[netip.AddrPort]bool),
		seed:     maphash.MakeSeed(),
	}
	if c.Lookups > 0 {
		k.lookups = newLookups(c.Lookups, k.seed)
	}
	for _, id := range c.Ingresses {
		k.ingresses[id/64] |= 1 << (id % 64)
	}
	for _, ap := range c.Public {
		k.public[netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())] = true
		k.ports[ap.Port()/64] |= 1 << (ap.Port() % 64)
	}
	return k
}

// Begin starts a batch: it takes the lock of the core's shard and lets some
// flows expire.
func (c *Core) Begin(now flowtable.Tick) {
	c.own.Lock()
	c.now = now
	c.own.Expire(now)
}

// End ends a batch and releases the lock.
func (c *Core) End() { c.own.Unlock() }

// Event says what a packet or frame did to its flow.
type Event uint8

const (
	// EventNone means: nothing.
	EventNone Event = iota
	// EventCreated means: a check made a flow.
	EventCreated
	// EventLearned means: a peer's validated frame made a flow.
	EventLearned
	// EventMoved means: the flow has another owner now.
	EventMoved
	// EventContested means: another owner has registered a claim.
	EventContested
	// EventAdopted means: the flow came from another worker's shard.
	EventAdopted
	// EventRerouted means: the owner is the same Host, with another session or at
	// another address.
	EventRerouted
	// EventConfirmed means: the flow's owner has had an answer from the client.
	EventConfirmed
	// EventRestored means: the flow came from the flow store.
	EventRestored
)

// Packet is a datagram from a client.
type Packet struct {
	Data      []byte
	From      netip.AddrPort // unmapped
	Local     netip.Addr     // the address it was sent to, on a wildcard listener
	Ingress   uint16
	TCP       bool
	Truncated bool // Data is only the beginning
}

// Verdict is the decision about a packet.
type Verdict struct {
	// Reason is None if the packet goes to Upstreams[:N].
	Reason    Reason
	N         int
	Upstreams [2]Hop
	// Unverified packets belong to no flow; mark their frames.
	Unverified bool
	// Lookup packets may belong to a flow that this relay does not know: the flow
	// store may, if MayAsk allows it. If Reason is None, they went unverified to
	// where they most likely belong.
	Lookup bool
	Event  Event
	// Flow is the packet's flow in the core's shard, until End.
	Flow flowtable.Ref
}

// Hop is where a packet goes next.
type Hop struct {
	// Addr is a Host's, or that of a relay of another cluster if Remote is set.
	Addr   netip.AddrPort
	Remote bool
	// Route goes into the frame if it is valid: always towards another relay, and
	// that of the flow with an unverified packet's SSRC, if there is one, since
	// its owner may have many sessions behind this IP address.
	Route ufrag.Route
}

func (v *Verdict) to(h Hop) { v.Upstreams[0], v.N = h, 1 }

// Client decides about a packet from a client.
func (c *Core) Client(p *Packet, v *Verdict) {
	*v = Verdict{}
	if v.Reason = c.screen(p); v.Reason != None {
		return
	}
	class := stun.Classify(p.Data)
	if class == stun.ClassSTUN {
		if problem := stun.Parse(p.Data, &c.msg); problem != stun.OK {
			v.Reason = stunReason(problem)
			return
		}
		if c.msg.Type.IsRequest() && c.msg.Username != nil {
			c.check(p, v)
			return
		}
	}
	if r := c.find(p, v); r != 0 {
		if !c.own.Local(r).IsValid() {
			c.own.SetLocal(r, p.Local) // learned from its Host
		}
		c.follow(r, p.From, v)
		return
	}
	c.recover(p, class, v)
}

func (c *Core) screen(p *Packet) Reason {
	switch {
	case p.Truncated:
		return Oversize
	case len(p.Data) == 0:
		return Empty
	case !usable(p.From), c.ours(p.From, p.Local):
		return BadSource
	}
	return None
}

// ours reports whether an address is one that clients send to: on a wildcard listener
// that is local, the one that a packet was sent to. Whoever has a session could forge
// it, and what Hosts send there would come back as a client's: two sessions that know
// each other's credentials would be each other's clients, with nobody outside.
func (c *Core) ours(ap netip.AddrPort, local netip.Addr) bool {
	port := ap.Port()
	return c.ports[port/64]&(1<<(port%64)) != 0 && (ap.Addr() == local || c.public[ap])
}

// usable reports whether a client can have this address. Link-local addresses
// mean something only with a zone, and frames have no room for one.
func usable(ap netip.AddrPort) bool {
	a := ap.Addr()
	return ap.Port() != 0 && a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() &&
		(a.Is4() || !a.IsLinkLocalUnicast()) && a != broadcast
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

func stunReason(p stun.Problem) Reason {
	switch p {
	case stun.ProblemUsernameTooLong:
		return UsernameTooLong
	case stun.ProblemFingerprint, stun.ProblemFingerprintNotLast:
		return STUNFingerprint
	default:
		return STUNMalformed
	}
}

func ufragReason(err error) Reason {
	switch {
	case errors.Is(err, ufrag.ErrKeyID):
		return UfragKey
	case errors.Is(err, ufrag.ErrCheck):
		return UfragCheck
	default:
		return UfragInvalid
	}
}

// check decides about a request with a USERNAME: its ufrag says where it goes.
func (c *Core) check(p *Packet, v *Verdict) {
	local, _, ok := c.msg.SplitUsername()
	if !ok {
		v.Reason = UsernameForm
		return
	}
	route, err := c.codec.Decode(local)
	if err != nil {
		v.Reason = ufragReason(err)
		return
	}
	hop, reason := c.resolve(route, p.From)
	if reason != None {
		v.Reason = reason
		return
	}
	r := c.find(p, v)
	if r == 0 {
		r = c.create(p, route, hop.Addr, local, v)
	} else if v.Reason = c.claim(r, route, hop.Addr, local, v); v.Reason != None {
		r = 0
	}
	if r == 0 {
		v.Event = EventNone
		return
	}
	// Answers leave from where the client sent to, and anybody can write its address
	// on a packet to another one.
	if was := c.own.Local(r); was != p.Local && (!was.IsValid() || c.authentic(local)) {
		c.own.SetLocal(r, p.Local)
	}
	v.Flow = r
	v.to(hop)
}

// follow sends a packet to the owner of its flow.
func (c *Core) follow(r flowtable.Ref, client netip.AddrPort, v *Verdict) {
	v.Flow = r
	if c.tiers.clusters != nil {
		if route := c.own.Route(r); c.remote(route) {
			// Not where the last packet went: that relay may be gone.
			var hop Hop
			if hop, v.Reason = c.resolve(route, client); v.Reason == None {
				v.to(hop)
			}
			return
		}
	}
	v.N, v.Upstreams[0].Addr = 1, c.own.Upstream(r)
}

// resolve finds where a client's packets for a route may go.
func (c *Core) resolve(route ufrag.Route, client netip.AddrPort) (Hop, Reason) {
	if c.remote(route) {
		return c.pick(route, client)
	}
	up, ok := c.allow.Resolve(route)
	if ok {
		return Hop{Addr: up}, None
	}
	if _, ok := c.resolver.Resolve(route); ok {
		return Hop{}, UpstreamNotAllowed
	}
	return Hop{}, Unresolved
}

func (c *Core) create(p *Packet, route ufrag.Route, up netip.AddrPort, local []byte, v *Verdict) flowtable.Ref {
	if !c.authentic(local) {
		v.Reason = BadIntegrity
		return 0
	}
	r, ok := c.own.Insert(&flowtable.Flow{
		Key:   flowtable.Key{Client: p.From, Ingress: p.Ingress},
		Route: route, Upstream: up, Local: p.Local, TCP: p.TCP,
		State: flowtable.Unconfirmed, LastUpstream: c.now, Since: c.now,
	})
	if !ok {
		v.Reason = TableFull
		return 0
	}
	v.Event = EventCreated
	return r
}

// claim is what a check for route means for the flow on its address.
func (c *Core) claim(r flowtable.Ref, route ufrag.Route, up netip.AddrPort, local []byte, v *Verdict) Reason {
	had, hadUp := c.own.Route(r), c.own.Upstream(r)
	if had == route && hadUp == up {
		return None
	}
	if !c.authentic(local) {
		return BadIntegrity
	}
	switch {
	case had.SameHost(route) || hadUp == up && !c.remote(had) && !c.remote(route):
		// Another session of one Host, which tells them apart itself, an ICE
		// restart, or a Host that the resolver now finds somewhere else.
		c.own.SetRoute(r, route, up)
		v.Event = EventRerouted
	case c.own.State(r) == flowtable.Unconfirmed && c.mayChange(c.own, r):
		c.own.SetOwner(r, route, up, c.now)
		v.Event = EventMoved
	default:
		c.own.Contend(r, route, c.now)
		v.Event = EventContested
	}
	return None
}

func (c *Core) mayChange(t *flowtable.Table, r flowtable.Ref) bool {
	return t.Since(r).Age(c.now) >= OwnerChangeInterval
}

// authentic checks the integrity of c.msg against its ufrag's password.
func (c *Core) authentic(local []byte) bool {
	if c.skip {
		return true
	}
	if !c.msg.HasIntegrity {
		return false
	}
	pw, err := c.codec.AppendPassword(c.pw[:0], local)
	return err == nil && c.auth.Check(&c.msg, pw)
}

// find looks for a packet's flow: in the own shard, and on a miss in the other
// workers', because the kernel may have moved a client to another socket. A
// flow found there moves here.
func (c *Core) find(p *Packet, v *Verdict) flowtable.Ref {
	k := flowtable.Key{Client: p.From, Ingress: p.Ingress}
	if r := c.own.Lookup(k); r != 0 || len(c.shards) == 1 || c.own.Full() {
		return r
	}
	for _, s := range c.shards {
		if s == c.own || !s.MayHave(p.From.Addr()) {
			continue
		}
		f, ok := c.steal(s, k)
		if !ok {
			continue
		}
		if r, ok := c.own.Insert(&f); ok {
			v.Event = EventAdopted
			return r
		}
	}
	return 0
}

// steal takes a flow out of another shard. Two workers may do this to each
// other at once, so it lets go of the own lock first.
func (c *Core) steal(s *flowtable.Table, k flowtable.Key) (f flowtable.Flow, ok bool) {
	c.own.Unlock()
	s.Lock()
	if r := s.Lookup(k); r != 0 {
		f, ok = s.Flow(r), true
		s.Remove(r)
	}
	s.Unlock()
	c.own.Lock()
	return f, ok
}
