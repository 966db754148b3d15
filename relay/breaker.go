package relay

import (
	"fmt"
	"sync"
	"time"
)

// BreakerState says whether the relay asks its flow store at present.
type BreakerState uint8

const (
	// BreakerClosed is the normal state: everything is asked.
	BreakerClosed BreakerState = iota
	// BreakerOpen means that the store failed several times in a row; nothing is
	// asked for a second.
	BreakerOpen
	// BreakerHalfOpen means that one question is out to see whether the store
	// works again.
	BreakerHalfOpen
)

// String returns "closed", "open" or "half-open".
func (b BreakerState) String() string {
	switch b {
	case BreakerOpen:
		return "open"
	case BreakerHalfOpen:
		return "half-open"
	default:
		return "closed"
	}
}

// MarshalText returns String, so that a page of statistics has words.
func (b BreakerState) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (b *BreakerState) UnmarshalText(text []byte) error {
	for s := range BreakerHalfOpen + 1 {
		if s.String() == string(text) {
			*b = s
			return nil
		}
	}
	return fmt.Errorf("relay: %q is no state of a breaker: want closed, open or half-open", text)
}

const (
	// breakerFails failures in a row open a breaker.
	breakerFails = 5
	// breakerRest is how long it stays open before a probe. A store that works
	// again is found at most this late.
	breakerRest = time.Second
)

// breaker keeps the relay from waiting for a store that does not work. It is safe
// for concurrent use.
type breaker struct {
	mu     sync.Mutex
	state  BreakerState
	fails  int
	until  time.Time // open: when to probe
	opened uint64
}

// allow reports whether to go ahead; then done has to follow.
func (b *breaker) allow(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch b.state {
	case BreakerClosed:
		return true
	case BreakerOpen:
		if now.Before(b.until) {
			return false
		}
		b.state = BreakerHalfOpen
		return true
	default:
		return false // the probe is out
	}
}

// done notes how a call that allow permitted ended. It reports whether the store
// works again after a failure.
func (b *breaker) done(now time.Time, ok bool) (recovered bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ok {
		recovered = b.fails > 0
		b.state, b.fails = BreakerClosed, 0
		return recovered
	}
	b.fails++
	if b.state == BreakerHalfOpen || b.state == BreakerClosed && b.fails >= breakerFails {
		b.state = BreakerOpen
		b.until = now.Add(breakerRest)
		b.opened++
	}
	return false
}

// wait is how long allow will go on to refuse, 0 if it would not.
func (b *breaker) wait(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state != BreakerOpen {
		return 0
	}
	return max(b.until.Sub(now), 0)
}

func (b *breaker) snapshot() (state BreakerState, opened uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state, b.opened
}
