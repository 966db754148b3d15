package relay

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/ufrag"
)

// The relay dies; nobody sends a check; the Host says nothing.
//
// C34: a flow at a relay that has never seen it.
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
		case <-time.After(patience):
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

// The Host speaks before the store does: what waited goes to it, and its own packet
// to the client.
func TestHostIsFasterThanTheStore(t *testing.T) {
	store := newTestStore()
	store.fail(hang)
	b := newBench(t, withStore(store))
	h := b.host(nil)
	c := b.client("127.0.1.1", 0)
	c.send(rtp(1, 51))
	c.send(rtp(1, 52))
	b.until("held", 2, func(st Stats) uint64 { return st.Held })
	h.reply(received{Frame: trunk.Frame{Ingress: 7, Client: c.addr()}, from: b.srv.TrunkAddrs()[0]}, trunk.Validated, "hello")
	c.want("hello")
	for _, size := range []int{51, 52} {
		if r := h.want(c.addr()); len(r.Payload) != size {
			t.Errorf("%d bytes, want %d", len(r.Payload), size)
		}
	}
	if n := b.totalDrops(); n != 0 {
		t.Errorf("drops: %v", b.allDrops())
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
