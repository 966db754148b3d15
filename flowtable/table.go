package flowtable

import (
	"hash/maphash"
	"math/bits"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/usher-rtc/usher/internal/config"
	"github.com/usher-rtc/usher/ufrag"
)

// ConfigError is returned by [New] and names the field that is wrong.
type ConfigError = config.Error

// Defaults of Config, and the size limit of a table.
const (
	DefaultMaxFlows           = 1 << 18
	DefaultIdleTimeout        = 30 * time.Second
	DefaultUnconfirmedTimeout = 10 * time.Second
	// MaxFlowsLimit is the largest MaxFlows of one table: a Ref shares its 32
	// bits with a piece of the hash.
	MaxFlowsLimit = 1<<24 - 2
)

// Removal says why the table itself removed a flow.
type Removal uint8

const (
	// Expired flows were idle for longer than their state allows.
	Expired Removal = iota + 1
	// Evicted flows were unconfirmed and had to make room.
	Evicted
)

// String returns "expired", "evicted" or "none".
func (r Removal) String() string {
	switch r {
	case Expired:
		return "expired"
	case Evicted:
		return "evicted"
	default:
		return "none"
	}
}

// Config describes a table. The zero value is usable.
type Config struct {
	// MaxFlows is the most flows the table holds. 0 means DefaultMaxFlows.
	MaxFlows int
	// MaxUnconfirmed is the most of these that may be unconfirmed; one more
	// evicts the unconfirmed flow that was idle longest. 0 means a quarter of
	// MaxFlows.
	MaxUnconfirmed int
	// IdleTimeout is how long a confirmed flow lives without traffic from its
	// upstream. 0 means DefaultIdleTimeout; the limit is a week.
	IdleTimeout time.Duration
	// UnconfirmedTimeout is the same for an unconfirmed flow. 0 means
	// DefaultUnconfirmedTimeout.
	UnconfirmedTimeout time.Duration
	// OnRemove, if set, is called under the lock for every flow that expires
	// or is evicted, just before it goes; r is still valid. Flows that the
	// caller removes are not reported.
	OnRemove func(t *Table, r Ref, why Removal)
}

// Counters of a table since it was made. Inserted - Removed - Expired -
// Evicted is the number of flows in it.
type Counters struct {
	Inserted, Removed, Expired, Evicted uint64
}

// Ref is a flow's place in its table. It is valid until the flow is removed
// and must not be kept beyond the lock. 0 is no flow.
type Ref uint32

const (
	chunkBits = 10
	chunkLen  = 1 << chunkBits
)

// Table holds the flows of one worker. All methods need its lock unless they
// say otherwise.
type Table struct {
	mu   sync.Mutex
	seed maphash.Seed
	// secret is the key of the key index's hash.
	secret [4]uint64

	hot  [][]slot // chunks; parallel to cold
	cold [][]links
	free Ref // list through links.ipNext
	high Ref // slots 1..high have been handed out once

	keys     []uint32 // open addressing: Ref, and 8 bits of hash on top
	keyMask  uint64
	keyMax   int             // the most entries of keys
	keyRoom  int             // how many flows keys has room for
	ips      []atomic.Uint32 // heads of chains; read without the lock by MayHave
	ipMask   uint64
	ssrcs    []uint32 // open addressing: Ref, which SSRC (2 bits), 6 bits of hash
	ssrcMask uint64
	ssrcLen  int
	ssrcMax  int

	n, max            int
	unconf, unconfMax int
	uncHead, uncTail  Ref // unconfirmed flows, longest idle first

	idle, unconfIdle uint32
	sweepPos         Ref
	sweepTime        Tick
	sweepDebt        uint64

	locals     []netip.Addr
	localIndex map[netip.Addr]uint16
	contenders [contenderSlots]contender

	onRemove func(*Table, Ref, Removal)
	counters Counters
}

// contenderSlots bounds the memory of contests. Two flows that share a slot
// overwrite each other's contender, which costs the loser one check interval.
const contenderSlots = 512

type contender struct {
	ref   Ref
	since Tick
	route ufrag.Route
}

