package transceiver

import (
	"sync"

	"github.com/usher-rtc/usher/internal/opus"
)

// opusBuffer holds a copy of one packet.
type opusBuffer struct{ b []byte }

// opusBuffers is where a queue takes its buffers from and returns them to, so
// that a burst leaves nothing behind.
var opusBuffers = sync.Pool{New: func() any { return &opusBuffer{b: make([]byte, 0, 256)} }}

func newOpusBuffer(packet []byte) *opusBuffer {
	p, _ := opusBuffers.Get().(*opusBuffer)
	p.b = append(p.b[:0], packet...)
	return p
}

// free returns the buffer. nil is fine.
func (p *opusBuffer) free() {
	if p != nil && cap(p.b) <= 2*opus.MaxFrame {
		opusBuffers.Put(p)
	}
}

// ring is a queue that keeps its room.
type ring[T any] struct {
	items   []T
	head, n int
}

func (r *ring[T]) len() int { return r.n }

// at returns the i-th oldest item.
func (r *ring[T]) at(i int) *T { return &r.items[(r.head+i)%len(r.items)] }

func (r *ring[T]) push(v T) {
	if r.n == len(r.items) {
		grown := make([]T, max(8, 2*len(r.items)))
		for i := range r.n {
			grown[i] = *r.at(i)
		}
		r.items, r.head = grown, 0
	}
	r.n++
	*r.at(r.n - 1) = v
}

// pop removes and returns the oldest item. There must be one.
func (r *ring[T]) pop() T {
	var zero T
	p := r.at(0)
	v := *p
	*p = zero
	r.head = (r.head + 1) % len(r.items)
	r.n--
	return v
}

// signal wakes those who wait for a condition under a lock: whoever makes it
// true raises it, whoever finds it true after a wake-up raises it again for
// the next. A wake-up for nothing is possible.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

func (s signal) raise() {
	select {
	case s <- struct{}{}:
	default:
	}
}
