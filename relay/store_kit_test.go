package relay

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/trunk"
)

// testStore is a FlowStore that can be told to fail, and that anybody can write to.
type testStore struct {
	mu     sync.Mutex
	values map[string][]byte
	loads  map[string]int // questions by key
	asked  int
	saves  int
	fault  func(ctx context.Context) error // nil: works
	short  bool                            // answers too few values
}

func newTestStore() *testStore {
	return &testStore{values: map[string][]byte{}, loads: map[string]int{}}
}

func (s *testStore) enter(ctx context.Context) error {
	s.mu.Lock()
	fault := s.fault
	s.mu.Unlock()
	if fault != nil {
		return fault(ctx)
	}
	return nil
}

func (s *testStore) Save(ctx context.Context, entries []flowtable.Entry, ttl time.Duration) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range entries {
		s.saves++
		s.values[e.Key.String()] = bytes.Clone(e.Value)
	}
	return nil
}

func (s *testStore) Load(ctx context.Context, keys []flowtable.Key) ([][]byte, error) {
	s.mu.Lock()
	for _, k := range keys {
		s.asked++
		s.loads[k.String()]++
	}
	s.mu.Unlock()
	values := make([][]byte, len(keys))
	if err := s.enter(ctx); err != nil {
		return values, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, k := range keys {
		values[i] = s.values[k.String()]
	}
	if s.short {
		return values[:len(keys)-1], nil
	}
	return values, nil
}

func (s *testStore) fail(fault func(ctx context.Context) error) {
	s.mu.Lock()
	s.fault = fault
	s.mu.Unlock()
}

func (s *testStore) get(k flowtable.Key) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.values[k.String()]
}

func (s *testStore) put(k flowtable.Key, v []byte) {
	s.mu.Lock()
	s.values[k.String()] = v
	s.mu.Unlock()
}

func (s *testStore) questions(k flowtable.Key) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loads[k.String()]
}

// hang is a store that accepts everything and answers nothing.
func hang(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func (c *client) key() flowtable.Key { return flowtable.Key{Client: c.addr(), Ingress: 7} }

func withStore(s flowtable.FlowStore) func(*Config) {
	return func(c *Config) {
		c.Store = s
		c.StoreTimeout = time.Second // patient: the machine may be busy
	}
}

// until waits until a statistic is right.
func (b *bench) until(what string, want uint64, get func(Stats) uint64) {
	b.t.Helper()
	b.eventually(func() error {
		st := b.srv.Stats()
		if got := get(st); got != want {
			return fmt.Errorf("%s: %d, want %d; %+v", what, got, want, st.Store)
		}
		return nil
	})
}

func written(st Stats) uint64 { return st.Store.Written }

// call makes a confirmed flow that is in the store.
func (b *bench) call(h *host, c *client) identity {
	b.t.Helper()
	before := b.srv.Stats().Store.Written
	id := h.mint()
	c.send(id.check())
	h.reply(h.want(c.addr()), trunk.Validated, "answer")
	c.want("answer")
	b.until("written", before+1, written)
	return id
}

// restart ends the relay and starts another one at its ingress address.
func (b *bench) restart(change func(*Config)) *bench {
	b.t.Helper()
	ingress := b.ingress(0)
	if err := b.srv.Close(); err != nil {
		b.t.Fatal(err)
	}
	next := newBench(b.t, func(c *Config) {
		c.Ingresses[0].Listen = ingress
		change(c)
	})
	return next
}

// moved makes a Host or client of another bench report to this one.
func (b *bench) moved(h *host, clients ...*client) {
	h.b = b
	for _, c := range clients {
		c.b = b
	}
}
