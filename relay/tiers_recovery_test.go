package relay

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/usher-rtc/usher/cluster"
	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/internal/udpbatch"
	"github.com/usher-rtc/usher/ufrag"
)

// listeners are clients of a Host behind two cluster relays that have sent one check
// and from then on say nothing.
type listeners struct {
	far     [2]*bench
	rings   [2]*ufrag.Keyring
	edge    *bench
	host    *host
	clients []*client
	via     map[netip.AddrPort]netip.AddrPort // by client: the cluster relay of its last packet
}

func newListeners(t *testing.T) *listeners {
	t.Helper()
	l := &listeners{via: make(map[netip.AddrPort]netip.AddrPort)}
	for i := range l.far {
		l.rings[i] = keyring(t, "e")
		l.far[i] = newBench(t, func(c *Config) { clusterRelay(t, i+1)(c); c.EdgeKeys = l.rings[i] })
	}
	l.edge = newEdge(t, l.far[0], l.far[1])
	l.host = l.far[0].host(nil)
	// As many clients as it takes until some come by either relay.
	used := make(map[netip.AddrPort]bool)
	for i := 0; i < 16 || len(used) < len(l.far); i++ {
		if i == 200 {
			t.Fatalf("of %d clients all came by %v", i, used)
		}
		c := l.edge.client(fmt.Sprintf("127.0.1.%d", i+1), 0)
		id := mint(t, l.edge.srv.cfg.Codec, must(ufrag.IPv4Route(farCluster, l.host.addr(), uint32(i))))
		c.send(id.check())
		got := l.host.want(c.addr())
		l.host.send(got.from, trunk.Frame{
			Flags: trunk.ToClient | trunk.Validated, Ingress: 7, Client: c.addr(), Return: got.Return, Route: id.route, Payload: []byte("answer"),
		})
		c.want("answer")
		l.clients, l.via[c.addr()] = append(l.clients, c), got.from
		used[got.from] = true
	}
	return l
}

// told waits until the Host was told, without a packet of theirs, to answer all
// clients by one relay.
func (l *listeners) told(t *testing.T, by *bench) time.Duration {
	t.Helper()
	start := time.Now()
	moved := make(map[netip.AddrPort]bool)
	for len(moved) < len(l.clients) {
		select {
		case r := <-l.host.got:
			if len(r.Payload) > 0 || r.from != by.trunk() || r.Return != l.edge.trunk() || r.Flags&trunk.Unverified != 0 {
				t.Fatalf("the Host got %+v from %v", r.Frame, r.from)
			}
			moved[r.Client] = true
		case <-time.After(patience):
			t.Fatalf("%d of %d clients' Host was told; edge: %+v", len(moved), len(l.clients), l.edge.srv.Stats().Counters)
		}
	}
	l.edge.until("redirected", uint64(len(l.clients)), func(st Stats) uint64 { return st.Redirected })
	return time.Since(start)
}

// TestHostsOfListenersHearOfADeadRelay kills a cluster relay under clients that only
// listen. The edge has their Host answer by the other one before they say anything.
func TestHostsOfListenersHearOfADeadRelay(t *testing.T) {
	t.Run("without a word", func(t *testing.T) {
		l := newListeners(t)
		if err := l.rings[0].Replace('x', ufrag.Key{ID: 'x', Secret: [32]byte{9}}); err != nil { // deaf and dumb
			t.Fatal(err)
		}
		t.Logf("told after %v", l.told(t, l.far[1]))
	})
	t.Run("with a goodbye", func(t *testing.T) {
		l := newListeners(t)
		if err := l.far[0].srv.Close(); err != nil {
			t.Fatal(err)
		}
		t.Logf("told after %v", l.told(t, l.far[1]))
	})
	t.Run("taken out of the directory", func(t *testing.T) {
		l := newListeners(t)
		if err := l.edge.srv.cfg.Clusters.(*cluster.Static).Replace(cluster.Table{farCluster: {l.far[1].trunk()}}); err != nil {
			t.Fatal(err)
		}
		t.Logf("told after %v", l.told(t, l.far[1]))
	})
}

