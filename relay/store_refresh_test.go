package relay

import (
	"net/netip"
	"testing"
	"time"

	"github.com/usher-rtc/usher/flowtable"
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
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
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

// BenchmarkFlood is a batch of media from 64 unknown clients, with a store that has
// been asked about them and has nothing.
func BenchmarkFlood(b *testing.B) {
	store, err := flowtable.NewMemoryStore(flowtable.MemoryConfig{})
	if err != nil {
		b.Fatal(err)
	}
	r := newRigWith(b, func(c *Config) { c.Store = store })
	var junk []udpbatch.Packet
	for i := range 64 {
		junk = append(junk, udpbatch.Packet{Data: rtp(9, 60), From: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 9, byte(i)}), 9)})
	}
	b.ReportAllocs()
	for b.Loop() {
		r.w.HandleBatch(0, junk)
		r.w.Idle(r.w.now)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/packet")
}
