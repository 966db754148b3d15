package relay

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/usher-rtc/usher/cluster"
	"github.com/usher-rtc/usher/internal/race"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/internal/udpbatch"
	"github.com/usher-rtc/usher/ufrag"
)

// Two tiers: edges at 127.0.11.x, cluster relays at 127.0.12.x, Hosts at 127.0.0.1.

const farCluster = 9

func prefix(s string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(s)} }

func directory(t testing.TB, table cluster.Table) *cluster.Static {
	t.Helper()
	d, err := cluster.NewStatic(table)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// edgeOf makes a relay an edge without Hosts of its own.
func edgeOf(t testing.TB, n int, table cluster.Table) func(*Config) {
	return func(c *Config) {
		c.Trunk = netip.MustParseAddrPort(fmt.Sprintf("127.0.11.%d:0", n))
		c.Clusters, c.AllowClusters, c.EdgeKeys = directory(t, table), prefix("127.0.12.0/24"), keyring(t, "e")
		c.TrunkKeys, c.AllowUpstream = nil, nil
	}
}

// clusterRelay makes a relay one that passes on what edges send.
func clusterRelay(t testing.TB, n int) func(*Config) {
	return func(c *Config) {
		c.Trunk = netip.MustParseAddrPort(fmt.Sprintf("127.0.12.%d:0", n))
		c.Cluster, c.AllowEdges, c.EdgeKeys = farCluster, prefix("127.0.11.0/24"), keyring(t, "e")
	}
}

func newEdge(t testing.TB, clusters ...*bench) *bench {
	t.Helper()
	table := cluster.Table{}
	for _, c := range clusters {
		table[farCluster] = append(table[farCluster], c.trunk())
	}
	return newBench(t, edgeOf(t, 1, table))
}

func (b *bench) trunk() netip.AddrPort { return b.srv.TrunkAddrs()[0] }

func TestTiersConfig(t *testing.T) {
	base := func() Config {
		c := config4(keyring(t, "a"))
		clusterRelay(t, 1)(&c)
		return c
	}
	edge := func() Config {
		c := config4(keyring(t, "a"))
		edgeOf(t, 1, nil)(&c)
		return c
	}
	for name, tc := range map[string]struct {
		config Config
		change func(*Config)
		field  string
	}{
		"no edge keys":             {base(), func(c *Config) { c.EdgeKeys = nil }, "EdgeKeys"},
		"empty edge keys":          {base(), func(c *Config) { c.EdgeKeys = new(ufrag.Keyring) }, "EdgeKeys"},
		"the Hosts' keys":          {base(), func(c *Config) { c.EdgeKeys = c.TrunkKeys }, "EdgeKeys"},
		"the Hosts' keys, again":   {base(), func(c *Config) { c.EdgeKeys = keyring(t, "a") }, "EdgeKeys"},
		"one of the Hosts' keys":   {base(), func(c *Config) { c.EdgeKeys = keyring(t, "ea") }, "EdgeKeys"},
		"no prefix":                {base(), func(c *Config) { c.AllowEdges = append(c.AllowEdges, netip.Prefix{}) }, "AllowEdges[1]"},
		"clusters not allowed":     {edge(), func(c *Config) { c.AllowClusters = nil }, "AllowClusters"},
		"allowed without clusters": {base(), func(c *Config) { c.AllowClusters = prefix("10.0.0.0/8") }, "AllowClusters"},
		"Hosts without keys":       {edge(), func(c *Config) { c.AllowUpstream = prefix("10.0.0.0/8") }, "TrunkKeys"},
		"neither Hosts nor others": {base(), func(c *Config) { c.AllowUpstream = nil }, "AllowUpstream"},
	} {
		cfg := tc.config
		tc.change(&cfg)
		srv, err := New(cfg)
		var ce *ConfigError
		if !errors.As(err, &ce) || ce.Field != tc.field {
			t.Errorf("%s: %v, want an error about %s", name, err, tc.field)
		}
		if srv != nil {
			_ = srv.Close()
		}
	}
}

func TestTunnel(t *testing.T) {
	for name, wildcard := range map[string]bool{"edge that knows its address": false, "edge that does not": true} {
		t.Run(name, func(t *testing.T) {
			far := newBench(t, clusterRelay(t, 1))
			edge := newBench(t, func(c *Config) {
				edgeOf(t, 1, cluster.Table{farCluster: {far.trunk()}})(c)
				if wildcard {
					c.Trunk = netip.MustParseAddrPort("0.0.0.0:0")
				}
			})
			if wildcard {
				far = newBench(t, func(c *Config) { clusterRelay(t, 1)(c); c.AllowEdges = prefix("127.0.0.0/16") })
				if err := edge.srv.cfg.Clusters.(*cluster.Static).Replace(cluster.Table{farCluster: {far.trunk()}}); err != nil {
					t.Fatal(err)
				}
			}
			h := far.host(nil)
			id := mint(t, edge.srv.cfg.Codec, must(ufrag.IPv4Route(farCluster, h.addr(), 5)))
			c := edge.client("127.0.1.1", 0)
			c.send(id.check())
			got := h.want(c.addr())
			if got.Ingress != 7 || got.Route != id.route || got.Return.Port() != edge.trunk().Port() || !wildcard && got.Return != edge.trunk() {
				t.Errorf("the Host got %+v", got.Frame)
			}
			// As the Host answers: the return address echoed, its route told.
			reply := trunk.Frame{
				Flags: trunk.ToClient | trunk.Validated, Ingress: 7, Client: c.addr(), Return: got.Return,
				Route: id.route, SSRCs: [4]uint32{3}, NSSRC: 1, Payload: []byte("answer"),
			}
			h.send(got.from, reply)
			c.want("answer")
			c.send(rtp(3, 100))
			if f := h.want(c.addr()); f.Route != id.route || len(f.Payload) != 100 {
				t.Errorf("media came as %+v", f.Frame)
			}
			edge.eventually(func() error {
				st := edge.srv.Stats()
				if st.Flows != 1 || st.Unconfirmed != 0 || st.ToClusters != 2 || st.FromClusters != 1 {
					return fmt.Errorf("edge: %+v", st.Counters)
				}
				return nil
			})
			// The client's NAT rebinds: the route of the flow with its SSRC goes along.
			other := edge.client("127.0.1.1", 0)
			other.send(rtp(3, 90))
			if f := h.want(other.addr()); f.Flags&trunk.Unverified == 0 || f.Route != id.route {
				t.Errorf("an unverified packet came as %+v", f.Frame)
			}
			if d := edge.totalDrops() + far.totalDrops(); d != 0 {
				t.Errorf("drops: %v, %v", edge.allDrops(), far.allDrops())
			}
			far.eventually(func() error {
				if st := far.srv.Stats(); st.Flows != 0 || st.FromEdges != 3 || st.ToUpstream != 3 || st.ToEdges != 1 || st.FromUpstream != 0 {
					return fmt.Errorf("cluster relay: %+v", st.Counters)
				}
				return nil
			})
		})
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// stranger sends trunk datagrams of its own making.
type stranger struct {
	t    testing.TB
	conn *net.UDPConn
	link *trunk.Link
}

func newStranger(t testing.TB, ip string) *stranger {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(ip)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &stranger{t, conn, trunk.NewLink(77, [16]byte{})}
}

func datagram(t testing.TB, link *trunk.Link, keys *ufrag.Keyring, hops uint8, frames ...trunk.Frame) []byte {
	t.Helper()
	b := trunk.NewBuilder(trunk.MaxDatagram)
	h := link.Header(trunk.TypeData)
	h.Hops = hops
	b.Reset(&h)
	for i := range frames {
		if !b.Add(&frames[i]) {
			t.Fatal("frames do not fit")
		}
	}
	if !b.Seal(keys) {
		t.Fatal("seal")
	}
	var d []byte
	for _, p := range b.Buffers() {
		d = append(d, p...)
	}
	return d
}

func (s *stranger) send(to netip.AddrPort, keys *ufrag.Keyring, hops uint8, f trunk.Frame) {
	s.t.Helper()
	if _, err := s.conn.WriteToUDPAddrPort(datagram(s.t, s.link, keys, hops, f), to); err != nil {
		s.t.Fatal(err)
	}
}

func TestForgedTunnelIsRefused(t *testing.T) {
	far := newBench(t, clusterRelay(t, 1))
	h := far.host(nil)
	edges, hosts := keyring(t, "e"), far.ring
	client := netip.MustParseAddrPort("192.0.2.1:9")
	route := must(ufrag.IPv4Route(farCluster, h.addr(), 5))
	good := trunk.Frame{Ingress: 7, Client: client, Route: route, Payload: []byte("x")}
	with := func(change func(*trunk.Frame)) trunk.Frame { f := good; change(&f); return f }
	down := trunk.Frame{Flags: trunk.ToClient, Ingress: 7, Client: client, Payload: []byte("x")}
	outside := netip.MustParseAddrPort("192.0.2.66:53")
	for _, tc := range []struct {
		name, from string
		keys       *ufrag.Keyring
		hops       uint8
		frame      trunk.Frame
		reason     string
	}{
		{"not an edge's address", "127.0.99.1", edges, 4, good, "peer not allowed"},
		{"an edge's address with the Hosts' keys", "127.0.11.9", hosts, 4, good, "unknown trunk key"},
		{"a Host's address with the edges' keys", "127.0.0.1", edges, 4, good, "unknown trunk key"},
		{"a Host that plays an edge", "127.0.0.1", hosts, 4, good, "unexpected trunk datagram"},
		{"a return address outside", "127.0.11.9", edges, 4, with(func(f *trunk.Frame) { f.Return = outside }), "edge not allowed"},
		{"a Host that answers outside", "127.0.0.1", hosts, 4, trunk.Frame{Flags: trunk.ToClient, Ingress: 7, Client: client, Return: outside}, "edge not allowed"},
		{"an edge that speaks to our clients", "127.0.11.9", edges, 4, down, "peer not allowed"},
		{"no route", "127.0.11.9", edges, 4, with(func(f *trunk.Frame) { f.Route = ufrag.Route{} }), "frame without a route"},
		{"a Host outside", "127.0.11.9", edges, 4, with(func(f *trunk.Frame) { f.Route = must(ufrag.IPv4Route(farCluster, outside, 1)) }), "upstream not allowed"},
		{"another cluster", "127.0.11.9", edges, 4, with(func(f *trunk.Frame) { f.Route.Cluster++ }), "ufrag of another cluster"},
		{"no client", "127.0.11.9", edges, 4, with(func(f *trunk.Frame) { f.Client = netip.AddrPort{} }), "frame for an unusable client address"},
		{"the last hop", "127.0.11.9", edges, 1, good, "no hops left"},
		{"the last hop back", "127.0.0.1", hosts, 1, trunk.Frame{Flags: trunk.ToClient, Ingress: 7, Client: client, Return: netip.MustParseAddrPort("127.0.11.9:9")}, "no hops left"},
	} {
		before := far.srv.Stats().Drops[tc.reason]
		newStranger(t, tc.from).send(far.trunk(), tc.keys, tc.hops, tc.frame)
		far.drops(tc.reason, before+1)
	}
	h.nothing()
	newStranger(t, "127.0.11.9").send(far.trunk(), edges, 4, good)
	h.want(client)
	far.alive()
}

// A Host teaches edges about itself only: the cluster relay knows who it is.
func TestOneHostCannotTeachForAnother(t *testing.T) {
	far := newBench(t, clusterRelay(t, 1))
	victim, rogue := far.host(nil), far.host(nil)
	spy := far.hostOn(must(net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 11, 5)})), keyring(t, "e"), nil)
	route := must(ufrag.IPv4Route(farCluster, victim.addr(), 5))
	client := netip.MustParseAddrPort("192.0.2.1:9")
	f := trunk.Frame{Flags: trunk.ToClient | trunk.Validated, Ingress: 7, Client: client, Route: route, Return: spy.addr(), SSRCs: [4]uint32{1}, NSSRC: 1, Payload: []byte("x")}
	rogue.send(far.trunk(), f)
	if got := spy.want(client); got.Flags&(trunk.Validated|trunk.HasRoute|trunk.HasSSRCs|trunk.HasReturn) != 0 {
		t.Errorf("the edge is told %+v by a Host that is not it", got.Frame)
	}
	victim.send(far.trunk(), f)
	if got := spy.want(client); got.Flags&trunk.Validated == 0 || got.Route != route || got.NSSRC != 1 || got.Return.IsValid() {
		t.Errorf("the edge is told %+v by the Host itself", got.Frame)
	}
}

