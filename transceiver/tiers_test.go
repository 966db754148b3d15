package transceiver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pion/webrtc/v4"

	"github.com/usher-rtc/usher/cluster"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/relay"
	"github.com/usher-rtc/usher/ufrag"
)

// site is an edge, cluster relays and Hosts on loopback addresses of their own:
// what each may talk to is decided by address and keys, as in a fleet.
type site struct {
	t                  *testing.T
	keys, trunk, links *ufrag.Keyring // of ufrags, of cluster relay and Host, of relays
	// the same keys in keyrings of each cluster relay's own
	clusterKeys, clusterLinks [2]*ufrag.Keyring
	directory                 *cluster.Static
	edge                      *relay.Server
	edgeTrunk                 netip.AddrPort
	ingress                   netip.AddrPort
	stopEdge                  func()
	clusters                  [2]*relay.Server
	clusterTrunk              [2]netip.AddrPort
	stopCluster               [2]func()
	hosts                     [2]*Host
}

const testCluster = 9

func prefixes(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func (s *site) start(cfg relay.Config) (*relay.Server, func()) {
	s.t.Helper()
	cfg.Workers, cfg.ReadBuffer, cfg.Codec, cfg.Logger = 1, 1<<18, ufrag.NewCodec(s.keys), quietLogger()
	r, err := relay.New(cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := r.Serve(); !errors.Is(err, net.ErrClosed) {
			s.t.Errorf("Serve: %v", err)
		}
	}()
	stopped := false
	stop := func() {
		if !stopped {
			stopped = true
			_ = r.Close()
			<-served
		}
	}
	s.t.Cleanup(stop)
	return r, stop
}

func (s *site) startEdge() {
	s.t.Helper()
	s.edge, s.stopEdge = s.start(s.edgeConfig(s.ingress, s.edgeTrunk))
	s.ingress, s.edgeTrunk = s.edge.Ingresses()[0].Listen, s.edge.TrunkAddrs()[0]
}

func (s *site) edgeConfig(ingress, trunk netip.AddrPort) relay.Config {
	return relay.Config{
		Ingresses: []relay.Ingress{{ID: 1, Listen: ingress}}, Trunk: trunk,
		Clusters: s.directory, AllowClusters: prefixes("127.0.12.0/24", "127.0.13.0/24"), EdgeKeys: s.links,
	}
}

func (s *site) startCluster(i int) {
	s.t.Helper()
	s.clusters[i], s.stopCluster[i] = s.start(relay.Config{
		Trunk: s.clusterTrunk[i], Cluster: testCluster, TrunkKeys: s.clusterKeys[i], EdgeKeys: s.clusterLinks[i],
		AllowUpstream: prefixes("127.0.13.0/24"), AllowEdges: prefixes("127.0.11.0/24"),
	})
	s.clusterTrunk[i] = s.clusters[i].TrunkAddrs()[0]
}

func newSite(t *testing.T, direct bool) *site {
	t.Helper()
	s := &site{t: t, keys: testKeys(t)}
	same := func(rings ...**ufrag.Keyring) {
		t.Helper()
		key := must(ufrag.GenerateKey('a'))
		for _, r := range rings {
			*r = must(ufrag.NewKeyring('a', key))
		}
	}
	same(&s.trunk, &s.clusterKeys[0], &s.clusterKeys[1])
	same(&s.links, &s.clusterLinks[0], &s.clusterLinks[1])
	s.ingress = netip.MustParseAddrPort("127.0.0.1:0")
	s.edgeTrunk = netip.MustParseAddrPort("127.0.11.1:0")
	table := cluster.Table{}
	for i := range s.clusters {
		s.clusterTrunk[i] = netip.MustParseAddrPort(fmt.Sprintf("127.0.12.%d:0", i+1))
		s.startCluster(i)
		table[testCluster] = append(table[testCluster], s.clusterTrunk[i])
	}
	var err error
	if s.directory, err = cluster.NewStatic(table); err != nil {
		t.Fatal(err)
	}
	s.startEdge()
	for i := range s.hosts {
		cfg := Config{
			Listen: netip.MustParseAddrPort(fmt.Sprintf("127.0.13.%d:0", i+1)), Cluster: testCluster,
			Codec: ufrag.NewCodec(s.keys), TrunkKeys: s.trunk, AllowRelays: prefixes("127.0.12.0/24"),
			Ingresses: []Ingress{{ID: 1, Advertise: s.ingress}}, OnSession: echoSession, Logger: quietLogger(),
		}
		if direct {
			cfg.AllowEdges, cfg.EdgeKeys = prefixes("127.0.11.0/24"), s.links
		}
		host, err := NewHost(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = host.Close() })
		s.hosts[i] = host
	}
	return s
}