// TestRedirectCoversATableAndNoMore walks over more flows than one step looks at:
// those of the cluster whose client is validated, each once.
func TestRedirectCoversATableAndNoMore(t *testing.T) {
	r := newEdgeRig(t)
	w := r.w
	w.Idle(time.Now())
	far, other := w.clusters.all[farCluster].best[0], must(ufrag.IPv4Route(farCluster+1, netip.MustParseAddrPort("10.0.0.1:9"), 1))
	const flows = 2*redirectSlots + 10
	shard := w.shard()
	shard.Lock()
	want := uint64(0)
	for i := range flows {
		f := flowtable.Flow{
			Key:   flowtable.Key{Client: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 5000), Ingress: 7},
			Route: must(ufrag.IPv4Route(farCluster, netip.MustParseAddrPort("10.0.0.1:9"), uint32(i))), Upstream: far,
			State: flowtable.Confirmed, LastUpstream: w.ticks(), Since: w.ticks(),
		}
		switch i % 3 {
		case 1:
			f.Route = other
		case 2:
			if i%2 == 0 {
				f.State = flowtable.Unconfirmed
			} else {
				want++
			}
		default:
			want++
		}
		if _, ok := shard.Insert(&f); !ok {
			t.Fatal("insert")
		}
	}
	shard.Unlock()
	w.redirects.start(farCluster)
	steps := 0
	for w.redirects.clusters != nil {
		if wait := w.Idle(time.Now()); w.redirects.clusters != nil && wait > redirectPause {
			t.Fatalf("the next step is due in %v", wait)
		}
		if steps++; steps > 10 {
			t.Fatal("no end")
		}
	}
	if got := w.counts.now[cRedirected]; got != want || steps < 3 {
		t.Errorf("%d flows in %d steps, want %d", got, steps, want)
	}
}

// lossy is a Host or an edge that stands on a socket of the test, and answers what it
// wants to.
type lossy struct {
	t    *testing.T
	conn *net.UDPConn
	ring *ufrag.Keyring
	role trunk.Role
	ids  []uint16

	mu        sync.Mutex
	link      *trunk.Link
	deaf      bool // to announcements
	announced map[uint32]int
	flows     []trunk.Frame
	goodbyes  int // that say draining; each is answered
}

func newLossy(t *testing.T, ip string, epoch uint64, ring *ufrag.Keyring, role trunk.Role, ids ...uint16) *lossy {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(ip)})
	if err != nil {
		t.Fatal(err)
	}
	l := &lossy{
		t: t, conn: conn, ring: ring, role: role, ids: ids,
		link: trunk.NewLink(epoch, [16]byte{byte(epoch)}), announced: make(map[uint32]int),
	}
	var wg sync.WaitGroup
	wg.Go(l.read)
	t.Cleanup(func() {
		_ = conn.Close()
		wg.Wait()
	})
	return l
}

func (l *lossy) addr() netip.AddrPort { return l.conn.LocalAddr().(*net.UDPAddr).AddrPort() }

func (l *lossy) read() {
	buf := make([]byte, 1<<16)
	var r trunk.Reader
	var h trunk.Header
	for {
		n, from, err := l.conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		l.mu.Lock()
		if r.Open(buf[:n], l.ring, &h) == trunk.OK {
			l.link.Observe(&h)
			l.control(&r, &h, from)
		}
		l.mu.Unlock()
	}
}

func (l *lossy) control(r *trunk.Reader, h *trunk.Header, from netip.AddrPort) {
	out := func(b []byte, ok bool) {
		if ok {
			_, _ = l.conn.WriteToUDPAddrPort(b, from)
		}
	}
	switch h.Type {
	case trunk.TypeHello:
		var m trunk.Hello
		if m.Parse(r.Body()) == trunk.OK {
			ack := l.link.OnHello(h, &m)
			ack.Role, ack.Ingresses = l.role, l.ids
			head := l.link.Header(trunk.TypeHelloAck)
			out(ack.Append(nil, &head, l.ring))
		}
	case trunk.TypeHelloAck:
		var m trunk.HelloAck
		if m.Parse(r.Body()) == trunk.OK {
			if ack, reply, _ := l.link.OnHelloAck(h, &m); reply {
				ack.Role, ack.Ingresses = l.role, l.ids
				head := l.link.Header(trunk.TypeHelloAck)
				out(ack.Append(nil, &head, l.ring))
			}
		}
	case trunk.TypeAnnounce:
		var m trunk.Announce
		if m.Parse(r.Body()) != trunk.OK || m.Reply || !l.link.Accept(h, m.To) {
			return
		}
		l.announced[m.Token]++
		l.flows = append(l.flows, slices.Clone(m.Flows)...)
		if !l.deaf {
			head := l.link.Header(trunk.TypeAnnounce)
			b, _, ok := (&trunk.Announce{To: h.Epoch, Token: m.Token, Reply: true}).Append(nil, &head, l.ring, 0)
			out(b, ok)
		}
	case trunk.TypeGoodbye:
		var m trunk.Goodbye
		if m.Parse(r.Body()) == trunk.OK && l.link.Accept(h, m.To) && m.Reason == trunk.ReasonDraining {
			l.goodbyes++
			head := l.link.Header(trunk.TypeGoodbye)
			out((&trunk.Goodbye{To: h.Epoch, Token: m.Token, Reply: true, Reason: m.Reason}).Append(nil, &head, l.ring))
		}
	default:
	}
}