// Two relays that each take the other for cluster 5.
func TestALoopSendsFourDatagrams(t *testing.T) {
	lists := [2]*cluster.Static{directory(t, nil), directory(t, nil)}
	var relays [2]*bench
	for i := range relays {
		relays[i] = newBench(t, func(c *Config) {
			edgeOf(t, i+1, nil)(c)
			c.Clusters, c.AllowEdges, c.AllowClusters = lists[i], prefix("127.0.11.0/24"), prefix("127.0.11.0/24")
		})
	}
	for i, l := range lists {
		if err := l.Replace(cluster.Table{5: {relays[1-i].trunk()}}); err != nil {
			t.Fatal(err)
		}
	}
	id := mint(t, relays[0].srv.cfg.Codec, must(ufrag.IPv4Route(5, netip.MustParseAddrPort("10.0.0.1:9"), 1)))
	relays[0].client("127.0.1.1", 0).send(id.check())
	relays[0].eventually(func() error {
		if n := relays[0].srv.Stats().Drops["no hops left"] + relays[1].srv.Stats().Drops["no hops left"]; n != 1 {
			return fmt.Errorf("%d packets without hops", n)
		}
		return nil
	})
	relays[0].eventually(func() error {
		if n := relays[0].srv.Stats().TrunkSent + relays[1].srv.Stats().TrunkSent; n != 4 {
			return fmt.Errorf("%d datagrams, want 4", n)
		}
		return nil
	})
	for _, r := range relays {
		r.srv.Close()
	}
	if n := relays[0].srv.Stats().TrunkSent + relays[1].srv.Stats().TrunkSent; n != 4 {
		t.Errorf("%d datagrams in the end", n)
	}
}

