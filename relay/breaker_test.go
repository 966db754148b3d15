package relay

import (
	"testing"
	"time"
)

func TestBreaker(t *testing.T) {
	var b breaker
	now := time.Unix(1_000_000, 0)
	state := func(want BreakerState) {
		t.Helper()
		if got, _ := b.snapshot(); got != want {
			t.Fatalf("state %v, want %v", got, want)
		}
	}
	call := func(ok bool) (recovered bool) {
		t.Helper()
		if !b.allow(now) {
			t.Fatal("refused")
		}
		return b.done(now, ok)
	}
	// Failures with successes between them open nothing.
	for range 3 {
		for range breakerFails - 1 {
			call(false)
		}
		if !call(true) {
			t.Error("no recovery after failures")
		}
		if call(true) {
			t.Error("recovery without failures")
		}
	}
	state(BreakerClosed)
	for range breakerFails {
		state(BreakerClosed)
		call(false)
	}
	state(BreakerOpen)
	if b.allow(now) || b.wait(now) != breakerRest {
		t.Errorf("open, and waits for %v", b.wait(now))
	}
	now = now.Add(breakerRest - 1)
	if b.allow(now) || b.wait(now) != 1 {
		t.Errorf("a nanosecond early, and waits for %v", b.wait(now))
	}
	now = now.Add(1)
	if b.wait(now) != 0 || !b.allow(now) {
		t.Fatal("no probe")
	}
	state(BreakerHalfOpen)
	if b.allow(now) {
		t.Error("two probes")
	}
	// The probe fails.
	b.done(now, false)
	state(BreakerOpen)
	now = now.Add(breakerRest)
	if !call(true) {
		t.Error("the probe succeeded, and nothing recovered")
	}
	state(BreakerClosed)
	if _, opened := b.snapshot(); opened != 2 {
		t.Errorf("opened %d times", opened)
	}
	for state, want := range map[BreakerState]string{BreakerClosed: "closed", BreakerOpen: "open", BreakerHalfOpen: "half-open"} {
		if state.String() != want {
			t.Errorf("%d is %q", state, state)
		}
		var got BreakerState
		if text, err := state.MarshalText(); err != nil || got.UnmarshalText(text) != nil || got != state {
			t.Errorf("%v comes back as %v", state, got)
		}
	}
	if err := new(BreakerState).UnmarshalText([]byte("ajar")); err == nil {
		t.Error("a state that there is not was accepted")
	}
}