// meet says hello to a relay until each has proof of the other.
func (l *lossy) meet(b *bench) {
	l.t.Helper()
	b.eventually(func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if _, ok := l.link.Peer(); ok {
			return nil
		}
		if nonce, ok := l.link.Hello(time.Now()); ok {
			h := l.link.Header(trunk.TypeHello)
			d, _ := (&trunk.Hello{Nonce: nonce, Role: l.role, Ingresses: l.ids}).Append(nil, &h, l.ring)
			_, _ = l.conn.WriteToUDPAddrPort(d, b.trunk())
		}
		return errors.New("no proof")
	})
}

// say sends a control datagram.
func (l *lossy) say(to netip.AddrPort, build func(peer uint64) ([]byte, bool)) {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	peer, _ := l.link.Peer()
	b, ok := build(peer)
	if !ok {
		l.t.Fatal("cannot build a datagram")
	}
	if _, err := l.conn.WriteToUDPAddrPort(b, to); err != nil {
		l.t.Error(err)
	}
}

func (l *lossy) announce(to netip.AddrPort, token uint32, flows ...trunk.Frame) {
	l.t.Helper()
	l.say(to, func(peer uint64) ([]byte, bool) {
		h := l.link.Header(trunk.TypeAnnounce)
		b, _, ok := (&trunk.Announce{To: peer, Token: token, Flows: flows}).Append(nil, &h, l.ring, 0)
		return b, ok
	})
}

// copies returns how often each announcement came, and forgets them.
func (l *lossy) copies() (n []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.announced {
		n = append(n, c)
	}
	clear(l.announced)
	return n
}

func (l *lossy) hears(yes bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deaf = !yes
}

// pending is how many flows a worker still waits to be confirmed. It looks when the
// worker is parked.
func (b *bench) pending() (n int) {
	b.t.Helper()
	b.parked(func() {
		for _, w := range b.srv.workers {
			n += w.announced
		}
	})
	return n
}

// parked runs something while no worker does.
func (b *bench) parked(look func()) {
	b.t.Helper()
	p := &pause{parked: make(chan struct{}, len(b.srv.workers)), resume: make(chan struct{})}
	b.srv.pausing.Store(p)
	for _, w := range b.srv.workers {
		w.group.Wake()
	}
	for range b.srv.workers {
		<-p.parked
	}
	look()
	b.srv.pausing.Store(nil)
	close(p.resume)
}

// TestLostAnnouncementsBetweenTiersAreRepeated loses every datagram of a cluster
// relay's two kinds of announcements: the question to a Host, and the flows for an
// edge. Both come again until they are answered, and not for ever.
func TestLostAnnouncementsBetweenTiersAreRepeated(t *testing.T) {
	far := newBench(t, clusterRelay(t, 1))
	h := newLossy(t, "127.0.0.1", 21, far.ring, trunk.RoleHost)
	h.meet(far)
	waitFor := func(l *lossy, what string, want int) {
		t.Helper()
		far.eventually(func() error {
			l.mu.Lock()
			defer l.mu.Unlock()
			for _, n := range l.announced {
				if n == want {
					return nil
				}
			}
			return fmt.Errorf("%s: %v, want %d", what, l.announced, want)
		})
	}
	settled := func() {
		t.Helper()
		far.eventually(func() error {
			if n := far.pending(); n != 0 {
				return fmt.Errorf("%d flows are waited for", n)
			}
			return nil
		})
	}

	// A deaf Host is asked announceTries times about an edge that appears.
	h.hears(false)
	edge := newLossy(t, "127.0.11.7", 31, keyring(t, "e"), trunk.RoleRelay, 7)
	edge.meet(far)
	waitFor(h, "the question", announceTries)
	settled()
	if n := h.copies(); len(n) != 1 || n[0] != announceTries {
		t.Errorf("the question came %v times, want %d", n, announceTries)
	}

	// The same with a Host that hears the second.
	other := newLossy(t, "127.0.11.8", 32, keyring(t, "e"), trunk.RoleRelay, 7)
	other.meet(far)
	waitFor(h, "the question about the other edge", 2)
	h.hears(true)
	settled()
	if n := h.copies(); len(n) != 1 || n[0] < 2 || n[0] > announceTries {
		t.Errorf("the question came %v times", n)
	}

	// What the Host announces for an edge that does not answer.
	edge.hears(false)
	client := netip.MustParseAddrPort("192.0.2.1:9")
	route := must(ufrag.IPv4Route(farCluster, h.addr(), 5))
	h.announce(far.trunk(), 9, trunk.Frame{Flags: trunk.Validated, Ingress: 7, Client: client, Route: route, Return: edge.addr()})
	waitFor(edge, "the announcement", announceTries)
	settled()
	edge.mu.Lock()
	for _, f := range edge.flows {
		if f.Client != client || f.Route != route || f.Return.IsValid() {
			t.Errorf("the edge was told %+v", f)
		}
	}
	edge.mu.Unlock()
	edge.copies()

	// One that is restarted meanwhile is not told what its predecessor was to be.
	h.announce(far.trunk(), 10, trunk.Frame{Flags: trunk.Validated, Ingress: 7, Client: client, Route: route, Return: edge.addr()})
	waitFor(edge, "the announcement", 1)
	edge.mu.Lock()
	edge.link = trunk.NewLink(33, [16]byte{3})
	clear(edge.announced)
	edge.mu.Unlock()
	edge.meet(far)
	edge.hears(true)
	settled()
}