func TestClusterThatIsNotThere(t *testing.T) {
	edge := newBench(t, edgeOf(t, 1, cluster.Table{
		1: {netip.MustParseAddrPort("127.0.12.99:9")}, 2: {netip.MustParseAddrPort("127.0.99.1:9")},
	}))
	c := edge.client("127.0.1.1", 0)
	check := func(cluster uint16) []byte {
		return mint(t, edge.srv.cfg.Codec, must(ufrag.IPv4Route(cluster, netip.MustParseAddrPort("10.0.0.1:9"), 1))).check()
	}
	c.send(check(3))
	edge.drops("unknown cluster", 1)
	c.send(check(2))
	edge.drops("upstream not allowed", 1)
	c.send(check(0)) // an edge without Hosts has no cluster
	edge.drops("unknown cluster", 2)
	start := time.Now()
	edge.eventually(func() error {
		c.send(check(1))
		if st := edge.srv.Stats(); st.Drops["no healthy relay in cluster"] == 0 {
			return fmt.Errorf("still sends: %+v", st.Counters)
		}
		return nil
	})
	t.Logf("unhealthy after %v", time.Since(start))
}

// A cluster relay that falls silent without a word is left; one that says goodbye
// is left at once.
//
// C37: the cluster relay changes while the edge keeps its flows.
func TestFailoverBetweenClusterRelays(t *testing.T) {
	rings := [2]*ufrag.Keyring{keyring(t, "e"), keyring(t, "e")}
	var far [2]*bench
	for i := range far {
		far[i] = newBench(t, func(c *Config) { clusterRelay(t, i+1)(c); c.EdgeKeys = rings[i] })
	}
	edge := newEdge(t, far[0], far[1])
	h := far[0].host(nil)
	var clients []*client
	for i := range 16 {
		c := edge.client(fmt.Sprintf("127.0.1.%d", i+1), 0)
		clients = append(clients, c)
		c.send(mint(t, edge.srv.cfg.Codec, must(ufrag.IPv4Route(farCluster, h.addr(), uint32(i)))).check())
		h.want(c.addr())
	}
	edge.eventually(func() error {
		for _, f := range far {
			if f.srv.Stats().FromEdges == 0 {
				return errors.New("a cluster relay gets nothing")
			}
		}
		return nil
	})
	// through waits until all clients' packets come, and says how long it took.
	through := func(what string) {
		t.Helper()
		start := time.Now()
		for _, c := range clients {
			edge.eventually(func() error {
				c.send(rtp(1, 50))
				deadline := time.After(20 * time.Millisecond)
				for {
					select {
					case r := <-h.got:
						if r.Client == c.addr() {
							return nil
						}
					case <-deadline:
						return fmt.Errorf("%s: nothing comes through", what)
					}
				}
			})
		}
		t.Logf("%s: all clients go through after %v", what, time.Since(start))
	}
	through("both are well")
	stranger := ufrag.Key{ID: 'x', Secret: [32]byte{9}}
	if err := rings[0].Replace('x', stranger); err != nil { // deaf and dumb
		t.Fatal(err)
	}
	through("one fell silent")
	good := keyring(t, "e")
	if err := rings[0].Replace('e', keys(good)...); err != nil {
		t.Fatal(err)
	}
	edge.eventually(func() error {
		before := far[0].srv.Stats().FromEdges
		for _, c := range clients {
			c.send(rtp(1, 50))
		}
		time.Sleep(5 * time.Millisecond)
		if far[0].srv.Stats().FromEdges == before {
			return errors.New("the one that came back gets nothing")
		}
		return nil
	})
	if err := far[1].srv.Close(); err != nil {
		t.Fatal(err)
	}
	through("one said goodbye")
}

