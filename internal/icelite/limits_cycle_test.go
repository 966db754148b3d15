package icelite

import (
	"testing"
	"time"
)

// Whoever knows the password and comes from more addresses than there are paths
// does not get around the limit of each: a path that makes room for another is
// remembered for what it was sent.
func TestManyThirdAddressesAreSentLittle(t *testing.T) {
	h := newHarness(t)
	h.prove(pathA, checkOpts{}, 20*time.Millisecond)
	out := make([]int, 2*MaxPaths)
	for round := range 50 {
		for n := range out {
			out[n] += total(h.check(port(1000+n), checkOpts{use: round%2 == 0}))
		}
		h.sleep(20 * time.Millisecond)
	}
	for n, bytes := range out {
		if bytes == 0 || bytes >= 1500 {
			t.Errorf("%d bytes to third address %d in 1 s, want some and fewer than 1,500", bytes, n)
		}
	}
	// That costs nobody else anything: a client that moves is asked at once.
	h.ownCheckIn(h.check(pathC, checkOpts{}), pathC)
	// Their own allowance comes back, as it does for a path that stays.
	h.sleep(20 * time.Second)
	if len(h.check(port(1000), checkOpts{})) == 0 {
		t.Error("never answered again")
	}
}
