package meter

import "sync"

// Event is a packet that was sent or that arrived.
type Event struct {
	Seq uint32 // number of the packet, see Unwrapper
	At  int64  // of Now
}

// kept is how many events a Log keeps: 80 s of audio.
const kept = 4096

// Log keeps the newest events of one direction of one call. The zero value is
// empty. It is safe for concurrent use.
type Log struct {
	mu     sync.Mutex
	events []Event // a ring once it is full
	next   int     // where the next event goes then
	total  uint64
}

// Add notes an event.
func (l *Log) Add(seq uint32, at int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total++
	if len(l.events) < kept {
		l.events = append(l.events, Event{seq, at})
		return
	}
	l.events[l.next] = Event{seq, at}
	l.next = (l.next + 1) % kept
}

// Since returns copies of the events at or after a time, in the order in which
// they were added.
func (l *Log) Since(at int64) (out []Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.events {
		if e := l.events[(l.next+i)%len(l.events)]; e.At >= at {
			out = append(out, e)
		}
	}
	return out
}

// Total returns how many events were added.
func (l *Log) Total() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}

// Unwrapper makes 32-bit numbers of the 16-bit ones in RTP headers (RFC 3550
// section 3): each is taken for the one nearest to the last. The first keeps its
// value plus 65,536, so that one that it overtook has a number too.
type Unwrapper struct {
	last  uint32
	begun bool
}

// Next returns the number of the packet whose header says n.
func (u *Unwrapper) Next(n uint16) uint32 {
	if !u.begun {
		u.begun = true
		u.last = 1<<16 + uint32(n)
		return u.last
	}
	u.last += uint32(int32(int16(n - uint16(u.last))))
	return u.last
}