// keys are those of keyring(t, "e").
func keys(*ufrag.Keyring) []ufrag.Key {
	k := ufrag.Key{ID: 'e'}
	k.Secret[0], k.Secret[31] = 7, 'e'
	return []ufrag.Key{k}
}

// tunnelRig drives a cluster relay's worker by hand: from an edge to a Host and
// back. Both are one socket that nobody reads, at two addresses.
type tunnelRig struct {
	w        *worker
	srv      *Server
	up, down []udpbatch.Packet
	link     *trunk.Link
	route    ufrag.Route
	edge     netip.AddrPort
	host     netip.AddrPort
}

func sink(t testing.TB, ip string) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(ip)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

func newTunnelRig(t testing.TB) *tunnelRig {
	t.Helper()
	cfg := config4(keyring(t, "a"))
	clusterRelay(t, 1)(&cfg)
	srv, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = srv.Close() })
	r := &tunnelRig{w: srv.workers[0], srv: srv, link: trunk.NewLink(1, [16]byte{}), edge: sink(t, "127.0.11.1"), host: sink(t, "127.0.0.1")}
	r.route = must(ufrag.IPv4Route(farCluster, r.host, 1))
	clients := make([]netip.AddrPort, rigClients)
	for i := range clients {
		clients[i] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 9)
	}
	r.up, r.down = r.packets(t, clients)
	return r
}

