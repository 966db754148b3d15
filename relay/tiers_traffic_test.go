package relay

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/usher-rtc/usher/cluster"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/ufrag"
)

// tunnel is an edge and a cluster relay under traffic of many clients in both
// directions.
type tunnel struct {
	t         *testing.T
	edge, far *bench
	host      *host
	id        identity
	callers   []*caller
	work      sync.WaitGroup
	stop      chan struct{}
	end       func()
}

// newTunnel makes both relays ready for successors. change may alter both, edge the
// edge alone.
func newTunnel(t *testing.T, flows int, six bool, change, edge func(*Config)) *tunnel {
	t.Helper()
	tu := &tunnel{t: t, stop: make(chan struct{})}
	tu.end = sync.OnceFunc(func() { close(tu.stop) })
	dir := t.TempDir()
	tu.far = newBench(t, func(c *Config) {
		clusterRelay(t, 1)(c)
		if six {
			// Edges come by IPv6, the Host by IPv4.
			c.Trunk, c.AllowEdges = netip.MustParseAddrPort("[::]:0"), prefix("::1/128")
		}
		c.Handover = filepath.Join(dir, "far.sock")
		change(c)
	})
	table := cluster.Table{}
	for _, a := range tu.far.srv.TrunkAddrs() {
		if six {
			a = netip.AddrPortFrom(netip.IPv6Loopback(), a.Port())
		}
		table[farCluster] = append(table[farCluster], a)
	}
	tu.edge = newBench(t, func(c *Config) {
		edgeOf(t, 1, table)(c)
		if six {
			c.Trunk, c.AllowClusters = netip.MustParseAddrPort("[::1]:0"), prefix("::1/128")
		}
		c.Handover = filepath.Join(dir, "edge.sock")
		change(c)
		edge(c)
	})
	tu.host = tu.far.host(func(h *host, r received) {
		h.send(r.from, trunk.Frame{
			Flags: trunk.ToClient | trunk.Validated, Ingress: r.Ingress, Client: r.Client, Return: r.Return, Route: r.Route,
			SSRCs: [4]uint32{0xabc}, NSSRC: 1, Payload: r.Payload,
		})
	})
	tu.work.Go(func() {
		for {
			select {
			case <-tu.host.got: // so that its record does not fill up
			case <-tu.stop:
				return
			}
		}
	})
	tu.id = mint(t, tu.edge.srv.cfg.Codec, must(ufrag.IPv4Route(farCluster, tu.host.addr(), 1)))
	for i := range flows {
		conn := tu.edge.client(fmt.Sprintf("127.0.1.%d", 1+i%100), 0)
		conn.send(tu.id.check())
		c := &caller{conn: conn.conn, answered: make(map[uint32]bool)}
		tu.callers = append(tu.callers, c)
		tu.work.Go(c.read)
	}
	t.Cleanup(func() {
		tu.end()
		for _, c := range tu.callers {
			_ = c.conn.Close()
		}
		tu.work.Wait()
	})
	tu.edge.eventually(func() error {
		if st := tu.edge.srv.Stats(); st.Flows != uint64(flows) || st.Unconfirmed != 0 {
			return fmt.Errorf("%d flows, %d unconfirmed", st.Flows, st.Unconfirmed)
		}
		return nil
	})
	return tu
}

// talk lets all clients send.
func (tu *tunnel) talk() {
	to := tu.edge.ingress(0)
	for i, c := range tu.callers {
		tu.work.Go(func() {
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			p := rtp(uint32(i), 100)
			for {
				select {
				case <-tu.stop:
					return
				case <-tick.C:
				}
				if c.lost() >= 4 {
					continue // what a busy machine does not read in time must fit the sockets' buffers
				}
				binary.BigEndian.PutUint32(p[12:], c.sent.Load())
				if _, err := c.conn.WriteToUDPAddrPort(p, to); err != nil {
					tu.t.Error(err)
					return
				}
				c.sent.Add(1)
			}
		})
	}
}

func (tu *tunnel) sent() (n int) {
	for _, c := range tu.callers {
		n += int(c.sent.Load())
	}
	return n
}

// run waits until every client has sent a few packets more.
func (tu *tunnel) run() {
	tu.t.Helper()
	target := tu.sent() + 4*len(tu.callers)
	tu.edge.eventually(func() error {
		if n := tu.sent(); n < target {
			return fmt.Errorf("%d of %d sent", n, target)
		}
		return nil
	})
}