// TestAnnouncementsThatWaitAreBounded announces more flows for an edge that does not
// answer than a worker remembers.
func TestAnnouncementsThatWaitAreBounded(t *testing.T) {
	r := newTunnelRig(t)
	w := r.w
	w.HandleBatch(1, r.up)
	p := w.peers[peerKey{r.edge, true}]
	// As after a handshake.
	ack := trunk.HelloAck{}
	nonce, ok := p.link.Hello(w.now.Add(time.Second))
	if !ok {
		t.Fatal("no hello")
	}
	ack.Echo = nonce
	if _, _, proven := p.link.OnHelloAck(&trunk.Header{Epoch: 1, Seq: 1000}, &ack); !proven {
		t.Fatal("no proof")
	}
	flows := make([]trunk.Frame, 2*maxAnnounced)
	for i := range flows {
		flows[i] = trunk.Frame{Ingress: 7, Client: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 9), Route: r.route}
	}
	w.announce(p, flows)
	if w.announced > maxAnnounced || w.announced < maxAnnounced/2 {
		t.Errorf("%d flows are remembered, want at most %d", w.announced, maxAnnounced)
	}
	w.writeControl()
	w.forget(p)
	if w.announced != 0 {
		t.Errorf("%d flows are left of a peer that is forgotten", w.announced)
	}
}

// TestAGoneEdgeIsSucceeded lets an edge vanish without a goodbye. Its Hosts are asked
// for its flows, and the other edge of its ingress gets them.
func TestAGoneEdgeIsSucceeded(t *testing.T) {
	far := newBench(t, clusterRelay(t, 1))
	h := newLossy(t, "127.0.0.1", 21, far.ring, trunk.RoleHost)
	h.meet(far)
	links := keyring(t, "e")
	edge := newLossy(t, "127.0.11.7", 31, links, trunk.RoleRelay, 7)
	edge.meet(far)
	// asked waits until the Host was asked about an edge: the relay has its proof.
	asked := func(what string, fits func(trunk.Frame) bool) {
		t.Helper()
		far.eventually(func() error {
			h.mu.Lock()
			defer h.mu.Unlock()
			if !slices.ContainsFunc(h.flows, fits) {
				return errors.New("no question about the edge that " + what)
			}
			h.flows = nil
			return nil
		})
	}
	keys := func(id string) { // other ones make the edge deaf
		edge.mu.Lock()
		defer edge.mu.Unlock()
		edge.ring = keyring(t, id)
	}
	asked("appeared", func(f trunk.Frame) bool { return f.Return == edge.addr() && f.Ingress == 7 })
	keys("x")
	far.parked(func() {
		for _, p := range far.srv.workers[0].peers {
			if p.addr == edge.addr() {
				p.heard = time.Now().Add(-silentAfter) // says the worker's clock
			}
		}
	})
	asked("is gone", func(f trunk.Frame) bool { return f.Return == edge.addr() })
	other := newLossy(t, "127.0.11.8", 32, links, trunk.RoleRelay, 7)
	other.meet(far)
	asked("is to succeed it", func(f trunk.Frame) bool { return f.Return == other.addr() })
	client := netip.MustParseAddrPort("192.0.2.1:9")
	route := must(ufrag.IPv4Route(farCluster, h.addr(), 5))
	h.announce(far.trunk(), 9, trunk.Frame{Flags: trunk.Validated, Ingress: 7, Client: client, Route: route, Return: edge.addr()})
	far.eventually(func() error {
		other.mu.Lock()
		defer other.mu.Unlock()
		for _, f := range other.flows {
			if f.Client == client && f.Route == route {
				return nil
			}
		}
		return errors.New("the other edge was not told")
	})
	if n := edge.copies(); len(n) != 0 {
		t.Errorf("the edge that is gone was told: %v", n)
	}
	// It was only slow: it gets its place back.
	keys("e")
	edge.say(far.trunk(), func(peer uint64) ([]byte, bool) {
		hd := edge.link.Header(trunk.TypeKeepalive)
		return (&trunk.Keepalive{To: peer, Token: 1}).Append(nil, &hd, links)
	})
	far.eventually(func() error {
		proven := false
		far.parked(func() {
			p := far.srv.workers[0].peers[peerKey{edge.addr(), true}]
			_, ok := p.link.Peer()
			proven = ok && !p.leaving
		})
		if !proven {
			return errors.New("the edge is still taken for gone")
		}
		return nil
	})
}

