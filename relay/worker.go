package relay

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/forward"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/internal/udpbatch"
)

// worker serves one set of sockets: one for each ingress, in their order, and
// then the trunk's. Everything in it belongs to the goroutine that serves the
// group, except beat, inbox and what counts shares.
type worker struct {
	srv   *Server
	index int
	conns []*udpbatch.Conn
	group *udpbatch.Group
	core  *forward.Core
	// running has the goroutine that serves the group.
	running sync.WaitGroup

	counts counts
	beat   atomic.Int64 // time since srv.start of the last Idle
	now    time.Time

	// Towards Hosts and other relays.
	peers    map[peerKey]*peer
	lastPeer *peer
	open     []*peer          // peers with a bundle that is not complete
	free     []*trunk.Builder // to use again
	bundles  []bundle         // complete, parallel to out
	out      []udpbatch.Message
	packet   forward.Packet
	verdict  forward.Verdict
	frame    trunk.Frame

	// Towards clients.
	reader   trunk.Reader
	header   trunk.Header
	delivery forward.Delivery
	clients  []outbox // for each ingress

	passage   forward.Passage
	clusters  *clusters // nil without a directory of clusters
	redirects redirects

	memory *memory // nil without a flow store
	inbox  inbox   // the store's answers

	inherited inheritance

	control
	housekept   time.Time
	dropsTraced int
	logged      [forward.NumReasons]logged
}

// bundle is a datagram for a Host or another relay that is being filled.
type bundle struct {
	*trunk.Builder
	bytes            uint64 // of payload
	remote           bool
	edges, edgeBytes uint64 // frames for clients of another relay, their payload
}

func newWorker(s *Server, index int) *worker {
	return &worker{
		srv: s, index: index,
		peers:   make(map[peerKey]*peer),
		clients: make([]outbox, len(s.ingresses)),
	}
}

func (w *worker) trunkConn() *udpbatch.Conn { return w.conns[len(w.conns)-1] }

// ticks turns the batch's time into that of the flow table.
func (w *worker) ticks() flowtable.Tick {
	return flowtable.Tick(w.now.Sub(w.srv.start) / time.Millisecond)
}

// HandleBatch implements udpbatch.Handler.
func (w *worker) HandleBatch(conn int, pkts []udpbatch.Packet) {
	w.now = time.Now()
	if conn == len(w.conns)-1 {
		w.fromPeers(pkts)
	} else {
		w.fromClients(conn, pkts)
	}
}

// fromClients forwards a batch of packets from an ingress to their Hosts.
func (w *worker) fromClients(ingress int, pkts []udpbatch.Packet) {
	id := w.srv.ingresses[ingress].ID
	n := &w.counts.now
	w.core.Begin(w.ticks())
	q, v := &w.packet, &w.verdict
	*q = forward.Packet{Ingress: id}
	f := &w.frame
	*f = trunk.Frame{Ingress: id}
	for i := range pkts {
		p := &pkts[i]
		n[cFromClients]++
		n[cFromClientsBytes] += uint64(len(p.Data))
		// Field by field: a whole packet would be put together elsewhere and copied, and
		// the copy wait for its last field.
		q.Data, q.From, q.Local, q.Truncated = p.Data, p.From, p.Local, p.Truncated
		w.core.Client(q, v)
		if v.Event != forward.EventNone {
			w.clientEvent(v)
			w.overtaken(flowtable.Key{Client: p.From, Ingress: id}, v)
		}
		if v.Lookup && w.lookup(p, v.Reason != forward.None) {
			continue
		}
		if v.Reason != forward.None {
			w.drop(v.Reason, p.From, id)
			continue
		}
		// The rest stays as it is for the batch, but for what forward sets.
		f.Flags, f.TOS, f.Client, f.Payload = 0, p.TOS, p.From, p.Data
		if v.Unverified {
			f.Flags = trunk.Unverified
			n[cUnverified]++
		}
		for j := range v.Upstreams[:v.N] {
			w.forward(&v.Upstreams[j])
		}
	}
	w.core.End()
	// The payloads are in the receive slots, which are not ours any more when
	// this returns.
	w.flush()
	w.flushWaiting()
	w.writeControl()
}

func (w *worker) clientEvent(v *forward.Verdict) {
	n := &w.counts.now
	switch v.Event {
	case forward.EventCreated:
		n[cCreated]++
		if f := w.srv.cfg.Trace.FlowCreated; f != nil {
			f(w.shard().Flow(v.Flow))
		}
	case forward.EventMoved:
		n[cMoved]++
		if f := w.srv.cfg.Trace.FlowMoved; f != nil {
			f(w.shard().Flow(v.Flow))
		}
	case forward.EventRerouted:
		if f := w.shard().Flow(v.Flow); f.State == flowtable.Confirmed {
			w.save(f.Key, f.Route, f.TCP)
		}
	case forward.EventRestored:
		n[cRestored]++
		if f := w.srv.cfg.Trace.FlowCreated; f != nil {
			f(w.shard().Flow(v.Flow))
		}
	case forward.EventContested:
		n[cContested]++
	case forward.EventAdopted:
		n[cAdopted]++
	}
}

