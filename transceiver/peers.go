package transceiver

import (
	"crypto/rand"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/internal/udpbatch"
	"github.com/usher-rtc/usher/ufrag"
)

const (
	// maxPeers bounds the relays' trunk addresses that are remembered: one for
	// each worker of each relay. When it is reached, idle ones make room.
	maxPeers = 4096
	// peerIdle is when a relay that sent nothing is no longer kept alive, and
	// may be forgotten if room is needed.
	peerIdle = 2 * time.Minute
	// keepaliveInterval and keepaliveMisses say how soon a silent relay is
	// taken for restarted.
	keepaliveInterval = time.Second
	keepaliveMisses   = 3
)

// peer is a relay's worker as the trunk sees it: one address.
type peer struct {
	host *Host
	addr netip.AddrPort
	edge bool // an edge relay that is answered directly
	keys *ufrag.Keyring

	// sending is held from the numbering of control datagrams until they are on
	// the wire: a relay takes one that was overtaken for a replay.
	sending sync.Mutex

	mu        sync.Mutex
	link      *trunk.Link
	ingresses []uint16
	lastSeen  time.Time
	draining  bool
	missed    int // keepalives without an answer
	token     uint32
	outbox    [][]byte                 // control datagrams that leave with release
	announced map[uint32]*announcement // by token: not yet answered
}

// acquire locks the peer for something that may send control datagrams.
func (p *peer) acquire() {
	p.sending.Lock()
	p.mu.Lock()
}

// release unlocks the peer and sends what was put into the outbox meanwhile:
// a socket's writer takes the peer's lock, so nothing is written under it.
func (p *peer) release() {
	out := p.outbox
	p.outbox = nil
	p.mu.Unlock()
	for _, b := range out {
		p.host.shards[0].sendControl(p.addr, b)
	}
	p.sending.Unlock()
}

// peerTable is read for every datagram and changed when a relay appears.
type peerTable struct {
	host *Host
	mu   sync.Mutex
	m    atomic.Pointer[map[netip.AddrPort]*peer]
}

func (t *peerTable) init(h *Host) {
	t.host = h
	t.m.Store(&map[netip.AddrPort]*peer{})
}

func (t *peerTable) get(a netip.AddrPort) *peer { return (*t.m.Load())[a] }

// add returns the peer with this address, a new one if need be, nil if there
// is no room for it.
func (t *peerTable) add(a netip.AddrPort, edge bool) *peer {
	if p := t.get(a); p != nil {
		return p
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	m := maps.Clone(*t.m.Load())
	if p := m[a]; p != nil {
		return p
	}
	if len(m) >= maxPeers {
		now := time.Now()
		maps.DeleteFunc(m, func(_ netip.AddrPort, p *peer) bool { return p.idle(now) })
	}
	if len(m) >= maxPeers {
		return nil
	}
	p := &peer{host: t.host, addr: a, edge: edge, keys: t.host.cfg.TrunkKeys}
	if edge {
		p.keys = t.host.cfg.EdgeKeys
	}
	var secret [16]byte
	_, _ = rand.Read(secret[:]) // documented never to fail
	p.link = trunk.NewLink(t.host.epoch, secret)
	m[a] = p
	t.m.Store(&m)
	return p
}

func (p *peer) idle(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.Sub(p.lastSeen) > peerIdle
}

func (p *peer) header(t trunk.Type) trunk.Header {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.link.Header(t)
}

// observe notes a datagram and reports whether its epoch is the proven one.
func (p *peer) observe(now time.Time, h *trunk.Header) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastSeen = now
	known := p.link.Observe(h)
	if !known || p.link.Fresh() { // a replay is no sign of life
		p.missed = 0
	}
	return known
}

// hello asks the relay for proof of its epoch, if it is time to.
func (p *peer) hello(now time.Time) {
	p.acquire()
	defer p.release()
	p.helloLocked(now)
}

func (p *peer) helloLocked(now time.Time) {
	nonce, ok := p.link.Hello(now)
	if !ok {
		return
	}
	h := p.link.Header(trunk.TypeHello)
	m := trunk.Hello{Nonce: nonce, Role: trunk.RoleHost}
	p.send(m.Append(nil, &h, p.keys))
}

// send queues a control datagram for release. The lock is held.
func (p *peer) send(b []byte, ok bool) {
	if ok {
		p.outbox = append(p.outbox, b)
	}
}