// TestReplaysTakeNoMemory replays one authentic datagram of an edge from very many
// addresses. The worker remembers few of them, and none that proved to be a relay or
// that it is configured with goes for it.
func TestReplaysTakeNoMemory(t *testing.T) {
	r := newTunnelRig(t)
	w := r.w
	w.HandleBatch(1, r.up)
	edge := w.peers[peerKey{r.edge, true}]
	nonce, ok := edge.link.Hello(w.now.Add(time.Second))
	if !ok {
		t.Fatal("no hello")
	}
	if _, _, proven := edge.link.OnHelloAck(&trunk.Header{Epoch: 1, Seq: 1000}, &trunk.HelloAck{Echo: nonce}); !proven {
		t.Fatal("no proof")
	}
	data := datagram(t, r.link, r.srv.cfg.EdgeKeys, 1, trunk.Frame{Ingress: 7, Client: netip.MustParseAddrPort("192.0.2.1:9"), Route: r.route})
	const replays = 5 * maxStrangers
	for i := range replays {
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 11, byte(2 + i>>14)}), uint16(1024+i&0x3fff))
		w.HandleBatch(1, []udpbatch.Packet{{Data: data, From: from}})
	}
	if n := len(w.peers); n > maxStrangers+8 {
		t.Errorf("%d peers are remembered of %d replays", n, replays)
	}
	if w.peers[peerKey{r.edge, true}] != edge {
		t.Error("a relay that has proven its epoch is forgotten")
	}
	if n := w.counts.now[cFromEdges]; n < replays {
		t.Errorf("%d replays were taken, want all: this test shows nothing", n)
	}
}

// TestReplaysKeepNoRelayAlive replays what a dead cluster relay has sent. The edge
// leaves it all the same.
func TestReplaysKeepNoRelayAlive(t *testing.T) {
	links := keyring(t, "e")
	far := newLossy(t, "127.0.12.1", 41, links, trunk.RoleRelay)
	edge := newBench(t, edgeOf(t, 1, cluster.Table{farCluster: {far.addr()}}))
	far.meet(edge)
	far.mu.Lock()
	d := datagram(t, far.link, links, 3, trunk.Frame{Flags: trunk.ToClient, Ingress: 7, Client: netip.MustParseAddrPort("127.0.1.1:9")})
	far.ring = keyring(t, "x") // answers nothing any more
	far.mu.Unlock()
	edge.eventually(func() error {
		if _, err := far.conn.WriteToUDPAddrPort(d, edge.trunk()); err != nil {
			return err
		}
		gone := false
		edge.parked(func() {
			_, proven := edge.srv.workers[0].peers[peerKey{far.addr(), true}].link.Peer()
			gone = !proven
		})
		if !gone {
			return errors.New("the relay is taken for alive")
		}
		return nil
	})
}

// TestARestartedHostHearsOfADrain restarts a Host that has confirmed that the relay
// drains: the new process knows nothing of it.
func TestARestartedHostHearsOfADrain(t *testing.T) {
	b := newBench(t, nil)
	h := newLossy(t, "127.0.0.1", 21, b.ring, trunk.RoleHost)
	heard := func() {
		t.Helper()
		b.eventually(func() error {
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.goodbyes == 0 {
				return errors.New("no goodbye")
			}
			return nil
		})
	}
	h.meet(b)
	b.srv.draining.Store(true)
	heard()
	h.mu.Lock()
	h.link, h.goodbyes = trunk.NewLink(22, [16]byte{2}), 0
	h.mu.Unlock()
	h.meet(b)
	heard()
}
