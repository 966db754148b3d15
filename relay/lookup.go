package relay

import (
	"net/netip"
	"time"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/forward"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/internal/udpbatch"
	"github.com/usher-rtc/usher/ufrag"
)

// The worker's side of the flow store: questions, packets that wait for answers,
// and which flows are worth writing. Nothing here waits.

// memory is a worker's state for the flow store; nil without one.
type memory struct {
	room    *waitingRoom
	replies []reply // to use again

	refresh      refresh
	saveVisited  func(flowtable.Flow)
	seenRestored uint64
}

// refresh is a walk over all flows that writes each once in a period.
type refresh struct {
	cursor uint32
	debt   int64 // slots that are due, times the milliseconds of the period
	at     time.Time
	hurry  bool // until the round ends: the store may have lost everything
}

const (
	// refreshes rounds are made within the life of an entry. Three would do; the
	// fourth is for the granularity of housekeeping and a queue that is busy.
	refreshes = 4
	// hurriedRound is how long a round takes when the store may be empty. Faster
	// would be a burst for a store that has just recovered.
	hurriedRound = 10 * time.Second
	// refreshChunk is how many slots are visited under one lock.
	refreshChunk = 512
)

func newMemory(w *worker) *memory {
	m := &memory{room: newWaitingRoom(), replies: make([]reply, 0, maxQuestions)}
	m.saveVisited = func(f flowtable.Flow) {
		if f.State == flowtable.Confirmed {
			w.save(f.Key, f.Route, f.TCP)
		}
	}
	return m
}

// save hands a flow to the store's writer. Flows whose route is not known yet come
// again with the client's next check, and those of TCP end with their connection.
func (w *worker) save(k flowtable.Key, route ufrag.Route, tcp bool) {
	if w.memory != nil && route.Kind != 0 && !tcp {
		w.srv.store.put(k, route)
	}
}

// lookup asks the store about the source of w.packet, unless that was done or is
// not worth it, and keeps the packet for the answer if it is not on its way
// already. It reports whether it did; then the packet is not lost yet.
func (w *worker) lookup(p *udpbatch.Packet, keep bool) bool {
	room, n := w.memory.room, &w.counts.now
	k := flowtable.Key{Client: p.From, Ingress: w.packet.Ingress}
	q := room.questions[k]
	if q == nil {
		if room.full() {
			n[cLookupsFull]++
			return false
		}
		if !w.core.MayAsk(k) {
			n[cLookupsLimited]++
			return false
		}
		if !w.srv.store.ask(ask{key: k, worker: w, at: w.now}) {
			n[cLookupsFull]++
			return false
		}
		q = room.open(k, w.now)
	}
	if !keep || !room.add(q, p) {
		return false
	}
	n[cHeld]++
	return true
}

// answered handles the store's answers, and gives up on packets that have waited
// too long. It returns how long from now it wants to be called again, 0 for never.
func (w *worker) answered() time.Duration {
	m := w.memory
	replies := w.inbox.take(m.replies)
	for i := range replies {
		w.answer(&replies[i])
	}
	m.replies = replies[:0]
	for {
		q, wait := m.room.late(w.now, w.srv.cfg.StoreTimeout)
		if q == nil {
			return wait
		}
		w.giveUp(q)
	}
}

// answer acts on an answer. The core's batch has begun.
func (w *worker) answer(r *reply) {
	room := w.memory.room
	q := room.questions[r.key]
	switch r.outcome {
	case outcomeFound:
		w.restore(q, r.route)
	case outcomeAbsent:
		w.core.Absent(r.key)
		w.forsake(q, forward.NoFlow)
	default:
		w.forsake(q, forward.NoFlow)
	}
	room.close(q)
}

