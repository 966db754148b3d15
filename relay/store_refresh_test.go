package relay

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/race"
	"github.com/usher-rtc/usher/internal/udpbatch"
	"github.com/usher-rtc/usher/ufrag"
)

// quietStorer takes a server's store away from its goroutines, so that a test sees
// what the worker hands over.
func quietStorer(t *testing.T, srv *Server) *storer {
	before := srv.store
	quiet := &storer{store: before.store, keys: before.keys, saves: make(chan save, maxSaves), asks: make(chan ask, maxAsks)}
	srv.store = quiet
	t.Cleanup(func() { srv.store = before })
	return quiet
}

// C78: every live flow is written again at least every third of its entry's life.
func TestLiveFlowsAreRefreshed(t *testing.T) {
	const ttl = 10 * time.Minute
	r := newRigWith(t, func(c *Config) {
		c.Store, c.StoreTTL = newTestStore(), ttl
		c.IdleTimeout = 7 * 24 * time.Hour
	})
	quiet := quietStorer(t, r.srv)
	now := r.w.now
	last := map[netip.AddrPort]time.Time{}
	writes := 0
	start := now
	for now.Sub(start) < 3*ttl {
		now = now.Add(housekeeping)
		r.w.Idle(now)
		for len(quiet.saves) > 0 {
			s := <-quiet.saves
			writes++
			if at, ok := last[s.key.Client]; ok && now.Sub(at) > ttl/3 {
				t.Fatalf("%v: %v between writes", s.key, now.Sub(at))
			}
			last[s.key.Client] = now
		}
	}
	if len(last) != rigClients {
		t.Fatalf("%d of %d flows were written", len(last), rigClients)
	}
	for c, at := range last {
		if now.Sub(at) > ttl/3 {
			t.Errorf("%v: not written since %v", c, now.Sub(at))
		}
	}
	if most := rigClients * (3*refreshes + 2); writes > most {
		t.Errorf("%d writes, want at most %d", writes, most)
	}
	// A store that was away may be empty: everything is written soon.
	clear(last)
	quiet.restored.Add(1)
	for range hurriedRound/housekeeping + 2 {
		now = now.Add(housekeeping)
		r.w.Idle(now)
		for len(quiet.saves) > 0 {
			last[(<-quiet.saves).key.Client] = now
		}
	}
	if len(last) != rigClients {
		t.Errorf("%d of %d flows were written again", len(last), rigClients)
	}
}

// A writer that is behind gets news, and refreshes wait.
func TestRefreshLeavesRoomForNews(t *testing.T) {
	r := newRigWith(t, func(c *Config) { c.Store = newTestStore() })
	quiet := quietStorer(t, r.srv)
	for range maxSaves/2 + 1 {
		quiet.put(flowtable.Key{}, ufrag.Route{})
	}
	before := len(quiet.saves)
	now := r.w.now
	for range 1000 {
		now = now.Add(housekeeping)
		r.w.Idle(now)
	}
	if len(quiet.saves) != before {
		t.Errorf("%d refreshes into a busy queue", len(quiet.saves)-before)
	}
	for range maxSaves {
		quiet.put(flowtable.Key{}, ufrag.Route{})
	}
	if n := quiet.saveDropped.Load(); int(n) != before {
		t.Errorf("%d dropped, want %d", n, before)
	}
}

func TestNothingAllocatesPerPacketWithAStore(t *testing.T) {
	race.NoAllocs(t)
	store, err := flowtable.NewMemoryStore(flowtable.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	r := newRigWith(t, func(c *Config) { c.Store = store })
	b := &bench{t: t, srv: r.srv}
	b.until("written", rigClients, written)
	for range 10 {
		r.turn()
	}
	if n := testing.AllocsPerRun(200, r.turn); n != 0 {
		t.Errorf("%v allocations for %d packets", n, 2*rigClients)
	}
	// What strangers send does not either, once it is over the limits.
	quietStorer(t, r.srv)
	var junk []udpbatch.Packet
	for i := range 64 {
		junk = append(junk, udpbatch.Packet{Data: rtp(9, 60), From: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 9, byte(i)}), 9)})
	}
	flood := func() { r.w.HandleBatch(0, junk) }
	for range 100 {
		flood()
	}
	if n := testing.AllocsPerRun(200, flood); n != 0 {
		t.Errorf("%v allocations for %d unknown packets", n, len(junk))
	}
}

// runStore is a store that tells which process it is.
type runStore struct {
	*testStore
	id    func(ctx context.Context) (string, error) // under the lock, like asked
	calls int
}

func (s *runStore) RunID(ctx context.Context) (string, error) {
	s.mu.Lock()
	s.calls++
	id := s.id
	s.mu.Unlock()
	return id(ctx)
}

func (s *runStore) answer(id func(ctx context.Context) (string, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.id = id
}

func (s *runStore) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// TestARestartedStoreIsNoticed asks a store which process it is. All flows are written
// again once for each restart, and for nothing else: not for a store that does not
// tell, or not in time.
func TestARestartedStoreIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := func(id string) func(context.Context) (string, error) {
			return func(context.Context) (string, error) { return id, nil }
		}
		store := &runStore{testStore: newTestStore(), id: answer("a")}
		cfg := config4(keyring(t, "a"))
		cfg.Store, cfg.StoreTTL, cfg.StoreTimeout, cfg.StoreKeys = store, time.Minute, time.Second, cfg.TrunkKeys
		s := newStorer(&cfg)
		defer s.close()
		synctest.Wait() // it asks at once
		watch := func(what string, id func(context.Context) (string, error), want uint64) {
			t.Helper()
			store.answer(id)
			before := store.asked()
			time.Sleep(3 * watchEvery)
			synctest.Wait()
			if n := s.restored.Load(); n != want || s.stats().Restarts != want {
				t.Errorf("%s: %d times in all, want %d", what, n, want)
			}
			if n := store.asked() - before; n < 2 || n > 4 {
				t.Errorf("%s: asked %d times in %v", what, n, 3*watchEvery)
			}
		}
		watch("the first answer", answer("a"), 0)
		watch("a restart", answer("b"), 1)
		watch("an error", func(context.Context) (string, error) { return "c", errors.New("no") }, 1)
		watch("no id", answer(""), 1)
		watch("no answer", func(ctx context.Context) (string, error) {
			at := time.Now()
			<-ctx.Done()
			if d := time.Since(at); d > watchTimeout {
				t.Errorf("the deadline was %v away", d)
			}
			return "c", ctx.Err()
		}, 1)
		watch("the same as before", answer("b"), 1)
		watch("another restart", answer("a"), 2)
		// While writes fail there is nothing to find out.
		for range breakerFails {
			s.writes.allow(time.Now())
			s.writes.done(time.Now(), false)
		}
		before := store.asked()
		time.Sleep(3 * watchEvery)
		synctest.Wait()
		if store.asked() != before {
			t.Error("asked while the breaker is open")
		}
	})
}
