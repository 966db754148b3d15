//go:build unix

package redisflow

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/usher-rtc/usher/cluster"
	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/stun"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/relay"
	"github.com/usher-rtc/usher/ufrag"
)

// A relay with a real Redis, a client and a stand-in for a Host.

type site struct {
	t       *testing.T
	ring    *ufrag.Keyring
	store   *Store
	host    *net.UDPConn
	link    *trunk.Link
	client  *net.UDPConn
	ingress netip.AddrPort
	srv     *relay.Server
	done    chan error
	last    trunk.Frame    // that the Host got
	far     *relay.Server  // nil: the Host is this relay's own
	links   *ufrag.Keyring // of the relays
}

// farCluster is the Host's, if it is behind a cluster relay.
const farCluster = 9

func newSite(t *testing.T, store *Store) *site {
	t.Helper()
	key, err := ufrag.GenerateKey('a')
	if err != nil {
		t.Fatal(err)
	}
	ring, err := ufrag.NewKeyring('a', key)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, ring: ring, store: store, link: trunk.NewLink(4711, [16]byte{1})}
	s.host, s.client = listen(t), listen(t)
	s.ingress = netip.MustParseAddrPort("127.0.0.1:0")
	s.start()
	t.Cleanup(s.stop)
	return s
}

func listen(t *testing.T) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func local(c *net.UDPConn) netip.AddrPort { return c.LocalAddr().(*net.UDPAddr).AddrPort() }