// lost ends the traffic and returns how many packets did not come back.
func (tu *tunnel) lost() (lost int) {
	tu.end()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		lost = 0
		for _, c := range tu.callers {
			lost += c.lost()
		}
		if lost == 0 || time.Now().After(deadline) {
			return lost
		}
	}
}

// TestUpgradesOfBothTiersLoseNothing hands the edge and the cluster relay over under
// traffic, several times each: IPv4 or IPv6 between them, one or two workers, batching
// on purpose, and a flow store at the edge.
func TestUpgradesOfBothTiersLoseNothing(t *testing.T) {
	needHandover(t)
	nothing := func(*Config) {}
	two := func(c *Config) {
		if runtime.GOOS == "linux" {
			c.Workers = 2
		}
	}
	for _, tt := range []struct {
		name         string
		six          bool
		change, edge func(*Config)
	}{
		{"one worker", false, nothing, nothing},
		{"two workers", false, two, nothing},
		{"IPv6, two workers", true, two, nothing},
		{"two workers that batch", true, func(c *Config) { two(c); c.MaxBatchDelay = time.Millisecond }, nothing},
		{"two workers and a flow store", false, two, withStore(newTestStore())},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const flows, upgrades = 40, 3
			tu := newTunnel(t, flows, tt.six, tt.change, tt.edge)
			workers := tu.edge.srv.cfg.Workers
			tu.talk()
			tu.run()
			for range upgrades {
				tu.edge.upgrade(tu.edge.successor())
				tu.edge.eventually(func() error {
					if st := tu.edge.srv.Stats(); st.Inherited != flows || st.Created+st.Learned+st.Restored > 0 {
						return fmt.Errorf("%d inherited, %d created, %d learned, %d restored", st.Inherited, st.Created, st.Learned, st.Restored)
					}
					return nil
				})
				tu.run()
				tu.far.upgrade(tu.far.successor())
				tu.run()
			}
			// Each worker of both tiers had its share.
			for what, b := range map[string]*bench{"edge": tu.edge, "cluster relay": tu.far} {
				st := b.srv.Stats()
				for i, w := range st.Workers {
					if w.TrunkReceived == 0 || len(st.Workers) != workers {
						t.Errorf("%s: worker %d of %d received nothing", what, i, len(st.Workers))
					}
				}
			}
			if n := tu.lost(); n != 0 {
				t.Errorf("%d of %d packets did not come back; drops: %v, %v", n, tu.sent(), tu.edge.allDrops(), tu.far.allDrops())
			}
			t.Logf("sent %d in %d upgrades", tu.sent(), 2*upgrades)
			if st := tu.far.srv.Stats(); st.Flows != 0 {
				t.Errorf("the cluster relay keeps %d flows", st.Flows)
			}
			if st := tu.edge.srv.Stats(); st.Redirected != 0 {
				t.Errorf("%d flows were redirected, and no relay was lost", st.Redirected)
			}
			if tu.host.goodbyes() != 0 {
				t.Error("the Host was told goodbye")
			}
		})
	}
}

// TestEdgeFindsTunnelledFlowsInItsStore restarts an edge whose clients only send media:
// the flow store knows the routes, and nothing else has to.
func TestEdgeFindsTunnelledFlowsInItsStore(t *testing.T) {
	store := newTestStore()
	far := newBench(t, clusterRelay(t, 1))
	h := far.host(nil)
	table := cluster.Table{farCluster: {far.trunk()}}
	start := func() *bench {
		return newBench(t, func(c *Config) { edgeOf(t, 1, table)(c); withStore(store)(c) })
	}
	edge := start()
	id := mint(t, edge.srv.cfg.Codec, must(ufrag.IPv4Route(farCluster, h.addr(), 5)))
	c := edge.client("127.0.1.1", 0)
	c.send(id.check())
	got := h.want(c.addr())
	h.send(got.from, trunk.Frame{Flags: trunk.ToClient | trunk.Validated, Ingress: 7, Client: c.addr(), Return: got.Return, Route: id.route, Payload: []byte("x")})
	c.want("x")
	edge.until("written", 1, func(st Stats) uint64 { return st.Store.Written })
	if err := edge.srv.Close(); err != nil {
		t.Fatal(err)
	}
	edge = start()
	c.to = edge.ingress(0)
	c.send(rtp(3, 100))
	if got := h.want(c.addr()); got.Route != id.route || got.Return != edge.trunk() || got.Flags&trunk.Unverified != 0 {
		t.Errorf("the Host got %+v", got.Frame)
	}
	edge.until("restored", 1, func(st Stats) uint64 { return st.Restored })
}
