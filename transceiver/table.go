package transceiver

import (
	"hash/maphash"
	"iter"
	"slices"
	"sync"

	"github.com/usher-rtc/usher/internal/icelite"
)

// tableShards spreads the locks of the tables that every packet looks into:
// readers of different sessions do not meet.
const tableShards = 64

// sessionTable finds sessions by their routed ufrags, and by the session
// numbers in the routes.
type sessionTable struct {
	seed   maphash.Seed
	shards [tableShards]struct {
		sync.RWMutex
		byUfrag map[string]*Session
		byRoute map[uint32]*Session
		_       [32]byte
	}
}

func newSessionTable() *sessionTable {
	t := &sessionTable{seed: maphash.MakeSeed()}
	for i := range t.shards {
		t.shards[i].byUfrag = make(map[string]*Session)
		t.shards[i].byRoute = make(map[uint32]*Session)
	}
	return t
}

func (t *sessionTable) find(ufrag []byte) *Session {
	sh := &t.shards[maphash.Bytes(t.seed, ufrag)%tableShards]
	sh.RLock()
	defer sh.RUnlock()
	return sh.byUfrag[string(ufrag)]
}

func (t *sessionTable) findRoute(number uint32) *Session {
	sh := &t.shards[number%tableShards]
	sh.RLock()
	defer sh.RUnlock()
	return sh.byRoute[number]
}

func (t *sessionTable) add(ufrag string, number uint32, s *Session) {
	sh := &t.shards[maphash.String(t.seed, ufrag)%tableShards]
	sh.Lock()
	sh.byUfrag[ufrag] = s
	sh.Unlock()
	sh = &t.shards[number%tableShards]
	sh.Lock()
	sh.byRoute[number] = s
	sh.Unlock()
}

func (t *sessionTable) remove(ufrag string, number uint32) {
	sh := &t.shards[maphash.String(t.seed, ufrag)%tableShards]
	sh.Lock()
	delete(sh.byUfrag, ufrag)
	sh.Unlock()
	sh = &t.shards[number%tableShards]
	sh.Lock()
	delete(sh.byRoute, number)
	sh.Unlock()
}

func (t *sessionTable) len() (ufrags, numbers int) {
	for i := range t.shards {
		sh := &t.shards[i]
		sh.RLock()
		ufrags += len(sh.byUfrag)
		numbers += len(sh.byRoute)
		sh.RUnlock()
	}
	return ufrags, numbers
}

// maxClaimants bounds the sessions of one client address: two calls of a
// client that uses one socket for both, and some that have ended silently.
const maxClaimants = 4

// pathTable finds the session that packets without a ufrag belong to. Several
// sessions may have authenticated a check from one path; what is neither
// STUN nor anything else with a name goes to the first in the list: the one
// whose path was proven last, or else the one that came first. Answers to our
// own checks are offered to each, because only its owner knows a transaction.
type pathTable struct {
	seed   maphash.Seed
	shards [tableShards]struct {
		sync.RWMutex
		m map[icelite.Path]claimants
		_ [32]byte
	}
}

// claimants is a small list by value: reading one takes nothing from the heap.
type claimants [maxClaimants]*Session

func newPathTable() *pathTable {
	t := &pathTable{seed: maphash.MakeSeed()}
	for i := range t.shards {
		t.shards[i].m = make(map[icelite.Path]claimants)
	}
	return t
}

func (t *pathTable) index(p icelite.Path) uint64 {
	return maphash.Comparable(t.seed, p) % tableShards
}

func (t *pathTable) find(p icelite.Path) claimants {
	sh := &t.shards[t.index(p)]
	sh.RLock()
	defer sh.RUnlock()
	return sh.m[p]
}

// claim adds a session to a path's list, in place of the last one if it is full. It
// reports whether the session is new there, and not alone.
func (t *pathTable) claim(p icelite.Path, s *Session) (contested bool) {
	sh := &t.shards[t.index(p)]
	sh.Lock()
	defer sh.Unlock()
	c := sh.m[p]
	if slices.Contains(c[:], s) {
		return false
	}
	for i := range c {
		if c[i] == nil || i == maxClaimants-1 {
			c[i] = s
			sh.m[p] = c
			return i > 0
		}
	}
	return true
}

// own puts a session at the head of a path's list, because its path was
// proven. It reports whether another one had it before.
func (t *pathTable) own(p icelite.Path, s *Session) (changed bool) {
	sh := &t.shards[t.index(p)]
	sh.Lock()
	defer sh.Unlock()
	c := sh.m[p]
	i := slices.Index(c[:], s)
	if i <= 0 {
		return false
	}
	copy(c[1:i+1], c[:i])
	c[0] = s
	sh.m[p] = c
	return true
}

func (t *pathTable) release(p icelite.Path, s *Session) {
	sh := &t.shards[t.index(p)]
	sh.Lock()
	defer sh.Unlock()
	c := sh.m[p]
	i := slices.Index(c[:], s)
	if i < 0 {
		return
	}
	copy(c[i:], c[i+1:])
	c[maxClaimants-1] = nil
	if c[0] == nil {
		delete(sh.m, p)
		return
	}
	sh.m[p] = c
}

func (t *pathTable) len() (n int) {
	for i := range t.shards {
		t.shards[i].RLock()
		n += len(t.shards[i].m)
		t.shards[i].RUnlock()
	}
	return n
}

// all yields the sessions of a list.
func (c *claimants) all() iter.Seq[*Session] {
	return func(yield func(*Session) bool) {
		for _, s := range c {
			if s == nil || !yield(s) {
				return
			}
		}
	}
}