// call places a call on a Host and returns what its client hears.
func (s *site) call(i int) (*client, *channel, <-chan uint16, *Session) {
	s.t.Helper()
	c := newClient(s.t, nil)
	ch := c.channel()
	back := c.microphone()
	session := c.call(s.hosts[i], AcceptOptions{})
	wait(s.t, "DTLS", session.Connected())
	ch.echo(s.t, fmt.Sprintf("host %d", i))
	<-back
	eventually(s.t, "a proven path", func() bool { return session.Stats().Validated })
	return c, ch, back, session
}

// localAddr is the address that a client sends from.
func (c *client) localAddr() netip.AddrPort {
	c.t.Helper()
	pair, err := c.pc.SCTP().Transport().ICETransport().GetSelectedCandidatePair()
	if err != nil || pair == nil {
		c.t.Fatalf("no selected pair: %v", err)
	}
	return netip.AddrPortFrom(netip.MustParseAddr(pair.Local.Address), pair.Local.Port)
}

// C35.
func TestTwoTiers(t *testing.T) {
	for name, direct := range map[string]bool{"by way of the cluster relay": false, "answered directly": true} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, direct)
			for i, host := range s.hosts {
				c, _, _, session := s.call(i)
				if got, want := session.Stats().ClientAddr, c.localAddr(); got != want {
					t.Errorf("host %d takes its client for %v, want %v", i, got, want)
				}
				if other := s.hosts[1-i]; other.Stats().Live != i {
					t.Errorf("the call for host %d is also at the other one: %+v", i, host.Stats())
				}
			}
			eventually(t, "two flows at the edge, confirmed", func() bool {
				st := s.edge.Stats()
				return st.Flows == 2 && st.Unconfirmed == 0
			})
			eventually(t, "all packets to have gone by the cluster relays", func() bool { // and none half-way counted
				st := s.edge.Stats()
				return st.ToClusters > 0 && st.ToClusters == st.ToUpstream && st.FromClusters == st.FromUpstream
			})
			if st := s.edge.Stats(); st.Created != 2 {
				t.Errorf("edge: %+v", st.Counters)
			}
			var from, to uint64
			for _, c := range s.clusters {
				st := c.Stats()
				if st.Flows != 0 || st.ToClusters != 0 {
					t.Errorf("a cluster relay keeps something: %+v", st.Counters)
				}
				from, to = from+st.FromEdges, to+st.ToEdges
			}
			if from == 0 || (to == 0) != direct {
				t.Errorf("%d packets from the edge, %d to it", from, to)
			}
			for _, r := range append(s.clusters[:], s.edge) {
				for reason, n := range r.Stats().Drops {
					// A client's answer to a check may come before its flow is known.
					if n > 0 && reason != "no flow" {
						t.Errorf("%d drops: %s", n, reason)
					}
				}
			}
		})
	}
}

// gap restarts something under a call and returns for how long its client heard
// nothing.
func gap(t *testing.T, back <-chan uint16, restart func()) time.Duration {
	t.Helper()
	for len(back) > 0 {
		<-back
	}
	last, longest := time.Now(), time.Duration(0)
	note := func() {
		now := time.Now()
		longest, last = max(longest, now.Sub(last)), now
	}
	done := make(chan struct{})
	go func() { defer close(done); restart() }()
	for restarted := false; ; {
		select {
		case <-back:
			note()
			if restarted {
				return longest
			}
		case <-done:
			done, restarted = nil, true
			for len(back) > 0 { // what was on its way
				<-back
			}
		case <-time.After(patience):
			t.Fatal("no audio after the restart")
		}
	}
}

// C37.
func TestEitherTierRestartsUnderACall(t *testing.T) {
	for name, direct := range map[string]bool{"by way of the cluster relay": false, "answered directly": true} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, direct)
			_, ch, back, session := s.call(0)
			for _, step := range []struct {
				what    string
				restart func()
			}{
				{"edge", func() { s.stopEdge(); s.startEdge() }},
				{"first cluster relay", func() { s.stopCluster[0](); s.startCluster(0) }},
				{"second cluster relay", func() { s.stopCluster[1](); s.startCluster(1) }},
				{"both cluster relays", func() {
					s.stopCluster[0]()
					s.stopCluster[1]()
					s.startCluster(0)
					s.startCluster(1)
				}},
				{"everything between", func() {
					s.stopCluster[0]()
					s.stopCluster[1]()
					s.stopEdge()
					s.startCluster(0)
					s.startCluster(1)
					s.startEdge()
				}},
			} {
				t.Logf("%s restarted: silence for %v", step.what, gap(t, back, step.restart))
				ch.echo(t, step.what)
			}
			if st := session.Stats(); st.PathChanges != 0 {
				t.Errorf("the session moved: %+v", st)
			}
		})
	}
}

