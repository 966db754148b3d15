package flowtable

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/usher-rtc/usher/internal/config"
)

// DefaultMaxEntries is how many entries a MemoryStore holds by default.
const DefaultMaxEntries = 1 << 18

// MemoryConfig describes a MemoryStore. The zero value is usable.
type MemoryConfig struct {
	// MaxEntries is the most entries kept; one more pushes out the one that was
	// saved longest ago. 0 means DefaultMaxEntries.
	MaxEntries int
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// MemoryStore is a [FlowStore] in the memory of this process: for tests, and for
// several relays in one process. It is safe for concurrent use.
type MemoryStore struct {
	max int
	now func() time.Time

	mu      sync.Mutex
	entries map[packedKey]*memoryEntry
	// A ring through all entries, longest unsaved at root.next.
	root memoryEntry
}

type memoryEntry struct {
	key        packedKey
	value      []byte
	expires    time.Time
	prev, next *memoryEntry
}

// NewMemoryStore makes an empty store. The error is a *ConfigError.
func NewMemoryStore(c MemoryConfig) (*MemoryStore, error) {
	if c.MaxEntries == 0 {
		c.MaxEntries = DefaultMaxEntries
	}
	if c.MaxEntries < 1 {
		return nil, config.Errorf("MaxEntries", "%d is not positive", c.MaxEntries)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	s := &MemoryStore{max: c.MaxEntries, now: c.Now, entries: make(map[packedKey]*memoryEntry)}
	s.root.prev, s.root.next = &s.root, &s.root
	return s, nil
}

// CheckSave returns the error that Save of any [FlowStore] owes its caller for
// entries and a ttl that the contract excludes, or nil.
func CheckSave(entries []Entry, ttl time.Duration) error {
	if ttl < time.Millisecond {
		return fmt.Errorf("flowtable: a ttl of %v is below a millisecond", ttl)
	}
	for i := range entries {
		if n := len(entries[i].Value); n < 1 || n > MaxValueLen {
			return fmt.Errorf("flowtable: a value of %d bytes is not in 1..%d", n, MaxValueLen)
		}
	}
	return nil
}

// Save implements [FlowStore].
func (s *MemoryStore) Save(ctx context.Context, entries []Entry, ttl time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := CheckSave(entries, ttl); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for i := range entries {
		p := packKey(entries[i].Key)
		e := s.entries[p]
		if e == nil {
			if len(s.entries) >= s.max {
				s.remove(s.root.next)
			}
			e = &memoryEntry{key: p}
			s.entries[p] = e
		} else {
			e.unlink()
		}
		e.value = append(e.value[:0], entries[i].Value...)
		e.expires = now.Add(ttl)
		e.prev, e.next = s.root.prev, &s.root
		e.prev.next, e.next.prev = e, e
	}
	// What was saved longest ago has most likely expired. Two for each one that
	// came is enough to get rid of more than arrive.
	for range 2 * len(entries) {
		if oldest := s.root.next; oldest == &s.root || now.Before(oldest.expires) {
			break
		}
		s.remove(s.root.next)
	}
	return nil
}

func (e *memoryEntry) unlink() { e.prev.next, e.next.prev = e.next, e.prev }

func (s *MemoryStore) remove(e *memoryEntry) {
	e.unlink()
	delete(s.entries, e.key)
}

// Load implements [FlowStore].
func (s *MemoryStore) Load(ctx context.Context, keys []Key) ([][]byte, error) {
	values := make([][]byte, len(keys))
	if err := ctx.Err(); err != nil {
		return values, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for i, k := range keys {
		e := s.entries[packKey(k)]
		if e == nil {
			continue
		}
		if !now.Before(e.expires) {
			s.remove(e)
			continue
		}
		values[i] = append([]byte(nil), e.value...)
	}
	return values, nil
}

// Len is the number of entries, with those that have expired unnoticed.
func (s *MemoryStore) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.entries)
}