// restore makes the flow and forwards the packets that waited for it.
func (w *worker) restore(q *question, route ufrag.Route) {
	var local netip.Addr
	if q.n > 0 {
		local = w.memory.room.slots[q.packets[q.n-1]].local
	}
	v := &w.verdict
	w.core.Restore(q.key, route, local, v)
	if v.Reason != forward.None {
		w.srv.store.unusable[v.Reason].Add(1)
		w.core.Absent(q.key)
		w.forsake(q, v.Reason)
		return
	}
	w.srv.store.hits.Add(1)
	w.clientEvent(v)
	w.forwardWaiting(q, &v.Upstreams[0])
}

// forwardWaiting sends the packets of a question, in their order, with the next
// flushWaiting.
func (w *worker) forwardWaiting(q *question, to *forward.Hop) {
	room, current := w.memory.room, w.frame
	for _, i := range q.packets[:q.n] {
		s := &room.slots[i]
		w.frame = trunk.Frame{TOS: s.tos, Ingress: q.key.Ingress, Client: q.key.Client, Payload: s.data}
		w.forward(to)
	}
	w.frame = current
	room.leave(q)
}

// flushWaiting sends what forwardWaiting has bundled, whose payloads are in the
// room's memory. It is called without the lock of the flows.
func (w *worker) flushWaiting() {
	if w.memory == nil || len(w.memory.room.leaving) == 0 {
		return
	}
	w.flush()
	w.memory.room.left()
}

// forsake drops the packets of a question.
func (w *worker) forsake(q *question, why forward.Reason) {
	for range q.n {
		w.drop(why, q.key.Client, q.key.Ingress)
	}
	w.memory.room.drop(q)
}

// giveUp drops the packets of a question that was not answered in time. The
// question stays, so that it is not asked again, and a late answer still counts.
func (w *worker) giveUp(q *question) {
	w.counts.now[cHeldTooLong] += uint64(q.n)
	w.forsake(q, forward.NoFlow)
	q.expired = true
}

// overtaken forwards the packets of a client whose flow came otherwise while the
// store was asked, ahead of those that are to follow.
func (w *worker) overtaken(k flowtable.Key, v *forward.Verdict) {
	if v.Flow != 0 && v.N > 0 {
		w.release(k, &v.Upstreams[0])
	}
}

// overtakenBy is overtaken for a flow that a Host has taught.
func (w *worker) overtakenBy(f *flowtable.Flow) {
	if to, why := w.core.Next(f.Route, f.Upstream, f.Key.Client); why == forward.None {
		w.release(f.Key, &to)
	}
}

func (w *worker) release(k flowtable.Key, to *forward.Hop) {
	if w.memory == nil || w.memory.room.packets == 0 {
		return
	}
	if q := w.memory.room.questions[k]; q != nil {
		w.forwardWaiting(q, to)
	}
}

// abandonWaiting drops all packets that wait, when the worker ends.
func (w *worker) abandonWaiting() {
	if w.memory == nil {
		return
	}
	for _, q := range w.memory.room.questions {
		w.forsake(q, forward.NoFlow)
	}
}

// refreshStore writes a share of the flows again, in proportion to the time since
// the last call. Each flow's entry is so renewed four times within its life.
func (w *worker) refreshStore() {
	r := &w.memory.refresh
	if n := w.srv.store.restored.Load(); n != w.memory.seenRestored {
		w.memory.seenRestored = n
		r.cursor, r.hurry = 0, true
	}
	period := w.srv.cfg.StoreTTL / refreshes
	if r.hurry {
		period = min(period, hurriedRound)
	}
	t := w.shard()
	t.Lock()
	slots := int64(t.Slots())
	t.Unlock()
	if r.at.IsZero() {
		r.at = w.now
	}
	ms := period.Milliseconds()
	r.debt = min(r.debt+min(w.now.Sub(r.at).Milliseconds(), ms)*slots, ms*slots)
	r.at = w.now
	for r.debt >= ms && !w.srv.store.busy() {
		steps := min(r.debt/ms, refreshChunk)
		r.debt -= steps * ms
		t.Lock()
		r.cursor = t.Walk(r.cursor, int(steps), w.memory.saveVisited)
		t.Unlock()
		if r.cursor == 0 {
			r.hurry = false
			r.debt = 0
		}
	}
}
