package forward

import "github.com/usher-rtc/usher/flowtable"

// rate is a token bucket's size: perSecond tokens a second, burst at most.
type rate struct{ perSecond, burst uint32 }

// bucket counts in thousandths of a token, so that a millisecond adds
// perSecond. A zero bucket is full.
type bucket struct {
	at    flowtable.Tick
	spent uint32
}

func (b *bucket) allow(r rate, now flowtable.Tick) bool {
	refill := uint64(b.at.Age(now)) * uint64(r.perSecond)
	b.at = now
	if refill >= uint64(b.spent) {
		b.spent = 0
	} else {
		b.spent -= uint32(refill)
	}
	if b.spent+1000 > r.burst*1000 {
		return false
	}
	b.spent += 1000
	return true
}

// buckets is a fixed number of buckets that keys share by hash: a collision
// makes a limit stricter, never looser, and memory is bounded.
type buckets [1024]bucket

func (b *buckets) allow(hash uint64, r rate, now flowtable.Tick) bool {
	return b[hash%uint64(len(b))].allow(r, now)
}