// New makes an empty table.
func New(c Config) (*Table, error) {
	if c.MaxFlows == 0 {
		c.MaxFlows = DefaultMaxFlows
	}
	if c.MaxFlows < 1 || c.MaxFlows > MaxFlowsLimit {
		return nil, config.Errorf("MaxFlows", "%d is not in 1..%d", c.MaxFlows, MaxFlowsLimit)
	}
	if c.MaxUnconfirmed == 0 {
		c.MaxUnconfirmed = max(1, c.MaxFlows/4)
	}
	if c.MaxUnconfirmed < 1 || c.MaxUnconfirmed > c.MaxFlows {
		return nil, config.Errorf("MaxUnconfirmed", "%d is not in 1..MaxFlows (%d)", c.MaxUnconfirmed, c.MaxFlows)
	}
	idle, err := ticks("IdleTimeout", c.IdleTimeout, DefaultIdleTimeout)
	if err != nil {
		return nil, err
	}
	unconf, err := ticks("UnconfirmedTimeout", c.UnconfirmedTimeout, DefaultUnconfirmedTimeout)
	if err != nil {
		return nil, err
	}
	t := &Table{
		seed: maphash.MakeSeed(),
		max:  c.MaxFlows, unconfMax: c.MaxUnconfirmed,
		idle: idle, unconfIdle: unconf,
		locals:     make([]netip.Addr, 1),
		localIndex: make(map[netip.Addr]uint16),
		onRemove:   c.OnRemove,
	}
	for i := range t.secret {
		t.secret[i] = maphash.Comparable(t.seed, i)
	}
	t.keyMax = pow2(c.MaxFlows + c.MaxFlows/3 + 1)
	t.setKeys(min(t.keyMax, firstKeys))
	ips := pow2(c.MaxFlows)
	t.ips, t.ipMask = make([]atomic.Uint32, ips), uint64(ips-1)
	// Room for three SSRCs a flow: audio, video and its retransmission. What
	// does not fit is not indexed and found by address only.
	ssrcs := pow2(4 * c.MaxFlows)
	if c.MaxFlows*3 <= ssrcs/2 {
		ssrcs /= 2
	}
	t.ssrcs, t.ssrcMask, t.ssrcMax = make([]uint32, ssrcs), uint64(ssrcs-1), ssrcs/4*3
	return t, nil
}

func ticks(field string, d, def time.Duration) (uint32, error) {
	if d == 0 {
		d = def
	}
	if d < time.Millisecond || d > 7*24*time.Hour {
		return 0, config.Errorf(field, "%v is not between 1ms and a week", d)
	}
	return uint32(d / time.Millisecond), nil
}

func pow2(n int) int { return 1 << bits.Len(uint(max(n, 2)-1)) }

// Lock takes the table's lock. Hold at most one table's lock at a time.
func (t *Table) Lock() { t.mu.Lock() }

// Unlock releases the table's lock.
func (t *Table) Unlock() { t.mu.Unlock() }

// Len is the number of flows.
func (t *Table) Len() int { return t.n }

// Full reports whether Insert would have to evict a flow, or to refuse.
func (t *Table) Full() bool { return t.n >= t.max }

// Unconfirmed is how many of the flows are unconfirmed.
func (t *Table) Unconfirmed() int { return t.unconf }

// Counters returns what happened to flows so far.
func (t *Table) Counters() Counters { return t.counters }

func (t *Table) at(r Ref) *slot {
	i := uint32(r - 1)
	return &t.hot[i>>chunkBits][i&(chunkLen-1)]
}

func (t *Table) link(r Ref) *links {
	i := uint32(r - 1)
	return &t.cold[i>>chunkBits][i&(chunkLen-1)]
}

// Lookup finds a flow, or returns 0.
func (t *Table) Lookup(k Key) Ref {
	r, _ := t.find(wordsOf(k))
	return r
}

// Flow returns a copy of everything known about a flow.
func (t *Table) Flow(r Ref) Flow {
	s := t.at(r)
	f := Flow{
		Key:          s.key.unpack(),
		Route:        s.route(),
		Upstream:     s.up.unpack(),
		Local:        t.locals[s.local],
		State:        s.state,
		TCP:          s.flags&flagTCP != 0,
		LastUpstream: s.last,
		Since:        s.owned,
		NumSSRCs:     s.nssrc,
	}
	if s.nssrc > 0 {
		f.SSRCs = t.link(r).ssrc
	}
	return f
}

// Route returns a flow's route.
func (t *Table) Route(r Ref) ufrag.Route { return t.at(r).route() }

// Upstream returns a flow's upstream.
func (t *Table) Upstream(r Ref) netip.AddrPort { return t.at(r).up.unpack() }

// State returns a flow's state.
func (t *Table) State(r Ref) State { return t.at(r).state }

// Since returns when the present owner got the flow.
func (t *Table) Since(r Ref) Tick { return t.at(r).owned }

// Local returns the address of ours that the client sends to, if one is known.
func (t *Table) Local(r Ref) netip.Addr { return t.locals[t.at(r).local] }

// SetLocal notes the address of ours that the client sends to.
func (t *Table) SetLocal(r Ref, a netip.Addr) {
	if s := t.at(r); t.locals[s.local] != a {
		s.local = t.internLocal(a)
	}
}

// internLocal turns a local address into a number. A host has few of them; the
// bound only matters with a routed prefix on a wildcard listener, and then the
// kernel chooses the source.
func (t *Table) internLocal(a netip.Addr) uint16 {
	if !a.IsValid() {
		return 0
	}
	i, ok := t.localIndex[a]
	if !ok {
		if len(t.locals) > 4096 {
			return 0
		}
		i = uint16(len(t.locals))
		t.locals = append(t.locals, a)
		t.localIndex[a] = i
	}
	return i
}

