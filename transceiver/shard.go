package transceiver

import (
	"container/heap"
	"net/netip"
	"sync"
	"time"

	"github.com/usher-rtc/usher/internal/icelite"
	"github.com/usher-rtc/usher/internal/stun"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/internal/udpbatch"
)

// shard is one socket with its reader, and the sessions whose packets leave by
// it and whose timers its reader runs. Packets of a session may arrive at any.
type shard struct {
	host  *Host
	conn  *udpbatch.Conn
	group *udpbatch.Group
	counters

	// The reader's scratch space. Nearly all datagrams come from the relay that the
	// one before came from.
	from   netip.AddrPort
	relay  *peer
	reader trunk.Reader
	frame  trunk.Frame
	msg    stun.Message
	out    icelite.Output
	due    []*front

	timers struct {
		sync.Mutex
		heap  timerHeap
		awake bool      // the reader is up and will look at the heap before it sleeps
		until time.Time // when the sleeping reader will be up; zero: when woken
	}

	outbox
}

var _ udpbatch.Handler = (*shard)(nil)

// HandleBatch implements udpbatch.Handler.
func (sh *shard) HandleBatch(_ int, pkts []udpbatch.Packet) {
	sh.timers.Lock()
	sh.timers.awake = true
	sh.timers.Unlock()
	now := time.Now()
	sh.datagramsIn.Add(uint64(len(pkts)))
	for i := range pkts {
		sh.datagram(now, &pkts[i])
	}
	// Answers of sessions that belong to other shards; Idle sends our own.
	for _, other := range sh.host.shards {
		if other != sh {
			other.flush()
		}
	}
}

func (sh *shard) datagram(now time.Time, p *udpbatch.Packet) {
	switch {
	case p.From != sh.from && !sh.host.allowed(p.From.Addr()) && !sh.host.answersDirectly(p.From):
		sh.drop(DropRelayRefused)
		return
	case p.Truncated:
		sh.drop(DropTruncated)
		return
	}
	var h trunk.Header
	edge, ok := sh.open(p, &h)
	if !ok {
		sh.drop(DropTrunk)
		return
	}
	if p.From != sh.from {
		relay := sh.host.peers.add(p.From, edge)
		if relay == nil {
			sh.drop(DropRelayRefused)
			return
		}
		sh.from, sh.relay = p.From, relay
	}
	relay := sh.relay
	if relay.edge != edge || edge && h.Type == trunk.TypeData {
		// Clients' packets come by way of a cluster relay.
		sh.drop(DropRelayRefused)
		return
	}
	known := relay.observe(now, &h)
	if h.Type != trunk.TypeData {
		sh.control(now, relay, &h)
		return
	}
	if !known {
		relay.hello(now)
	}
	for sh.reader.Next(&sh.frame) {
		sh.framesIn.Add(1)
		sh.bytesIn.Add(uint64(len(sh.frame.Payload)))
		sh.fromClient(now, p.From, &sh.frame)
	}
}

// open opens a datagram. Which keys it is under says whether it comes from an edge
// that is answered directly.
func (sh *shard) open(p *udpbatch.Packet, h *trunk.Header) (edge, ok bool) {
	host := sh.host
	if host.answersDirectly(p.From) && sh.reader.Open(p.Data, host.cfg.EdgeKeys, h) == trunk.OK {
		return true, true
	}
	return false, sh.reader.Open(p.Data, host.cfg.TrunkKeys, h) == trunk.OK && host.allowed(p.From.Addr())
}

// fromClient finds the session of one packet: STUN requests name it, anything
// else belongs to the path it came on.
func (sh *shard) fromClient(now time.Time, via netip.AddrPort, fr *trunk.Frame) {
	switch {
	case fr.Flags&trunk.ToClient != 0:
		sh.drop(DropDirection)
		return
	case fr.Ingress == 0:
		sh.drop(DropIngress)
		return
	}
	if len(fr.Payload) == 0 && fr.Return.IsValid() {
		// No packet of a client: its edge tells which cluster relay to answer by.
		c := sh.host.paths.find(pathOf(fr))
		for s := range c.all() {
			s.front.follow(via, fr)
		}
		return
	}
	switch class := stun.Classify(fr.Payload); class {
	case stun.ClassSTUN:
		sh.fromClientSTUN(now, via, fr)
	case stun.ClassDTLS, stun.ClassRTP:
		if s := sh.owner(fr); s != nil {
			s.front.handleData(sh, now, via, fr, class)
		} else {
			sh.drop(DropUnknownPath)
		}
	default:
		sh.drop(DropClass)
	}
}