// sendControl writes one datagram by itself.
func (sh *shard) sendControl(to netip.AddrPort, b []byte) {
	sh.writing.Lock()
	defer sh.writing.Unlock()
	ms := []udpbatch.Message{{Buffers: [][]byte{b}, To: to}}
	if sh.conn.WriteBatch(ms); ms[0].Err != nil {
		sh.drop(DropSend)
		return
	}
	sh.datagramsOut.Add(1)
}

// control handles a control datagram that the reader has opened.
func (sh *shard) control(now time.Time, p *peer, h *trunk.Header) {
	body, keys := sh.reader.Body(), p.keys
	p.acquire()
	defer p.release()
	problem, unproven := trunk.OK, false
	switch h.Type {
	case trunk.TypeHello:
		var m trunk.Hello
		if problem = m.Parse(body); problem == trunk.OK && m.Role == trunk.RoleRelay {
			ack := p.link.OnHello(h, &m)
			ack.Role = trunk.RoleHost
			out := p.link.Header(trunk.TypeHelloAck)
			p.send(ack.Append(nil, &out, keys))
		}
	case trunk.TypeHelloAck:
		var m trunk.HelloAck
		if problem = m.Parse(body); problem == trunk.OK && m.Role == trunk.RoleRelay {
			ack, reply, proven := p.link.OnHelloAck(h, &m)
			if reply {
				ack.Role = trunk.RoleHost
				out := p.link.Header(trunk.TypeHelloAck)
				p.send(ack.Append(nil, &out, keys))
			}
			if proven {
				p.ingresses = append(p.ingresses[:0], m.Ingresses...)
				p.draining = false
				sh.host.announceTo(p.addr, slices.Clone(p.ingresses))
			}
		}
	case trunk.TypeKeepalive:
		var m trunk.Keepalive
		if problem = m.Parse(body); problem != trunk.OK {
			break
		}
		if unproven = !p.link.Accept(h, m.To); !unproven && !m.Reply {
			out := p.link.Header(trunk.TypeKeepalive)
			answer := trunk.Keepalive{To: h.Epoch, Token: m.Token, Reply: true}
			p.send(answer.Append(nil, &out, keys))
		}
	case trunk.TypeAnnounce:
		var m trunk.Announce
		if problem = m.Parse(body); problem != trunk.OK {
			break
		}
		if m.Reply {
			if p.link.Accept(h, m.To) {
				delete(p.announced, m.Token)
			}
			break
		}
		if !isQuestion(m.Flows) || p.edge {
			problem = trunk.ProblemControl
			break
		}
		if unproven = !p.link.Accept(h, m.To); !unproven {
			out := p.link.Header(trunk.TypeAnnounce)
			answer := trunk.Announce{To: h.Epoch, Token: m.Token, Reply: true}
			b, _, ok := answer.Append(nil, &out, keys, 0)
			p.send(b, ok)
			sh.host.announceToEdge(p.addr, m.Flows)
		}
	case trunk.TypeGoodbye:
		var m trunk.Goodbye
		if problem = m.Parse(body); problem != trunk.OK {
			break
		}
		if unproven = !p.link.Accept(h, m.To); unproven || m.Reply {
			break
		}
		out := p.link.Header(trunk.TypeGoodbye)
		answer := trunk.Goodbye{To: h.Epoch, Token: m.Token, Reply: true, Reason: m.Reason}
		p.send(answer.Append(nil, &out, keys))
		if !p.draining {
			p.draining = true
			sh.host.announceElsewhere(p.addr, slices.Clone(p.ingresses))
		}
	}
	switch {
	case problem != trunk.OK:
		sh.drop(DropControl)
	case unproven:
		p.helloLocked(now)
	}
}

// keepalive asks the relay whether it is still the process it was.
func (p *peer) keepalive(now time.Time) {
	p.acquire()
	defer p.release()
	if p.lastSeen.IsZero() || now.Sub(p.lastSeen) > peerIdle {
		return
	}
	epoch, proven := p.link.Peer()
	if !proven {
		p.helloLocked(now)
		return
	}
	if p.missed++; p.missed > keepaliveMisses {
		// Gone, or unreachable: once it answers a hello it gets its flows again, and
		// meanwhile they may come to the ingress's other relays.
		p.link.Forget()
		p.host.announceElsewhere(p.addr, slices.Clone(p.ingresses))
		return
	}
	p.token++
	out := p.link.Header(trunk.TypeKeepalive)
	m := trunk.Keepalive{To: epoch, Token: p.token}
	p.send(m.Append(nil, &out, p.keys))
}

