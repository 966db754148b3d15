package relay

import (
	"net/netip"
	"time"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/udpbatch"
)

const (
	// maxQuestions clients of a worker may be asked about at once. It also bounds
	// the answers that are on their way.
	maxQuestions = 256
	// maxWaiting packets of a worker wait at once, maxWaitingEach of them from one
	// client: media at full rate for the time of a healthy store's answer.
	maxWaiting     = 256
	maxWaitingEach = 8
	// maxWaitingSize is the most bytes of a packet that waits; it bounds the
	// room to 512 KiB. A larger one comes from no path with an MTU like Ethernet's.
	maxWaitingSize = 2048
)

// waitingRoom holds packets of clients that the flow store was asked about, and
// which questions are out, so that each is asked once. It belongs to a worker.
type waitingRoom struct {
	questions map[flowtable.Key]*question
	// Questions by age; free ones have only next.
	oldest, newest, free *question
	slots                []waiter
	spare                []int // free slots
	leaving              []int // slots whose packets are in a bundle
	packets              int
}

// question is a client that the store was asked about.
type question struct {
	key     flowtable.Key
	at      time.Time
	packets [maxWaitingEach]int // slots
	n       int
	expired bool // its packets were given up; the answer is still to come
	next    *question
}

// waiter is a packet that waits.
type waiter struct {
	data  []byte
	tos   uint8
	local netip.Addr
}

func newWaitingRoom() *waitingRoom {
	r := &waitingRoom{
		questions: make(map[flowtable.Key]*question, maxQuestions),
		slots:     make([]waiter, maxWaiting),
		spare:     make([]int, 0, maxWaiting),
		leaving:   make([]int, 0, maxWaiting),
	}
	for i := range maxWaiting {
		r.spare = append(r.spare, i)
	}
	all := make([]question, maxQuestions)
	for i := range all {
		r.recycle(&all[i])
	}
	return r
}

func (r *waitingRoom) recycle(q *question) {
	*q = question{next: r.free}
	r.free = q
}

// full reports whether no further question may be asked.
func (r *waitingRoom) full() bool { return r.free == nil }

// open notes a question. The room is not full.
func (r *waitingRoom) open(k flowtable.Key, now time.Time) *question {
	q := r.free
	r.free = q.next
	*q = question{key: k, at: now}
	if r.newest != nil {
		r.newest.next = q
	} else {
		r.oldest = q
	}
	r.newest = q
	r.questions[k] = q
	return q
}

// add copies a packet into the room, if there is a place for it.
func (r *waitingRoom) add(q *question, p *udpbatch.Packet) bool {
	if q.expired || q.n == maxWaitingEach || len(r.spare) == 0 || len(p.Data) > maxWaitingSize {
		return false
	}
	i := r.spare[len(r.spare)-1]
	r.spare = r.spare[:len(r.spare)-1]
	w := &r.slots[i]
	w.data = append(w.data[:0], p.Data...)
	w.tos, w.local = p.TOS, p.Local
	q.packets[q.n] = i
	q.n++
	r.packets++
	return true
}

// drop frees the places of a question's packets.
func (r *waitingRoom) drop(q *question) {
	r.spare = append(r.spare, q.packets[:q.n]...)
	r.packets -= q.n
	q.n = 0
}

// leave is drop for packets that are in a bundle: their memory is in use until
// left.
func (r *waitingRoom) leave(q *question) {
	r.leaving = append(r.leaving, q.packets[:q.n]...)
	r.packets -= q.n
	q.n = 0
}

// left frees the places of packets that are under way.
func (r *waitingRoom) left() {
	r.spare = append(r.spare, r.leaving...)
	r.leaving = r.leaving[:0]
}

// close forgets a question that was answered.
func (r *waitingRoom) close(q *question) {
	r.drop(q)
	delete(r.questions, q.key)
	for at, prev := r.oldest, (*question)(nil); at != nil; prev, at = at, at.next {
		if at != q {
			continue
		}
		if prev != nil {
			prev.next = q.next
		} else {
			r.oldest = q.next
		}
		if r.newest == q {
			r.newest = prev
		}
		break
	}
	r.recycle(q)
}

// late returns a question with packets that have waited for longer than limit, or
// nil and how long from now the next one will have, 0 for none.
func (r *waitingRoom) late(now time.Time, limit time.Duration) (*question, time.Duration) {
	for q := r.oldest; q != nil; q = q.next {
		if q.expired {
			continue
		}
		if left := limit - now.Sub(q.at); left > 0 {
			return nil, left
		}
		return q, 0
	}
	return nil, 0
}
