package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/internal/udpbatch"
	"github.com/usher-rtc/usher/ufrag"
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

// The relay dies; nobody sends a check; the Host says nothing.
func TestRestartedRelayFindsFlowsInTheStore(t *testing.T) {
	store, err := flowtable.NewMemoryStore(flowtable.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, withStore(store))
	h := b.host(nil)
	c := b.client("127.0.1.1", 0)
	b.call(h, c)
	b = b.restart(withStore(store))
	b.moved(h, c)
	for i := range 5 {
		c.send(rtp(1, 50+i))
	}
	for i := range 5 {
		r := h.want(c.addr())
		if len(r.Payload) != 50+i || r.Flags != 0 || r.Ingress != 7 {
			t.Errorf("packet %d: %d bytes, flags %x, ingress %d", i, len(r.Payload), r.Flags, r.Ingress)
		}
	}
	b.until("restored", 1, func(st Stats) uint64 { return st.Restored })
	if st := b.srv.Stats(); st.Store.Hits != 1 || st.Store.Lookups != 1 || st.Held == 0 || st.ToUpstream != 5 || b.totalDrops() != 0 {
		t.Errorf("%+v", st)
	}
	// The Host's word confirms the flow, and that is written.
	h.reply(received{Frame: trunk.Frame{Ingress: 7, Client: c.addr()}, from: b.srv.TrunkAddrs()[0]}, trunk.Validated, "x")
	c.want("x")
	b.until("written", 1, written)
	b.alive()
}

// Every kind of packet of a client that only listens or talks finds its Host.
func TestAnyPacketOfALostFlowRecoversIt(t *testing.T) {
	for name, data := range map[string][]byte{
		"rtcp":            append([]byte{0x80, 201, 0, 1, 0, 0, 0, 9}, make([]byte, 20)...),
		"dtls":            {22, 254, 253, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0},
		"stun response":   stunWithoutUsername(0x0101),
		"stun indication": stunWithoutUsername(0x0011),
	} {
		t.Run(name, func(t *testing.T) {
			store := newTestStore()
			b := newBench(t, withStore(store))
			h := b.host(nil)
			c := b.client("127.0.1.1", 0)
			b.call(h, c)
			b = b.restart(withStore(store))
			b.moved(h, c)
			c.send(data)
			if r := h.want(c.addr()); !bytes.Equal(r.Payload, data) {
				t.Errorf("got %x", r.Payload)
			}
		})
	}
}

// Several workers, several flows, wherever the kernel puts them.
func TestStoreServesAllWorkers(t *testing.T) {
	store := newTestStore()
	many := func(c *Config) {
		withStore(store)(c)
		c.Workers = workersForTest()
	}
	b := newBench(t, many)
	h := b.host(nil)
	var clients []*client
	for range 40 {
		c := b.client("127.0.1.1", 0)
		b.call(h, c)
		clients = append(clients, c)
	}
	b = b.restart(many)
	b.moved(h, clients...)
	for _, c := range clients {
		c.send(rtp(1, 60))
	}
	got := map[netip.AddrPort]int{}
	for range clients {
		select {
		case r := <-h.got:
			got[r.Client]++
		case <-time.After(10 * time.Second):
			t.Fatalf("%d of %d packets arrived; %+v", len(got), len(clients), b.srv.Stats().Store)
		}
	}
	for _, c := range clients {
		if got[c.addr()] != 1 {
			t.Errorf("%d packets of %v", got[c.addr()], c.addr())
		}
	}
	b.until("restored", 40, func(st Stats) uint64 { return st.Restored })
}