// packets are datagrams of eight frames each, up and down.
func (r *tunnelRig) packets(t testing.TB, clients []netip.AddrPort) (up, down []udpbatch.Packet) {
	t.Helper()
	payload := rtp(1, 160)
	for len(clients) > 0 {
		n := min(8, len(clients))
		var u, d []trunk.Frame
		for _, c := range clients[:n] {
			u = append(u, trunk.Frame{Ingress: 7, Client: c, Route: r.route, Return: r.edge, Payload: payload})
			d = append(d, trunk.Frame{Flags: trunk.ToClient | trunk.Validated, Ingress: 7, Client: c, Route: r.route, Return: r.edge, Payload: payload})
		}
		up = append(up, udpbatch.Packet{Data: datagram(t, r.link, r.srv.cfg.EdgeKeys, 4, u...), From: r.edge})
		down = append(down, udpbatch.Packet{Data: datagram(t, r.link, r.srv.cfg.TrunkKeys, 4, d...), From: r.host})
		clients = clients[n:]
	}
	return up, down
}

func (r *tunnelRig) turn() {
	r.w.HandleBatch(1, r.up)
	r.w.HandleBatch(1, r.down)
	r.w.Idle(r.w.now)
}

func TestTunnelAllocatesNothing(t *testing.T) {
	race.NoAllocs(t)
	r := newTunnelRig(t)
	for range 10 {
		r.turn()
	}
	if n := testing.AllocsPerRun(200, r.turn); n != 0 {
		t.Errorf("cluster relay: %v allocations for %d packets", n, 2*rigClients)
	}
	st := r.srv.Stats()
	if st.FromEdges != st.ToUpstream || st.ToEdges != st.FromEdges || st.FromEdges == 0 {
		t.Errorf("the rig does not pass on: %+v", st.Counters)
	}

	edge := newEdgeRig(t)
	for range 10 {
		edge.turn()
	}
	if n := testing.AllocsPerRun(200, edge.turn); n != 0 {
		t.Errorf("edge: %v allocations for %d packets", n, 2*rigClients)
	}
	st = edge.srv.Stats()
	if st.ToClusters != st.ToUpstream || st.FromClusters != st.ToClients || st.Flows != rigClients || st.Unconfirmed != 0 {
		t.Errorf("the rig does not tunnel: %+v", st.Counters)
	}
}