// behindAClusterRelay makes the relay an edge and the Host one of another cluster.
func (s *site) behindAClusterRelay() {
	s.t.Helper()
	s.stop()
	key, err := ufrag.GenerateKey('e')
	if err != nil {
		s.t.Fatal(err)
	}
	if s.links, err = ufrag.NewKeyring('e', key); err != nil {
		s.t.Fatal(err)
	}
	s.far, err = relay.New(relay.Config{
		Trunk: netip.MustParseAddrPort("127.0.0.1:0"), Workers: 1, Cluster: farCluster,
		Codec: ufrag.NewCodec(s.ring), TrunkKeys: s.ring, EdgeKeys: s.links,
		AllowUpstream: loopback, AllowEdges: loopback, ReadBuffer: 1 << 18, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.far.Serve() }()
	s.t.Cleanup(func() {
		_ = s.far.Close()
		<-done
	})
	s.start()
}

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

func (s *site) start() {
	s.t.Helper()
	cfg := relay.Config{
		Ingresses: []relay.Ingress{{ID: 7, Listen: s.ingress}},
		Trunk:     netip.MustParseAddrPort("127.0.0.1:0"),
		Workers:   1, Codec: ufrag.NewCodec(s.ring), TrunkKeys: s.ring,
		AllowUpstream: loopback,
		MaxFlows:      1000, ReadBuffer: 1 << 18, Logger: slog.New(slog.DiscardHandler),
		Store: s.store, StoreTimeout: time.Second,
	}
	if s.far != nil {
		directory, err := cluster.NewStatic(cluster.Table{farCluster: s.far.TrunkAddrs()})
		if err != nil {
			s.t.Fatal(err)
		}
		cfg.Clusters, cfg.AllowClusters, cfg.EdgeKeys = directory, loopback, s.links
		cfg.TrunkKeys, cfg.AllowUpstream = nil, nil
	}
	srv, err := relay.New(cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.srv, s.done = srv, make(chan error, 1)
	s.ingress = srv.Ingresses()[0].Listen
	go func() { s.done <- srv.Serve() }()
}

func (s *site) stop() {
	if err := s.srv.Close(); err != nil {
		s.t.Error(err)
	}
	if err := <-s.done; !errors.Is(err, relay.ErrServerClosed) {
		s.t.Error(err)
	}
}

func (s *site) key() flowtable.Key { return flowtable.Key{Client: local(s.client), Ingress: 7} }

func (s *site) send(p []byte) {
	s.t.Helper()
	if _, err := s.client.WriteToUDPAddrPort(p, s.ingress); err != nil {
		s.t.Fatal(err)
	}
}

// call makes a confirmed flow and waits until the store has it.
func (s *site) call(session uint32) {
	s.t.Helper()
	before := s.srv.Stats().Store.Written
	s.check(session)
	s.answer(s.frame())
	eventually(s.t, 10*time.Second, "the flow is written", func() bool { return s.srv.Stats().Store.Written > before })
}

// check is a connectivity check for a session of the Host.
func (s *site) check(session uint32) {
	s.t.Helper()
	cluster := uint16(0)
	if s.far != nil {
		cluster = farCluster
	}
	route, err := ufrag.IPv4Route(cluster, local(s.host), session)
	if err != nil {
		s.t.Fatal(err)
	}
	codec := ufrag.NewCodec(s.ring)
	u, err := codec.Encode(route)
	if err != nil {
		s.t.Fatal(err)
	}
	password, err := codec.AppendPassword(nil, []byte(u))
	if err != nil {
		s.t.Fatal(err)
	}
	var b stun.Builder
	var a stun.Authenticator
	b.Reset(nil, 0x0001, stun.TransactionID{byte(session)})
	b.AddUsername(u, "remote")
	b.AddIntegrity(&a, password)
	b.AddFingerprint()
	s.send(b.Bytes())
}

// answer is a validated frame of the Host to the client.
func (s *site) answer(relay netip.AddrPort) {
	s.t.Helper()
	bundle := trunk.NewBuilder(trunk.MaxDatagram)
	h := s.link.Header(trunk.TypeData)
	bundle.Reset(&h)
	bundle.Add(&trunk.Frame{
		Flags: trunk.ToClient | trunk.Validated, Ingress: 7, Client: local(s.client),
		Route: s.last.Route, Return: s.last.Return, Payload: []byte("x"),
	})
	if !bundle.Seal(s.ring) {
		s.t.Fatal("seal")
	}
	var d []byte
	for _, piece := range bundle.Buffers() {
		d = append(d, piece...)
	}
	if _, err := s.host.WriteToUDPAddrPort(d, relay); err != nil {
		s.t.Fatal(err)
	}
}

// frame waits until the Host gets a packet of the client.
func (s *site) frame() (relay netip.AddrPort) {
	s.t.Helper()
	buf := make([]byte, 1<<16)
	var r trunk.Reader
	var h trunk.Header
	_ = s.host.SetReadDeadline(time.Now().Add(time.Minute))
	for {
		n, from, err := s.host.ReadFromUDPAddrPort(buf)
		if err != nil {
			s.t.Fatalf("the Host got nothing: %v; %+v", err, s.srv.Stats().Store)
		}
		if p := r.Open(buf[:n], s.ring, &h); p != trunk.OK {
			s.t.Fatal(p)
		}
		var f trunk.Frame
		for r.Next(&f) {
			if f.Client == local(s.client) {
				s.last = f
				s.last.Payload = nil
				return from
			}
		}
	}
}

// media looks like SRTP.
func media() []byte {
	return append([]byte{0x80, 111, 0, 1, 0, 0, 0, 2, 0, 0, 0, 9}, make([]byte, 40)...)
}

func TestRestartedRelayFindsItsFlowsInRedis(t *testing.T) {
	srv := start(t)
	s := newSite(t, open(t, Config{Addrs: []string{srv.addr}}))
	s.call(1)
	for round := range 5 {
		s.stop()
		s.start()
		s.send(media())
		s.frame()
		if st := s.srv.Stats(); st.Store.Hits != 1 || st.Store.Lookups != 1 {
			t.Errorf("round %d: %+v", round, st.Store)
		}
	}
}

// An edge's flows lead to another cluster, by the route that Redis has.
func TestRestartedEdgeFindsItsFlowsInRedis(t *testing.T) {
	srv := start(t)
	s := newSite(t, open(t, Config{Addrs: []string{srv.addr}}))
	s.behindAClusterRelay()
	s.call(1)
	want := s.last.Route
	for round := range 3 {
		s.stop()
		s.start()
		s.send(media())
		s.frame()
		if s.last.Route != want || s.last.Return != s.srv.TrunkAddrs()[0] {
			t.Errorf("round %d: the Host got %+v", round, s.last)
		}
		if st := s.srv.Stats(); st.Store.Hits != 1 || st.Restored != 1 || st.ToClusters != 1 {
			t.Errorf("round %d: %+v", round, st.Store)
		}
	}
}

// C77 with what a person can type into redis-cli.
func TestPoisonedRedis(t *testing.T) {
	srv := start(t)
	s := newSite(t, open(t, Config{Addrs: []string{srv.addr}}))
	s.call(1)
	name := DefaultPrefix + s.key().String()
	good := srv.command("GET", name)
	if len(good) != flowtable.ValueLen {
		t.Fatalf("%d bytes in Redis", len(good))
	}
	for i, tc := range []struct {
		reason string // "": a miss
		set    func()
	}{
		{"", func() { srv.must("SET", name, "") }},
		{"", func() { srv.command("DEL", name) }},
		{"unknown version", func() { srv.must("SET", name, string(make([]byte, 1<<20))) }},
		{"unknown version", func() { srv.must("SET", name, "127.0.0.1:9") }},
		{"unknown version", func() { srv.command("DEL", name); srv.command("RPUSH", name, "x") }},
		{"wrong length", func() { srv.must("SET", name, good[:len(good)-1]) }},
		{"wrong mac", func() { srv.must("SET", name, good[:len(good)-1]+string([]byte{good[len(good)-1] ^ 1})) }},
		{"wrong mac", func() { srv.must("SET", name, good[:6]+"\x10\x00\x7f\x00\x00\x01\x00\x09"+good[14:]) }},
	} {
		s.stop()
		tc.set()
		s.start()
		s.send(media())
		eventually(t, 10*time.Second, fmt.Sprintf("value %d is refused", i), func() bool {
			st := s.srv.Stats()
			if tc.reason == "" {
				return st.Store.Misses == 1 && st.Drops["no flow"] == 1
			}
			return st.Store.Refused[tc.reason] == 1 && st.Drops["no flow"] == 1
		})
		s.call(uint32(10 + i)) // and the next check repairs it
		s.stop()
		s.start()
		s.send(media())
		s.frame()
	}
}

// Redis is killed and comes back empty: live flows are in it again soon.
func TestRedisRestartedEmpty(t *testing.T) {
	srv := start(t)
	s := newSite(t, open(t, Config{Addrs: []string{srv.addr}}))
	s.call(1)
	srv.kill()
	// An ICE restart is something to write, so that the relay notices.
	s.check(2)
	s.frame()
	eventually(t, 20*time.Second, "a write fails", func() bool { return s.srv.Stats().Store.WriteErrors > 0 })
	srv.restart()
	// Another client's call is the first write that succeeds.
	first := s.key()
	s.client = listen(t)
	s.call(3)
	eventually(t, 30*time.Second, "the first flow is in Redis again", func() bool {
		return len(srv.command("GET", DefaultPrefix+first.String())) == flowtable.ValueLen
	})
}

// Redis is restarted empty while no relay writes: the relay notices all the same, long
// before a refresh is due.
func TestAnEmptyRedisIsNoticed(t *testing.T) {
	srv := start(t)
	s := newSite(t, open(t, Config{Addrs: []string{srv.addr}}))
	s.call(1)
	srv.kill()
	srv.restart()
	eventually(t, 40*time.Second, "the flow is in Redis again", func() bool {
		return len(srv.command("GET", DefaultPrefix+s.key().String())) == flowtable.ValueLen
	})
	if st := s.srv.Stats().Store; st.Restarts != 1 || st.WriteErrors != 0 {
		t.Errorf("%+v", st)
	}
}

// C78: a full Redis evicts, or refuses to write; neither is worse than a miss.
func TestFullRedis(t *testing.T) {
	for _, policy := range []string{"allkeys-lru", "noeviction"} {
		srv := start(t, "--maxmemory", "3mb", "--maxmemory-policy", policy)
		s := open(t, Config{Addrs: []string{srv.addr}})
		var keys []flowtable.Key
		var entries []flowtable.Entry
		failed := 0
		for i := range 50_000 {
			keys = append(keys, key(i))
			entries = append(entries, flowtable.Entry{Key: keys[i], Value: make([]byte, flowtable.ValueLen)})
			if len(entries) == 500 {
				if err := s.Save(within(t, 10*time.Second), entries, time.Minute); err != nil {
					failed++
				}
				entries = entries[:0]
			}
		}
		values, err := s.Load(within(t, 10*time.Second), keys)
		if err != nil {
			t.Errorf("%s: Load: %v", policy, err)
		}
		found := 0
		for _, v := range values {
			if v != nil {
				found++
			}
		}
		if found == 0 || found == len(keys) {
			t.Errorf("%s: %d of %d flows are there", policy, found, len(keys))
		}
		if (failed > 0) != (policy == "noeviction") {
			t.Errorf("%s: %d batches failed", policy, failed)
		}
	}
}