// C77: whatever somebody writes into the store is a miss with a reason, sends
// nothing anywhere, and is repaired by the next check.
func TestPoisonedStore(t *testing.T) {
	store := newTestStore()
	b := newBench(t, withStore(store))
	h := b.host(nil)
	c, other := b.client("127.0.1.1", 0), b.client("127.0.1.2", 0)
	b.call(h, c)
	b.call(h, other)
	good, foreign := store.get(c.key()), store.get(other.key())
	forge := func(keys *ufrag.Keyring, route ufrag.Route, age time.Duration) []byte {
		v, err := flowtable.Value{Route: route, Expires: time.Now().Add(-age)}.Seal(nil, c.key(), keys)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	to := func(addr string) ufrag.Route {
		a := netip.MustParseAddrPort(addr)
		v4 := a.Addr().As4()
		return ufrag.Route{Kind: ufrag.KindIPv4, Host: uint64(v4[0])<<40 | uint64(v4[1])<<32 | uint64(v4[2])<<24 | uint64(v4[3])<<16 | uint64(a.Port())}
	}
	flipped := bytes.Clone(good)
	flipped[len(flipped)-1] ^= 1
	version := bytes.Clone(good)
	version[0]++
	elsewhere := to("127.0.0.1:9")
	elsewhere.Cluster = 5
	session := h.mint().route
	for _, tc := range []struct {
		name, reason string
		value        []byte
	}{
		{"empty", "wrong length", []byte{}},
		{"1 MiB of zeros", "unknown version", make([]byte, 1<<20)},
		{"1 MiB that begins well", "wrong length", append(bytes.Clone(good), make([]byte, 1<<20)...)},
		{"text", "unknown version", []byte("10.0.0.7:3478")},
		{"another version", "unknown version", version},
		{"cut", "wrong length", good[:len(good)-1]},
		{"flipped", "wrong mac", flipped},
		{"of another flow", "wrong mac", foreign},
		{"of a stranger's keys", "unknown key", forge(keyring(t, "b"), session, -time.Hour)},
		{"expired", "expired", forge(b.ring, session, time.Hour)},
		// Whoever has the keys may still not send anywhere.
		{"an address that is not allowed", "upstream not allowed", forge(b.ring, to("127.0.1.9:9"), -time.Hour)},
		{"0.0.0.0:0", "unknown upstream host", forge(b.ring, to("0.0.0.0:0"), -time.Hour)},
		{"another cluster", "ufrag of another cluster", forge(b.ring, elsewhere, -time.Hour)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			store.put(c.key(), tc.value)
			b := newBench(t, withStore(store))
			b.moved(h, c)
			c.to = b.ingress(0)
			c.send(rtp(1, 50))
			b.eventually(func() error {
				st := b.srv.Stats()
				if st.Store.Refused[tc.reason] != 1 || b.totalDrops() != 1 {
					return fmt.Errorf("refused %v, drops %v", st.Store.Refused, b.allDrops())
				}
				return nil
			})
			h.nothing()
			for reason, n := range b.srv.Stats().Store.Refused {
				if n > 0 && reason != tc.reason {
					t.Errorf("also refused for: %s", reason)
				}
			}
			b.call(h, c)
			if _, why := flowtable.OpenValue(store.get(c.key()), c.key(), b.ring, time.Now()); why != flowtable.Accepted {
				t.Errorf("after the check the entry is still %v", why)
			}
		})
	}
	b.moved(h)
}

