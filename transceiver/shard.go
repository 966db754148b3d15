package transceiver

import (
	"container/heap"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/usher-rtc/usher/internal/icelite"
	"github.com/usher-rtc/usher/internal/stun"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/internal/udpbatch"
)

const (
	// sendQueue is what waits for a socket: 20 ms of a thousand calls' audio.
	sendQueue = 1024
	// sendBatch is the most that one pass over the queue takes.
	sendBatch = 64
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

	// yielding is set while a goroutine that will flush lets others run first.
	yielding atomic.Bool

	queue struct {
		sync.Mutex
		ring    [sendQueue]queued
		head, n int
	}

	// writing is held by whoever empties the queue.
	writing  sync.Mutex
	batch    [sendBatch]queued
	builders []*trunk.Builder
	targets  []*peer
	counts   []int
	messages []udpbatch.Message
}

// queued is a frame on its way out. The packet holds its payload.
type queued struct {
	peer   netip.AddrPort
	frame  trunk.Frame
	packet *packet
}

var _ udpbatch.Handler = (*shard)(nil)

// HandleBatch implements udpbatch.Handler.
func (sh *shard) HandleBatch(_ int, pkts []udpbatch.Packet) {
	sh.timers.Lock()
	sh.timers.awake = true
	sh.timers.Unlock()
	now := time.Now()
	for i := range pkts {
		sh.datagramsIn.Add(1)
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

// enqueue copies a payload into the send queue. Nothing leaves before flush.
func (sh *shard) enqueue(to netip.AddrPort, fr *trunk.Frame, payload []byte) {
	if len(payload) > slotSize {
		sh.drop(DropOversize)
		return
	}
	p := newPacket(payload)
	q := &sh.queue
	q.Lock()
	if q.n == len(q.ring) {
		q.Unlock()
		p.free()
		sh.drop(DropSendQueueFull)
		return
	}
	slot := &q.ring[(q.head+q.n)%len(q.ring)]
	slot.peer, slot.frame, slot.packet = to, *fr, p
	slot.frame.Payload = p.bytes()
	q.n++
	q.Unlock()
}

func (sh *shard) pending() int {
	sh.queue.Lock()
	defer sh.queue.Unlock()
	return sh.queue.n
}

// flush sends what is queued, unless another goroutine is at it: that one
// looks once more after it is done, so nothing is left behind. Whatever
// arrives while the kernel is busy goes out together in the next pass, in as
// few datagrams as it fits into.
func (sh *shard) flush() {
	for sh.pending() > 0 {
		if !sh.writing.TryLock() {
			return
		}
		for sh.writeBatch() {
		}
		sh.writing.Unlock()
	}
}

// flushSoon is flush after the goroutines that are ready to run have had their
// turn: sessions that an incoming batch woke write their answers meanwhile, and
// one system call sends them all. A Host with nothing else to do goes on at once,
// and so does one that has a full batch: after a stall the queue would overflow.
func (sh *shard) flushSoon() {
	if sh.pending() >= sendBatch {
		sh.flush()
	} else if sh.yielding.CompareAndSwap(false, true) {
		runtime.Gosched()
		sh.yielding.Store(false)
		sh.flush()
	}
}

// writeBatch sends up to sendBatch frames and reports whether there were any.
func (sh *shard) writeBatch() bool {
	q := &sh.queue
	q.Lock()
	n := min(q.n, len(sh.batch))
	for i := range n {
		slot := &q.ring[(q.head+i)%len(q.ring)]
		sh.batch[i] = *slot
		*slot = queued{}
	}
	q.head = (q.head + n) % len(q.ring)
	q.n -= n
	q.Unlock()
	if n == 0 {
		return false
	}
	used := 0
	for i := range n {
		used = sh.pack(&sh.batch[i], used)
	}
	sh.messages = sh.messages[:0]
	for i, b := range sh.builders[:used] {
		if b.Len() == 0 || !b.Seal(sh.targets[i].keys) {
			continue
		}
		sh.counts[len(sh.messages)] = b.Len()
		sh.messages = append(sh.messages, udpbatch.Message{Buffers: b.Buffers(), To: sh.targets[i].addr})
	}
	if len(sh.messages) > 0 {
		sh.conn.WriteBatch(sh.messages)
	}
	for i := range sh.messages {
		if sh.messages[i].Err != nil {
			sh.drops[DropSend].Add(uint64(sh.counts[i]))
			continue
		}
		sh.datagramsOut.Add(1)
		sh.frameOut.Add(uint64(sh.counts[i]))
	}
	clear(sh.messages)
	for i := range n {
		sh.bytesOut.Add(uint64(sh.batch[i].packet.n))
		sh.batch[i].packet.free()
	}
	clear(sh.batch[:n])
	return true
}

// pack adds a frame to the newest datagram for its peer, or begins one. It
// returns how many builders are in use.
func (sh *shard) pack(q *queued, used int) int {
	for i := used - 1; i >= 0; i-- {
		if sh.targets[i].addr == q.peer {
			if sh.builders[i].Add(&q.frame) {
				return used
			}
			break
		}
	}
	to := sh.host.peers.get(q.peer)
	if to == nil {
		sh.drop(DropSend)
		return used
	}
	if used == len(sh.builders) {
		sh.builders = append(sh.builders, trunk.NewBuilder(sh.host.cfg.TrunkMTU))
		sh.targets = append(sh.targets, nil)
		sh.counts = append(sh.counts, 0)
	}
	h := to.header(trunk.TypeData)
	sh.targets[used] = to
	sh.builders[used].Reset(&h)
	if !sh.builders[used].Add(&q.frame) {
		sh.drop(DropOversize)
	}
	return used + 1
}