func (w *worker) shard() *flowtable.Table { return w.srv.shards[w.index] }

// removed is called by the flow table.
func (w *worker) removed(t *flowtable.Table, r flowtable.Ref, why flowtable.Removal) {
	if why == flowtable.Evicted {
		w.counts.now[cEvicted]++
	} else {
		w.counts.now[cExpired]++
	}
	if f := w.srv.cfg.Trace.FlowExpired; f != nil {
		f(t.Flow(r), why)
	}
}

// drop counts a packet that goes nowhere.
func (w *worker) drop(r forward.Reason, from netip.AddrPort, ingress uint16) {
	w.counts.drop(r)
	if f := w.srv.cfg.Trace.Drop; f != nil && w.dropsTraced < dropsPerSecond {
		w.dropsTraced++
		f(r.String(), from, ingress)
	}
}

// forward adds w.frame, an own client's packet, to the bundle for its next hop.
func (w *worker) forward(to *forward.Hop) {
	w.frame.Route, w.frame.Return = to.Route, netip.AddrPort{}
	if to.Remote {
		w.frame.Return = w.srv.trunkAddr(w.index)
	}
	w.enqueue(w.peer(to.Addr, to.Remote), trunk.DefaultHops)
}

// enqueue adds w.frame to the bundle for a peer.
func (w *worker) enqueue(p *peer, hops uint8) {
	// A bundle that was begun answers the question for the rest of the batch.
	if p.bundle.Builder == nil && !p.remote && w.silent(p) {
		w.hello(p)
		w.drop(forward.UpstreamSilent, w.frame.Client, w.frame.Ingress)
		return
	}
	if p.bundle.Builder == nil || p.head.Hops != hops || !p.bundle.Add(&w.frame) {
		if p.bundle.Builder != nil {
			w.complete(p)
		}
		w.begin(p, hops)
		if !p.bundle.Add(&w.frame) {
			w.free = append(w.free, p.bundle.Builder)
			p.bundle = bundle{}
			w.open = w.open[:len(w.open)-1]
			w.drop(forward.TooLarge, w.frame.Client, w.frame.Ingress)
			return
		}
	}
	p.bundle.bytes += uint64(len(w.frame.Payload))
	if w.frame.Flags&trunk.ToClient != 0 {
		p.bundle.edges++
		p.bundle.edgeBytes += uint64(len(w.frame.Payload))
	}
}

// begin gives a peer an empty bundle.
func (w *worker) begin(p *peer, hops uint8) {
	var b *trunk.Builder
	if last := len(w.free) - 1; last >= 0 {
		b, w.free = w.free[last], w.free[:last]
	} else {
		b = trunk.NewBuilder(w.srv.cfg.TrunkMTU)
	}
	p.head = p.link.Header(trunk.TypeData)
	p.head.Hops = hops
	b.Reset(&p.head)
	p.bundle = bundle{Builder: b, remote: p.remote}
	p.used, p.loaded = w.now, w.now
	w.open = append(w.open, p)
}

// complete moves a peer's bundle to those that are ready to leave.
func (w *worker) complete(p *peer) {
	w.seal(p)
	for i, o := range w.open {
		if o == p {
			w.open = append(w.open[:i], w.open[i+1:]...)
			break
		}
	}
}

func (w *worker) seal(p *peer) {
	b := p.bundle
	p.bundle = bundle{}
	if !b.Seal(p.keys) {
		// The keyring was emptied while running.
		w.lost(b, p.addr)
		w.free = append(w.free, b.Builder)
		return
	}
	w.out = append(w.out, udpbatch.Message{Buffers: b.Buffers(), To: p.addr})
	w.bundles = append(w.bundles, b)
}

// lost counts the packets of a bundle that was not sent.
func (w *worker) lost(b bundle, to netip.AddrPort) {
	for range b.Len() {
		w.drop(forward.SendUpstream, to, 0)
	}
}

// flush sends all bundles.
func (w *worker) flush() {
	for _, p := range w.open {
		w.seal(p)
	}
	clear(w.open)
	w.open = w.open[:0]
	w.write()
}

func (w *worker) write() {
	if len(w.out) == 0 {
		return
	}
	n := &w.counts.now
	n[cTrunkSent] += uint64(w.trunkConn().WriteBatch(w.out))
	for i, b := range w.bundles {
		if w.out[i].Err != nil {
			w.lost(b, w.out[i].To)
		} else {
			up := uint64(b.Len()) - b.edges
			n[cToUpstream] += up
			n[cToUpstreamBytes] += b.bytes - b.edgeBytes
			n[cToEdges] += b.edges
			n[cToEdgesBytes] += b.edgeBytes
			if b.remote {
				n[cToClusters] += up
			}
		}
		w.free = append(w.free, b.Builder)
	}
	clear(w.bundles)
	clear(w.out)
	w.bundles, w.out = w.bundles[:0], w.out[:0]
}