// The store knows the past: a live flow is never changed by it.
func TestStoreDoesNotOverrideAFlow(t *testing.T) {
	store := newTestStore()
	release := make(chan struct{})
	b := newBench(t, withStore(store))
	old, now := b.host(nil), b.host(nil)
	c := b.client("127.0.1.1", 0)
	b.call(old, c)
	b = b.restart(withStore(store))
	b.moved(old, c)
	b.moved(now)
	store.fail(func(ctx context.Context) error {
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	// The first packet waits for the store; then the client calls another Host.
	c.send(rtp(1, 51))
	b.until("held", 1, func(st Stats) uint64 { return st.Held })
	id := now.mint()
	c.send(id.check())
	// What waited goes first, to who has the flow now.
	if r := now.want(c.addr()); len(r.Payload) != 51 {
		t.Errorf("first %d bytes", len(r.Payload))
	}
	now.reply(now.want(c.addr()), trunk.Validated, "x")
	c.want("x")
	close(release)
	b.until("hits", 1, func(st Stats) uint64 { return st.Store.Hits })
	c.send(rtp(1, 52))
	if r := now.want(c.addr()); len(r.Payload) != 52 {
		t.Errorf("then %d bytes", len(r.Payload))
	}
	old.nothing()
	if st := b.srv.Stats(); st.Restored != 0 || b.totalDrops() != 0 {
		t.Errorf("restored %d, drops %v", st.Restored, b.allDrops())
	}
}

// Only confirmed flows are written, and every change of their route.
func TestWhatIsWritten(t *testing.T) {
	store := newTestStore()
	b := newBench(t, withStore(store))
	h, rival := b.host(nil), b.host(nil)
	c := b.client("127.0.1.1", 0)
	route := func() ufrag.Route {
		v, why := flowtable.OpenValue(store.get(c.key()), c.key(), b.ring, time.Now())
		if why != flowtable.Accepted {
			t.Fatalf("%x: %v", store.get(c.key()), why)
		}
		return v.Route
	}
	first := h.mint()
	c.send(first.check())
	r := h.want(c.addr())
	h.reply(r, 0, "not validated")
	c.want("not validated")
	if store.get(c.key()) != nil {
		t.Fatal("an unconfirmed flow is in the store")
	}
	h.reply(r, trunk.Validated, "x")
	b.until("written", 1, written)
	if route() != first.route {
		t.Errorf("route %v", route())
	}
	// An ICE restart.
	second := h.mint()
	c.send(second.check())
	h.want(c.addr())
	b.until("written", 2, written)
	if route() != second.route {
		t.Errorf("route %v after the restart", route())
	}
	// Another Host takes the address over.
	third := rival.mint()
	b.eventually(func() error {
		c.send(third.check())
		rival.reply(rival.want(c.addr()), trunk.Validated, "y")
		if n := b.srv.Stats().Moved; n != 1 {
			return fmt.Errorf("moved %d times", n)
		}
		return nil
	})
	b.until("written", 3, written)
	if got := route(); got != third.route {
		t.Errorf("route %v after the move", got)
	}
	// A flow that was taught without a route waits for the client's check.
	d := b.client("127.0.1.4", 0)
	h.reply(received{Frame: trunk.Frame{Ingress: 7, Client: d.addr()}, from: b.srv.TrunkAddrs()[0]}, trunk.Validated, "z")
	d.want("z")
	if store.get(d.key()) != nil {
		t.Error("a flow without a route is in the store")
	}
	d.send(h.mint().check())
	b.until("written", 4, written)
}

// Behind a known address there may be a client of another Host.
func TestStoreFindsTheOwnerBehindASharedAddress(t *testing.T) {
	store := newTestStore()
	b := newBench(t, withStore(store))
	h, other := b.host(nil), b.host(nil)
	c := b.client("127.0.1.1", 0)
	b.call(h, c)
	b = b.restart(withStore(store))
	b.moved(h, c)
	b.moved(other)
	neighbour := b.client("127.0.1.1", 0)
	b.call(other, neighbour)
	c.send(rtp(1, 50))
	if r := other.want(c.addr()); r.Flags&trunk.Unverified == 0 {
		t.Error("the guess is not marked")
	}
	b.until("restored", 1, func(st Stats) uint64 { return st.Restored })
	c.send(rtp(1, 51))
	if r := h.want(c.addr()); len(r.Payload) != 51 || r.Flags&trunk.Unverified != 0 {
		t.Errorf("%d bytes, flags %x", len(r.Payload), r.Flags)
	}
}

// Down, hung, slow, lying: live flows lose nothing, health is good, memory bounded,
// and one line is logged.
func TestStoreFaultsCostOnlyRecovery(t *testing.T) {
	for name, fault := range map[string]func(context.Context) error{
		"down": func(context.Context) error { return errors.New("connection refused") },
		"hung": hang,
		"slow": func(ctx context.Context) error {
			select {
			case <-time.After(time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var log syncBuffer
			store := newTestStore()
			b := newBench(t, func(c *Config) {
				c.Store, c.StoreTimeout = store, 20*time.Millisecond
				c.Logger = slog.New(slog.NewTextHandler(&log, nil))
			})
			h := b.host(nil)
			live, lost := b.client("127.0.1.1", 0), b.client("127.0.1.2", 0)
			b.call(h, live)
			store.fail(fault)
			// Many unknown clients ask, and new flows want to be written.
			for i := range 300 {
				lost = b.client(fmt.Sprintf("127.0.2.%d", 1+i%200), 0)
				lost.send(rtp(1, 50))
				live.send(rtp(2, 60))
				h.want(live.addr())
			}
			b.until("packets accounted for", 300, func(st Stats) uint64 { return b.totalDrops() })
			b.eventually(func() error {
				b.client("127.0.3.1", 0).send(rtp(1, 50))
				if st := b.srv.Stats().Store; st.LookupBreakerOpened == 0 || st.Failed == 0 {
					return fmt.Errorf("%+v", st)
				}
				return nil
			})
			if code, _ := get(t, b.srv.Handler(), "/healthz"); code != 200 {
				t.Errorf("health %d", code)
			}
			if code, _ := get(t, b.srv.Handler(), "/readyz"); code != 200 {
				t.Errorf("ready %d", code)
			}
			if n := strings.Count(log.String(), "flow store"); n != 1 {
				t.Errorf("%d lines about the store:\n%s", n, log.String())
			}
			// It works again: the next probe finds out.
			store.fail(nil)
			v, err := flowtable.Value{Route: h.mint().route, Expires: time.Now().Add(time.Hour)}.Seal(nil, lost.key(), b.ring)
			if err != nil {
				t.Fatal(err)
			}
			store.put(lost.key(), v)
			b.eventually(func() error {
				lost.send(rtp(1, 50))
				if n := b.srv.Stats().Restored; n != 1 {
					return fmt.Errorf("%d restored; %+v", n, b.srv.Stats().Store)
				}
				return nil
			})
		})
	}
}

func TestStoreThatAnswersTooFewIsAFault(t *testing.T) {
	store := newTestStore()
	store.short = true
	b := newBench(t, withStore(store))
	b.client("127.0.1.1", 0).send(rtp(1, 50))
	b.until("failed", 1, func(st Stats) uint64 { return st.Store.Failed })
	b.drops("no flow", 1)
}

// A client is asked about once, however many packets it sends, and "nothing" is
// remembered.
func TestOneQuestionAClient(t *testing.T) {
	store := newTestStore()
	release := make(chan struct{})
	store.fail(func(ctx context.Context) error {
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	b := newBench(t, withStore(store))
	c := b.client("127.0.1.1", 0)
	for range 20 {
		c.send(rtp(1, 50))
	}
	b.until("packets", 20, func(st Stats) uint64 { return st.FromClients })
	if st := b.srv.Stats(); st.Held != maxWaitingEach || b.totalDrops() != 20-maxWaitingEach {
		t.Errorf("%d wait, %d dropped", st.Held, b.totalDrops())
	}
	close(release)
	b.drops("no flow", 20)
	c.send(rtp(1, 50))
	b.drops("no flow", 21)
	if n := store.questions(c.key()); n != 1 {
		t.Errorf("%d questions", n)
	}
	if st := b.srv.Stats(); st.LookupsLimited != 1 || st.Store.Misses != 1 {
		t.Errorf("limited %d, misses %d", st.LookupsLimited, st.Store.Misses)
	}
}

// A question whose answer comes late still makes the flow; its packets are gone.
func TestLateAnswerStillCounts(t *testing.T) {
	store := newTestStore()
	b := newBench(t, withStore(store))
	h := b.host(nil)
	c := b.client("127.0.1.1", 0)
	b.call(h, c)
	// A store that keeps no deadline.
	release := make(chan struct{})
	var once sync.Once
	defer once.Do(func() { close(release) })
	store.fail(func(context.Context) error { <-release; return nil })
	b = b.restart(func(c *Config) { c.Store, c.StoreTimeout = store, 5*time.Millisecond })
	b.moved(h, c)
	c.send(rtp(1, 50))
	b.until("too long", 1, func(st Stats) uint64 { return st.HeldTooLong })
	c.send(rtp(1, 51))
	b.drops("no flow", 2)
	once.Do(func() { close(release) })
	b.until("restored", 1, func(st Stats) uint64 { return st.Restored })
	c.send(rtp(1, 52))
	if r := h.want(c.addr()); len(r.Payload) != 52 {
		t.Errorf("%d bytes", len(r.Payload))
	}
	if n := store.questions(c.key()); n != 1 {
		t.Errorf("%d questions", n)
	}
}

// C81 with real sockets: a flood that looks like media is asked about at a fixed
// rate, and a real client is still found.
func TestFloodOfUnknownSources(t *testing.T) {
	const perSecond = 100
	store := newTestStore()
	b := newBench(t, withStore(store))
	h := b.host(nil)
	c := b.client("127.0.1.1", 0)
	b.call(h, c)
	b = b.restart(func(c *Config) {
		withStore(store)(c)
		c.StoreLookups = perSecond
	})
	b.moved(h, c)
	start := time.Now()
	var sources []*client
	for i := range 400 {
		sources = append(sources, b.client(fmt.Sprintf("127.0.2.%d", 1+i%250), 0))
	}
	stop := make(chan struct{})
	var flood sync.WaitGroup
	flood.Go(func() {
		junk := rtp(7, 60)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				_, _ = sources[i%len(sources)].conn.WriteToUDPAddrPort(junk, b.ingress(0))
			}
		}
	})
	b.eventually(func() error {
		if n := b.srv.Stats().LookupsLimited; n < 20_000 {
			return fmt.Errorf("limited %d", n)
		}
		return nil
	})
	b.eventually(func() error {
		c.send(rtp(1, 50))
		if n := b.srv.Stats().Restored; n != 1 {
			return fmt.Errorf("restored %d", n)
		}
		return nil
	})
	close(stop)
	flood.Wait()
	seconds := time.Since(start).Seconds()
	store.mu.Lock()
	asked := store.asked
	store.mu.Unlock()
	if most := perSecond*seconds + 2*perSecond; float64(asked) > most {
		t.Errorf("%d questions in %.1f s, want at most %.0f", asked, seconds, most)
	}
	b.eventually(func() error {
		if st := b.srv.Stats(); st.FromClients != b.totalDrops()+st.ToUpstream {
			return fmt.Errorf("%d packets, %d dropped, %d forwarded", st.FromClients, b.totalDrops(), st.ToUpstream)
		}
		return nil
	})
}

// Close writes what is left, and does not wait for a store that hangs.
func TestCloseWritesTheRest(t *testing.T) {
	store := newTestStore()
	gate := make(chan struct{})
	store.fail(func(ctx context.Context) error {
		select {
		case <-gate:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	b := newBench(t, withStore(store))
	h := b.host(nil)
	var clients []*client
	for range 20 {
		c := b.client("127.0.1.1", 0)
		c.send(h.mint().check())
		h.reply(h.want(c.addr()), trunk.Validated, "x")
		c.want("x")
		clients = append(clients, c)
	}
	store.fail(nil) // the call that is out still hangs
	if err := b.srv.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range clients {
		if store.get(c.key()) == nil {
			t.Errorf("%v is not in the store", c.addr())
		}
	}

	store.fail(hang)
	b = newBench(t, withStore(store))
	b.moved(h)
	c := b.client("127.0.1.1", 0)
	c.send(h.mint().check())
	h.reply(h.want(c.addr()), trunk.Validated, "x")
	c.want("x")
	if err := b.srv.Close(); err != nil { // the test's timeout is the limit
		t.Fatal(err)
	}
	b.until("dropped or failed", 1, func(st Stats) uint64 { return st.Store.WriteDropped + st.Store.WriteErrors })
}

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