// maintain runs until the Host's readers have stopped.
func (h *Host) maintain() {
	defer h.background.Done()
	tick := time.NewTicker(keepaliveInterval)
	defer tick.Stop()
	var repeat <-chan time.Time
	warn, quiet := warner{log: h.log}, unheard{log: h.log, limit: h.cfg.ConnectTimeout}
	for {
		select {
		case now := <-tick.C:
			warn.look(now, h.dropped)
			quiet.look(now, h.ended[ReasonNeverConnected].Load(), h.heard())
			for _, p := range *h.peers.m.Load() {
				p.keepalive(now)
			}
		case job := <-h.jobs:
			job()
			if repeat == nil {
				repeat = h.repeatAnnouncements(time.Now())
			}
		case now := <-repeat:
			repeat = h.repeatAnnouncements(now)
		case <-h.stop:
			return
		}
	}
}

// later runs a job on the maintenance goroutine, away from the readers' locks.
// If many wait already it is left out: the flow's own packets teach relays too.
func (h *Host) later(job func()) {
	select {
	case h.jobs <- job:
	default:
	}
}

// announceTo tells a relay that has just proven its epoch about the flows that
// ran through it, and about those at its ingresses that run through another one:
// it may have taken an address over, or a balancer may send it clients.
func (h *Host) announceTo(to netip.AddrPort, ingresses []uint16) {
	h.later(func() {
		h.announce(to, h.flows(func(f *flow) bool {
			return f.to == to || !f.Return.IsValid() && slices.Contains(ingresses, f.Ingress)
		}))
	})
}

// isQuestion reports whether an announcement from a cluster relay asks for flows:
// it has the return address of an edge, and no client.
func isQuestion(flows []trunk.Frame) bool {
	return !slices.ContainsFunc(flows, func(f trunk.Frame) bool {
		return !f.Return.IsValid() || f.Client.Port() != 0 || f.Return != flows[0].Return
	})
}

// announceToEdge tells an edge that has started or leaves, by way of the cluster
// relay that asks for it, about the flows that run through both, and about those
// at the edge's ingresses that run through another one.
func (h *Host) announceToEdge(relay netip.AddrPort, question []trunk.Frame) {
	edge := question[0].Return
	var ingresses []uint16
	for _, q := range question {
		ingresses = append(ingresses, q.Ingress)
	}
	h.later(func() {
		flows := h.flows(func(f *flow) bool {
			return f.relay == relay && (f.edge == edge || slices.Contains(ingresses, f.Ingress))
		})
		for i := range flows {
			flows[i].Return = edge
		}
		h.announce(relay, flows)
	})
}

// announceElsewhere tells the other relays of these ingresses about the flows
// of one that drains or has fallen silent, before a balancer sends them the clients.
func (h *Host) announceElsewhere(drains netip.AddrPort, ingresses []uint16) {
	h.later(func() {
		for addr, p := range *h.peers.m.Load() {
			p.mu.Lock()
			_, proven := p.link.Peer()
			skip := addr == drains || p.draining || !proven
			serves := slices.Clone(p.ingresses)
			p.mu.Unlock()
			if skip {
				continue
			}
			h.announce(addr, h.flows(func(f *flow) bool {
				return f.to == drains && !f.Return.IsValid() && slices.Contains(serves, f.Ingress) && slices.Contains(ingresses, f.Ingress)
			}))
		}
	})
}

// flows lists the current paths of the sessions whose relay and ingress fit.
func (h *Host) flows(fits func(*flow) bool) []trunk.Frame {
	var out []trunk.Frame
	for _, s := range h.Sessions() {
		if f, ok := s.front.flow(); ok && fits(&f) {
			out = append(out, f.Frame)
		}
	}
	return out
}

// announce sends a list of flows in as many datagrams as it takes.
func (h *Host) announce(to netip.AddrPort, flows []trunk.Frame) {
	p := h.peers.get(to)
	if p == nil {
		return
	}
	p.acquire()
	defer p.release()
	if !h.cfg.SkipAnnouncements {
		p.announce(time.Now(), flows)
	}
}
