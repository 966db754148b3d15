package sim

// kind is what happens.
type kind uint8

const (
	callEnds kind = iota
	flowExpires
	walkComes
	entryExpires
	packetSent
	checkSent
)

// event is something that happens at a moment, in seconds of the day, to a call.
type event struct {
	at   float64
	call int32
	kind kind
}

// queue is a heap of events with four children a node, which for millions of
// events touches half as many cache lines as one with two.
type queue []event

func (q *queue) push(e event) {
	h := append(*q, e)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 4
		if h[up].at <= e.at {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = e
	*q = h
}

// pop takes the earliest event of a queue that has one.
func (q *queue) pop() event {
	h := *q
	first, last := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	*q = h
	if len(h) == 0 {
		return first
	}
	i := 0
	for {
		least, at := -1, last.at
		for c := 4*i + 1; c <= 4*i+4 && c < len(h); c++ {
			if h[c].at < at {
				least, at = c, h[c].at
			}
		}
		if least < 0 {
			break
		}
		h[i] = h[least]
		i = least
	}
	h[i] = last
	return first
}