// newEdgeRig is a rig whose clients' sessions are in another cluster.
func newEdgeRig(t testing.TB) *rig {
	t.Helper()
	far := sink(t, "127.0.12.1")
	cfg := config4(keyring(t, "a"))
	edgeOf(t, 1, cluster.Table{farCluster: {far, sink(t, "127.0.12.2")}})(&cfg)
	srv, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = srv.Close() })
	r := &rig{w: srv.workers[0], srv: srv}
	link := trunk.NewLink(1, [16]byte{})
	port := sink(t, "127.0.1.1").Port()
	var checks []udpbatch.Packet
	var frames []trunk.Frame
	for i := range rigClients {
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 1, byte(i + 1)}), port)
		id := mint(t, cfg.Codec, must(ufrag.IPv4Route(farCluster, netip.MustParseAddrPort("10.0.0.1:9"), uint32(i))))
		p := rtp(uint32(i), 160)
		checks = append(checks, udpbatch.Packet{Data: id.check(), From: from})
		r.up = append(r.up, udpbatch.Packet{Data: p, From: from})
		frames = append(frames, trunk.Frame{
			Flags: trunk.ToClient | trunk.Validated, Ingress: 7, Client: from, Route: id.route,
			SSRCs: [4]uint32{uint32(i)}, NSSRC: 1, Payload: p,
		})
		if len(frames) == 8 {
			r.down = append(r.down, udpbatch.Packet{Data: datagram(t, link, cfg.EdgeKeys, 3, frames...), From: far})
			frames = nil
		}
	}
	r.w.HandleBatch(0, checks)
	return r
}

func TestTunnelledClientsTakeNoMemory(t *testing.T) {
	r := newTunnelRig(t)
	r.turn()
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	const clients, at = 100_000, 800
	var before int64
	list := make([]netip.AddrPort, 0, at)
	for n := -at; n < clients; n += at {
		if n == 0 {
			before = heap() // after a first round, in which buffers grow
		}
		list = list[:0]
		for i := range at {
			k := at + n + i
			list = append(list, netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(k >> 8), byte(k)}), uint16(1024+k>>16)))
		}
		up, down := r.packets(t, list)
		r.w.HandleBatch(1, up)
		r.w.HandleBatch(1, down)
		r.w.Idle(r.w.now)
	}
	grown := heap() - before
	st := r.srv.Stats()
	if st.FromEdges < clients || st.ToEdges < clients || st.Flows != 0 {
		t.Fatalf("not tunnelled: %+v", st.Counters)
	}
	t.Logf("%d clients: the heap grew by %d bytes", clients, grown)
	if grown > clients { // a byte each
		t.Errorf("the heap grew by %d bytes for %d clients", grown, clients)
	}
}
