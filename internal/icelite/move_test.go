package icelite

import (
	"testing"
	"time"
)

const ms = time.Millisecond

// Each rule of the package documentation, just before and just after it holds.
func TestMoveRules(t *testing.T) {
	// both proves A, then C, and lets a second pass with audio on A.
	both := func(h *harness, second checkOpts) {
		h.prove(pathA, checkOpts{}, 10*ms)
		if second.creds != (Credentials{}) {
			h.a.Restart(second.creds)
		}
		h.prove(pathC, second, 10*ms)
		h.keepAlive(time.Second, pathA, creds(1))
		h.wantCurrent(pathA)
	}
	for name, f := range map[string]func(t *testing.T, h *harness) (want Path){
		"1: data, current quiet for 40 ms": func(t *testing.T, h *harness) Path {
			both(h, checkOpts{})
			h.sleep(40 * ms)
			h.rtp(pathC)
			return pathC
		},
		"1: data, current not quiet": func(t *testing.T, h *harness) Path {
			both(h, checkOpts{})
			h.sleep(39 * ms)
			h.rtp(pathC)
			return pathA
		},
		"1: data of a newer generation": func(t *testing.T, h *harness) Path {
			both(h, checkOpts{creds: creds(2)})
			h.rtp(pathC)
			return pathC
		},
		"1: data of an older generation": func(t *testing.T, h *harness) Path {
			both(h, checkOpts{creds: creds(2)})
			h.rtp(pathC)
			h.wantCurrent(pathC)
			h.sleep(5 * time.Second)
			h.rtp(pathA)
			return pathC
		},
		"2: USE-CANDIDATE of a newer generation": func(t *testing.T, h *harness) Path {
			both(h, checkOpts{creds: creds(2)})
			h.check(pathC, checkOpts{creds: creds(2), use: true})
			return pathC
		},
		"2: a check of a newer generation without it": func(t *testing.T, h *harness) Path {
			both(h, checkOpts{creds: creds(2)})
			h.check(pathC, checkOpts{creds: creds(2)})
			return pathA
		},
		"2: USE-CANDIDATE of an older generation": func(t *testing.T, h *harness) Path {
			both(h, checkOpts{creds: creds(2)})
			h.rtp(pathC)
			h.sleep(time.Second)
			h.check(pathA, checkOpts{use: true})
			h.wait(3 * time.Second)
			return pathC
		},
		"3: USE-CANDIDATE, current quiet for 500 ms": func(t *testing.T, h *harness) Path {
			both(h, checkOpts{})
			h.sleep(500 * ms)
			h.check(pathC, checkOpts{use: true})
			return pathC
		},
		"3: USE-CANDIDATE, not yet quiet": func(t *testing.T, h *harness) Path {
			both(h, checkOpts{})
			h.sleep(100 * ms)
			h.check(pathC, checkOpts{use: true})
			h.wait(399 * ms)
			return pathA
		},
		"3: USE-CANDIDATE, quiet by timer": func(t *testing.T, h *harness) Path {
			both(h, checkOpts{})
			h.sleep(100 * ms)
			h.check(pathC, checkOpts{use: true})
			h.wait(400 * ms)
			return pathC
		},
		"3: USE-CANDIDATE, the current path goes on": func(t *testing.T, h *harness) Path {
			both(h, checkOpts{})
			h.check(pathC, checkOpts{use: true})
			h.keepAlive(3*time.Second, pathA, creds(1))
			h.wait(5 * time.Second) // that check is old by now
			return pathA
		},
		"3: a check, current quiet but checked on": func(t *testing.T, h *harness) Path {
			both(h, checkOpts{})
			h.sleep(600 * ms)
			h.check(pathA, checkOpts{})
			h.check(pathC, checkOpts{})
			h.wait(499 * ms)
			return pathA
		},
		"3: a check, current silent and does not answer": func(t *testing.T, h *harness) Path {
			both(h, checkOpts{})
			h.sleep(600 * ms)
			own := h.ownCheckIn(h.check(pathC, checkOpts{}), pathA)
			if own.Path != pathA {
				t.Error("the current path was not asked")
			}
			h.wait(499 * ms)
			h.wantCurrent(pathA)
			h.wait(1 * ms)
			return pathC
		},
		"3: a check, current silent but answers": func(t *testing.T, h *harness) Path {
			both(h, checkOpts{})
			h.sleep(600 * ms)
			own := h.ownCheckIn(h.check(pathC, checkOpts{}), pathA)
			h.sleep(50 * ms)
			h.answer(own, creds(1))
			h.wait(300 * ms)
			return pathA
		},
		"3: USE-CANDIDATE on both in turn says nothing": func(t *testing.T, h *harness) Path {
			both(h, checkOpts{})
			h.sleep(300 * ms)
			h.check(pathA, checkOpts{use: true})
			h.sleep(300 * ms)
			h.check(pathC, checkOpts{use: true})
			h.wait(250 * ms)
			return pathA
		},
		"3: USE-CANDIDATE, the current path went on for a while": func(t *testing.T, h *harness) Path {
			both(h, checkOpts{})
			h.check(pathC, checkOpts{use: true})
			h.keepAlive(300*ms, pathA, creds(1))
			h.wait(time.Second)
			return pathA
		},
		"3: a path that was just chosen has 500 ms": func(t *testing.T, h *harness) Path {
			h.prove(pathA, checkOpts{}, 10*ms)
			h.prove(pathC, checkOpts{use: true}, 10*ms)
			h.wait(470 * ms)
			return pathA
		},
		"3: and no more": func(t *testing.T, h *harness) Path {
			h.prove(pathA, checkOpts{}, 10*ms)
			h.prove(pathC, checkOpts{use: true}, 10*ms)
			h.wait(490 * ms)
			return pathC
		},
		"3: what was said before a move is over": func(t *testing.T, h *harness) Path {
			both(h, checkOpts{})
			own := h.ownCheckIn(h.check(pathB, checkOpts{use: true}), pathB)
			h.sleep(100 * ms)
			h.rtp(pathC)
			h.wantCurrent(pathC)
			h.sleep(600 * ms)
			h.answer(own, creds(1))
			h.wait(2 * time.Second)
			return pathC
		},
		"4: the first path stays unproven": func(t *testing.T, h *harness) Path {
			h.check(pathA, checkOpts{})
			h.sleep(10 * ms)
			h.prove(pathC, checkOpts{}, 50*ms)
			h.wait(139 * ms)
			h.wantCurrent(pathA)
			h.wait(1 * ms)
			return pathC
		},
		"4: the first path is proven in time": func(t *testing.T, h *harness) Path {
			own := h.ownCheckIn(h.check(pathA, checkOpts{}), pathA)
			h.prove(pathC, checkOpts{}, 50*ms)
			h.sleep(100 * ms)
			h.answer(own, creds(1))
			h.keepAlive(time.Second, pathA, creds(1))
			return pathA
		},
		"a path that became proven: its last check counts": func(t *testing.T, h *harness) Path {
			h.prove(pathA, checkOpts{}, 10*ms)
			h.sleep(600 * ms)
			own := h.ownCheckIn(h.check(pathC, checkOpts{use: true}), pathC)
			h.wantCurrent(pathA)
			h.sleep(50 * ms)
			h.answer(own, creds(1))
			return pathC
		},
		"a path that became proven: without the flag it does not": func(t *testing.T, h *harness) Path {
			h.prove(pathA, checkOpts{}, 10*ms)
			h.sleep(600 * ms)
			own := h.ownCheckIn(h.check(pathC, checkOpts{}), pathC)
			h.sleep(50 * ms)
			h.answer(own, creds(1))
			return pathA
		},
		"an unproven path, whatever comes from it": func(t *testing.T, h *harness) Path {
			h.prove(pathA, checkOpts{}, 10*ms)
			h.a.Restart(creds(2))
			h.sleep(5 * time.Second)
			for range 50 {
				h.check(pathC, checkOpts{creds: creds(2), use: true})
				h.rtp(pathC)
				h.wait(10 * ms)
			}
			return pathA
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.wantCurrent(f(t, h))
		})
	}
}