// fromPeers handles a batch of trunk datagrams.
func (w *worker) fromPeers(pkts []udpbatch.Packet) {
	w.core.Begin(w.ticks())
	for i := range pkts {
		w.fromPeer(&pkts[i])
	}
	w.core.End()
	for i := range w.clients {
		w.deliver(i)
	}
	w.flush() // what is passed on has its payload in the receive slots
	w.flushWaiting()
	w.writeControl()
}

func (w *worker) fromPeer(p *udpbatch.Packet) {
	from, reason := w.sender(p)
	if reason != forward.None {
		w.drop(reason, p.From, 0)
		return
	}
	from.used, from.unanswered = w.now, time.Time{}
	known := from.link.Observe(&w.header)
	if !known {
		w.hello(from)
	}
	if !known || from.link.Fresh() { // a replay does not keep a relay alive that is gone
		from.heard, from.missed = w.now, 0
	}
	if w.header.Type != trunk.TypeData {
		w.counts.now[cTrunkControl]++
		w.onControl(from)
		return
	}
	w.counts.now[cTrunkReceived]++
	for w.reader.Next(&w.frame) {
		switch toClient := w.frame.Flags&trunk.ToClient != 0; {
		case from.remote && !toClient:
			w.fromEdge(from)
		case !from.remote && toClient && w.frame.Return.IsValid():
			w.toEdge(from)
		default:
			w.toClient(from)
		}
	}
}

// sender opens a trunk datagram. Which keys it is under says what its sender is: a
// Host, or another relay.
func (w *worker) sender(p *udpbatch.Packet) (from *peer, why forward.Reason) {
	relay, host := w.core.RelayAllowed(p.From), w.core.PeerAllowed(p.From)
	switch {
	case !relay && !host:
		return nil, forward.PeerNotAllowed
	case p.Truncated:
		return nil, forward.TrunkMalformed
	}
	if relay {
		problem := w.reader.Open(p.Data, w.srv.cfg.EdgeKeys, &w.header)
		if problem == trunk.OK {
			return w.peer(p.From, true), forward.None
		}
		why = trunkReason(problem)
	}
	if host {
		problem := w.reader.Open(p.Data, w.srv.cfg.TrunkKeys, &w.header)
		if problem == trunk.OK {
			return w.peer(p.From, false), forward.None
		}
		why = trunkReason(problem)
	}
	return nil, why
}

func trunkReason(p trunk.Problem) forward.Reason {
	switch p {
	case trunk.ProblemKey:
		return forward.TrunkKey
	case trunk.ProblemTag:
		return forward.TrunkTag
	default:
		return forward.TrunkMalformed
	}
}

// toClient handles w.frame.
func (w *worker) toClient(from *peer) {
	f, n, peer := &w.frame, &w.counts.now, from.addr
	n[cFromUpstream]++
	n[cFromUpstreamBytes] += uint64(len(f.Payload))
	if from.remote {
		n[cFromClusters]++
	}
	d := &w.delivery
	w.core.Frame(f, from.sender(), d)
	if d.Event != forward.EventNone {
		w.peerEvent(d)
	}
	if d.Reason != forward.None {
		w.drop(d.Reason, peer, f.Ingress)
		return
	}
	o := &w.clients[w.srv.byID[f.Ingress]]
	if f.Client.Addr().Is4() && !o.to4 || f.Client.Addr().Is6() && !o.to6 {
		w.drop(forward.BadClient, peer, f.Ingress)
		return
	}
	o.add(f, d.Local)
}

func (w *worker) peerEvent(d *forward.Delivery) {
	switch d.Event {
	case forward.EventLearned:
		w.counts.now[cLearned]++
		if f := w.srv.cfg.Trace.FlowCreated; f != nil {
			f(d.Flow)
		}
		w.overtakenBy(&d.Flow)
	case forward.EventMoved:
		w.counts.now[cMoved]++
		if f := w.srv.cfg.Trace.FlowMoved; f != nil {
			f(d.Flow)
		}
	}
	// All that Hosts' words do leaves a confirmed flow.
	w.save(d.Flow.Key, d.Flow.Route, d.Flow.TCP)
}

// Idle implements udpbatch.Handler.
func (w *worker) Idle(now time.Time) time.Duration {
	if p := w.srv.pausing.Load(); p != nil {
		p.park(w)
		now = time.Now()
	}
	w.now = now
	w.core.Begin(w.ticks())
	n, t := &w.counts.now, w.shard()
	wait := housekeeping
	if w.memory != nil {
		if soon := w.answered(); soon > 0 {
			wait = min(wait, soon)
		}
	}
	n[cFlows], n[cUnconfirmed] = uint64(t.Len()), uint64(t.Unconfirmed())
	w.core.End()
	w.flushWaiting()
	n[cPeers] = uint64(len(w.peers))
	if w.clusters != nil {
		w.clusters.refresh()
		wait = min(wait, w.redirect())
	}
	if now.Sub(w.housekept) >= housekeeping {
		w.housekept = now
		w.housekeep()
	}
	w.counts.publish()
	w.beat.Store(int64(now.Sub(w.srv.start)))
	return wait
}