// mutableClient is a client and its socket, which can be muted.
func mutableClient(t *testing.T) (*client, *mutable) {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	socket := &mutable{PacketConn: conn}
	return newClient(t, func(se *webrtc.SettingEngine) {
		mux := webrtc.NewICEUDPMux(nil, socket)
		t.Cleanup(func() { _ = mux.Close() })
		se.SetICEUDPMux(mux)
	}), socket
}

func TestARestartedEdgeIsToldItsSilentFlows(t *testing.T) {
	for name, direct := range map[string]bool{"by way of the cluster relay": false, "answered directly": true} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, direct)
			c, socket := mutableClient(t)
			ch := c.channel()
			session := c.call(s.hosts[0], AcceptOptions{})
			wait(t, "DTLS", session.Connected())
			ch.echo(t, "hello")
			eventually(t, "a proven path", func() bool { return session.Stats().Validated })
			socket.muted.Store(true)
			s.stopEdge()
			s.startEdge()
			eventually(t, "the flow", func() bool { return s.edge.Stats().Flows == 1 })
			if st := s.edge.Stats(); st.Learned != 1 || st.Created != 0 || st.Unconfirmed != 0 {
				t.Errorf("the flow did not come from the Host: %+v", st.Counters)
			}
			if f := s.edge.Flows(0); len(f) != 1 || f[0].Key.Client != c.localAddr() || !f[0].Route.SameHost(s.hosts[0].Route()) {
				t.Errorf("flows: %+v", f)
			}
			socket.muted.Store(false)
			ch.echo(t, "after")
		})
	}
}

// An edge that drains tells the cluster relays, and the other edge of its ingress
// has the flows before a balancer sends it the clients.
func TestADrainingEdgeIsSucceeded(t *testing.T) {
	for name, direct := range map[string]bool{"by way of the cluster relay": false, "answered directly": true} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, direct)
			c, ch, _, _ := s.call(0)
			other, _ := s.start(s.edgeConfig(netip.MustParseAddrPort("127.0.0.1:0"), netip.MustParseAddrPort("127.0.11.2:0")))
			// It asks for the flows at its ingress when it starts, and forgets none
			// that it is told while the other drains.
			eventually(t, "the flow at the edge that has just started", func() bool { return other.Stats().Learned == 1 })
			ctx, cancel := context.WithCancel(context.Background())
			drained := make(chan struct{})
			go func() {
				defer close(drained)
				_ = s.edge.Shutdown(ctx)
			}()
			third, _ := s.start(s.edgeConfig(netip.MustParseAddrPort("127.0.0.1:0"), netip.MustParseAddrPort("127.0.11.3:0")))
			eventually(t, "the flow at another edge", func() bool { return third.Stats().Flows == 1 })
			if f := third.Flows(0); f[0].Key.Client != c.localAddr() || !f[0].Route.SameHost(s.hosts[0].Route()) {
				t.Errorf("flows: %+v", f)
			}
			ch.echo(t, "while it drains")
			cancel()
			wait(t, "the end of the drain", drained)
		})
	}
}

// mutable is a client's socket that can lose what it sends.
type mutable struct {
	net.PacketConn
	muted atomic.Bool
}

func (m *mutable) WriteTo(b []byte, to net.Addr) (int, error) {
	if m.muted.Load() {
		return len(b), nil
	}
	return m.PacketConn.WriteTo(b, to)
}

func TestEdgesAreNotRelaysToAHost(t *testing.T) {
	s := newSite(t, true)
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 11, 66)})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	send := func(keys *ufrag.Keyring) {
		d := frameFor(t, keys, &trunk.Frame{Ingress: 1, Client: netip.MustParseAddrPort("192.0.2.1:9"), Payload: []byte{0x80}})
		if _, err := conn.WriteToUDPAddrPort(d, s.hosts[0].Addr()); err != nil {
			t.Fatal(err)
		}
	}
	// Neither a packet of a client under the edges' keys, nor any under the cluster
	// relays' keys from an edge's address.
	send(s.links)
	eventually(t, "a refusal", func() bool { return s.hosts[0].Stats().Drops[DropRelayRefused] == 1 })
	send(s.trunk)
	eventually(t, "a refusal", func() bool { return s.hosts[0].Stats().Drops[DropTrunk] == 1 })
	if st := s.hosts[0].Stats(); st.FramesIn != 0 {
		t.Errorf("%d frames were taken", st.FramesIn)
	}
}