// owner returns the session of a packet that has no name in it. A packet from
// a new address that a relay could only guess the owner of names the session
// in its route.
func (sh *shard) owner(fr *trunk.Frame) *Session {
	c := sh.host.paths.find(pathOf(fr))
	if c[0] == nil && fr.Flags&trunk.Unverified != 0 && sh.host.route.SameHost(fr.Route) {
		return sh.host.sessions.findRoute(fr.Route.Session)
	}
	return c[0]
}

func (sh *shard) fromClientSTUN(now time.Time, via netip.AddrPort, fr *trunk.Frame) {
	m := &sh.msg
	if stun.Parse(fr.Payload, m) != stun.OK {
		sh.drop(DropSTUN)
		return
	}
	if m.Type.IsRequest() {
		local, _, ok := m.SplitUsername()
		if !ok {
			sh.drop(DropUsername)
			return
		}
		s := sh.host.sessions.find(local)
		if s == nil {
			sh.drop(DropUnknownUfrag)
			return
		}
		s.front.handleSTUN(sh, now, via, fr, m)
		return
	}
	c := sh.host.paths.find(pathOf(fr))
	if c[0] == nil {
		// The answer to a check that was sent to where an unverified packet came from.
		if s := sh.owner(fr); s != nil {
			s.front.handleSTUN(sh, now, via, fr, m)
			return
		}
		sh.drop(DropUnknownPath)
		return
	}
	for s := range c.all() {
		s.front.handleSTUN(sh, now, via, fr, m)
	}
}

// Idle implements udpbatch.Handler.
func (sh *shard) Idle(now time.Time) time.Duration {
	sh.runTimers(now)
	sh.flush()
	return sh.sleep(now)
}

// runTimers polls the sessions that are due. One that is due again at once
// waits for the next round, so that it cannot keep the socket unread.
func (sh *shard) runTimers(now time.Time) {
	t := &sh.timers
	t.Lock()
	t.awake = true
	for len(t.heap) > 0 && !t.heap[0].timerAt.After(now) {
		f, _ := heap.Pop(&t.heap).(*front)
		sh.due = append(sh.due, f)
	}
	t.Unlock()
	for _, f := range sh.due {
		f.poll(sh, now)
	}
	clear(sh.due)
	sh.due = sh.due[:0]
}

// sleep returns how long the reader may wait for packets.
func (sh *shard) sleep(now time.Time) time.Duration {
	t := &sh.timers
	t.Lock()
	defer t.Unlock()
	t.awake = false
	if len(t.heap) == 0 {
		t.until = time.Time{}
		return 0
	}
	t.until = t.heap[0].timerAt
	return max(t.until.Sub(now), time.Microsecond)
}

// schedule makes the reader poll a session at a time, unless it will do so earlier.
func (sh *shard) schedule(f *front, at time.Time) {
	t := &sh.timers
	t.Lock()
	switch {
	case f.timerIndex < 0:
		f.timerAt = at
		heap.Push(&t.heap, f)
	case at.Before(f.timerAt):
		f.timerAt = at
		heap.Fix(&t.heap, f.timerIndex)
	}
	wake := !t.awake && (t.until.IsZero() || f.timerAt.Before(t.until))
	if wake {
		t.awake = true // it will be in a moment, and one wake-up is enough
	}
	t.Unlock()
	if wake {
		sh.group.Wake()
	}
}

func (sh *shard) unschedule(f *front) {
	sh.timers.Lock()
	defer sh.timers.Unlock()
	if f.timerIndex >= 0 {
		heap.Remove(&sh.timers.heap, f.timerIndex)
	}
}

// timerHeap implements heap.Interface, earliest first.
type timerHeap []*front

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].timerAt.Before(h[j].timerAt) }

func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].timerIndex, h[j].timerIndex = i, j
}

// Push implements heap.Interface.
func (h *timerHeap) Push(x any) {
	f, _ := x.(*front)
	f.timerIndex = len(*h)
	*h = append(*h, f)
}

// Pop implements heap.Interface.
func (h *timerHeap) Pop() any {
	old := *h
	f := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	f.timerIndex = -1
	return f
}