// C100: a browser that nominates three paths within 50 ms and then uses the
// second. Media is taken from any proven path meanwhile.
func TestNominationOfSeveralPathsConverges(t *testing.T) {
	h := newHarness(t)
	var owns []Outgoing
	for _, p := range []Path{pathA, pathB, pathC} {
		owns = append(owns, h.ownCheckIn(h.check(p, checkOpts{use: true}), p))
		h.sleep(20 * ms)
	}
	for _, o := range owns {
		h.answer(o, creds(1))
	}
	start := h.now
	for h.now.Before(start.Add(5 * time.Second)) {
		if v := h.rtp(pathB); v != Deliver {
			t.Fatalf("%v", v)
		}
		h.wait(20 * ms)
		if h.now.Sub(start) >= 500*ms {
			h.wantCurrent(pathB)
		}
	}
	if m := h.a.Stats().Moves; m > 3 {
		t.Errorf("%d moves", m)
	}
}

// A restart whose new address is dead: the old path runs on.
func TestRestartToADeadAddress(t *testing.T) {
	h := newHarness(t)
	h.prove(pathA, checkOpts{}, 10*ms)
	h.a.Restart(creds(2))
	for range 30 {
		h.check(pathC, checkOpts{creds: creds(2), use: true}) // answers get lost
		h.keepAlive(time.Second, pathA, creds(1))
		h.wantCurrent(pathA)
		h.wantState(StateConnected, ReasonNone)
	}
}

// One check on another path does not make us ask the current one for ever.
func TestAnOldCheckIsForgotten(t *testing.T) {
	h := newHarness(t)
	h.prove(pathA, checkOpts{}, 10*ms)
	h.prove(pathC, checkOpts{}, 10*ms)
	alive := func(d time.Duration) { // silent, but it answers
		for end := h.now.Add(d); h.now.Before(end); h.sleep(10 * ms) {
			for _, o := range clone(h.poll()) {
				h.answer(o, creds(1))
			}
		}
	}
	alive(3 * time.Second)
	h.wantCurrent(pathA)
	asked := h.a.Stats().OwnChecks
	for _, o := range clone(h.check(pathC, checkOpts{})) {
		if o.Path == pathA {
			h.answer(o, creds(1))
		}
	}
	alive(10 * time.Second)
	h.wantCurrent(pathA)
	if n := h.a.Stats().OwnChecks - asked; n > 10 {
		t.Errorf("%d own checks in 10 s", n)
	}
}