// Insert adds a flow, in place of one with the same key. State must be set;
// the times are taken as they are, and SSRCs only if it is confirmed. If the
// table or the budget of unconfirmed flows is full, the unconfirmed flow that
// was idle longest is evicted; without one Insert returns false.
func (t *Table) Insert(f *Flow) (Ref, bool) {
	p := packKey(f.Key)
	w := p.words()
	if old, _ := t.find(w); old != 0 {
		t.Remove(old)
	}
	if t.n >= t.max || f.State == Unconfirmed && t.unconf >= t.unconfMax {
		if t.uncHead == 0 {
			return 0, false
		}
		t.drop(t.uncHead, Evicted)
		t.counters.Evicted++
	}
	r := t.take()
	s := t.at(r)
	*s = slot{key: p, up: packAddrPort(f.Upstream), last: f.LastUpstream, owned: f.Since, state: f.State}
	s.setRoute(f.Route)
	s.local = t.internLocal(f.Local)
	if f.TCP {
		s.flags |= flagTCP
	}
	if t.n++; t.n > t.keyRoom {
		t.growKeys()
	} else {
		t.insertKey(w, r)
	}
	t.linkIP(s, r)
	t.counters.Inserted++
	if f.State == Unconfirmed {
		t.pushUnconfirmed(r)
	} else {
		t.setSSRCs(r, f.SSRCs[:min(f.NumSSRCs, MaxSSRCs)])
	}
	return r, true
}

// take hands out a free slot. The caller has checked the budget.
func (t *Table) take() Ref {
	if r := t.free; r != 0 {
		t.free = t.link(r).ipNext
		return r
	}
	if int(t.high) == len(t.hot)*chunkLen {
		n := min(chunkLen, t.max-int(t.high))
		t.hot = append(t.hot, make([]slot, n))
		t.cold = append(t.cold, make([]links, n))
	}
	t.high++
	return t.high
}

// Remove takes a flow out of the table.
func (t *Table) Remove(r Ref) {
	t.unlink(r)
	t.counters.Removed++
}

// drop is Remove for flows that the table itself decided about.
func (t *Table) drop(r Ref, why Removal) {
	if t.onRemove != nil {
		t.onRemove(t, r, why)
	}
	t.unlink(r)
}

func (t *Table) unlink(r Ref) {
	s := t.at(r)
	if s.state == Unconfirmed {
		t.dropUnconfirmed(r)
	} else {
		t.clearSSRCs(r)
	}
	t.removeKey(&s.key, r)
	t.unlinkIP(s, r)
	s.state = 0
	l := t.link(r)
	l.ipNext = t.free
	t.free = r
	t.n--
}

// Touch notes traffic from the upstream, which keeps the flow alive.
func (t *Table) Touch(r Ref, now Tick) {
	s := t.at(r)
	s.last = now
	if s.state == Unconfirmed && t.uncTail != r {
		t.dropUnconfirmed(r)
		t.pushUnconfirmed(r)
	}
}

// Confirm notes that the client has answered the flow's owner. If ssrcs is not
// empty, it replaces the client's SSRCs; the first MaxSSRCs count.
func (t *Table) Confirm(r Ref, now Tick, ssrcs []uint32) {
	s := t.at(r)
	s.last = now
	if s.state == Unconfirmed {
		t.dropUnconfirmed(r)
		t.unlinkIP(s, r)
		s.state = Confirmed
		t.linkIP(s, r)
	}
	if len(ssrcs) > 0 {
		t.setSSRCs(r, ssrcs[:min(len(ssrcs), MaxSSRCs)])
	}
}

// SetRoute replaces a flow's route and upstream when the owner is still the
// same: another session of the same Host, or the Host at a new address.
func (t *Table) SetRoute(r Ref, route ufrag.Route, upstream netip.AddrPort) {
	s := t.at(r)
	s.setRoute(route)
	s.up = packAddrPort(upstream)
}

// SetOwner gives a flow to another owner. It forgets the old owner's SSRCs and
// any contender, and starts as Unconfirmed; call Confirm if the new owner has
// had an answer.
func (t *Table) SetOwner(r Ref, route ufrag.Route, upstream netip.AddrPort, now Tick) {
	s := t.at(r)
	if s.state == Unconfirmed {
		t.dropUnconfirmed(r)
	} else {
		t.clearSSRCs(r)
		s.state = Unconfirmed
	}
	t.pushUnconfirmed(r)
	s.flags &^= flagContended
	s.last, s.owned = now, now
	t.SetRoute(r, route, upstream)
}

// Contend notes that route has a valid claim to the flow's address while its
// owner is alive. The newest claim replaces earlier ones; a claim may also be
// forgotten early to bound memory.
func (t *Table) Contend(r Ref, route ufrag.Route, now Tick) {
	t.contenders[r%contenderSlots] = contender{ref: r, since: now, route: route}
	t.at(r).flags |= flagContended
}

// Contender returns the newest claim to a flow's address and its age in
// milliseconds.
func (t *Table) Contender(r Ref, now Tick) (route ufrag.Route, age uint32, ok bool) {
	if t.at(r).flags&flagContended == 0 {
		return ufrag.Route{}, 0, false
	}
	c := &t.contenders[r%contenderSlots]
	if c.ref != r {
		t.at(r).flags &^= flagContended
		return ufrag.Route{}, 0, false
	}
	return c.route, c.since.since(now), true
}
