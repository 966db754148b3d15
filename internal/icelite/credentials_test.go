package icelite

import (
	"slices"
	"testing"
	"time"
)

func TestRestartTwiceIsOneRestart(t *testing.T) {
	h := newHarness(t)
	if g := h.a.Restart(creds(1)); g != 1 {
		t.Errorf("generation %d for the first credentials", g)
	}
	if g := h.a.Restart(creds(2)); g != 2 {
		t.Errorf("generation %d", g)
	}
	if g := h.a.Restart(creds(2)); g != 2 {
		t.Errorf("generation %d for the same again", g)
	}
	if r := h.a.RetiredUfrags(); r != nil {
		t.Errorf("retired %v", r)
	}
}

func TestOnlyTheNewestThePreviousAndTheCurrentPathsCredentialsAreKept(t *testing.T) {
	h := newHarness(t)
	h.prove(pathA, checkOpts{}, time.Millisecond)
	alive := map[string]bool{creds(1).LocalUfrag: true}
	answered := func(n int) bool { return len(h.check(pathA, checkOpts{creds: creds(n)})) > 0 }
	for n := 2; n <= 30; n++ {
		if g := h.a.Restart(creds(n)); g != n {
			t.Fatalf("generation %d", g)
		}
		alive[creds(n).LocalUfrag] = true
		for _, u := range h.a.RetiredUfrags() {
			if !alive[u] {
				t.Errorf("%s retired twice", u)
			}
			delete(alive, u)
		}
		if len(alive) > maxGenerations || !alive[creds(1).LocalUfrag] || !alive[creds(n-1).LocalUfrag] {
			t.Fatalf("after %d restarts: %v", n, alive)
		}
	}
	if !answered(1) {
		t.Error("the current path's credentials are gone")
	}
	if answered(28) {
		t.Error("retired credentials are answered")
	}
	// The current path takes on the newest: the first are not needed any more.
	h.prove(pathC, checkOpts{creds: creds(30), use: true}, time.Millisecond)
	h.wantCurrent(pathC)
	if !h.out.Events.Has(EventUfragsRetired) || !slices.Equal(h.a.RetiredUfrags(), []string{creds(1).LocalUfrag}) {
		t.Error("the first credentials were not retired")
	}
	if h.has(pathA) {
		t.Error("a path without credentials is left")
	}
	if !answered(29) {
		t.Error("the previous credentials are gone")
	}
}

// A client that keeps its port over a restart: the same path, newer credentials.
func TestRestartOnTheSameAddress(t *testing.T) {
	h := newHarness(t)
	h.prove(pathA, checkOpts{}, time.Millisecond)
	h.a.Restart(creds(2))
	ps := h.check(pathA, checkOpts{creds: creds(2)})
	own := h.ownCheckIn(ps, pathA)
	if u := string(h.parse(own.Data).m.Username); u != creds(2).RemoteUfrag+":"+creds(2).LocalUfrag {
		t.Errorf("own check has USERNAME %q", u)
	}
	if i := h.info(pathA); i.Generation != 2 || !i.Current || !i.Validated {
		t.Errorf("%+v", i)
	}
	h.a.Restart(creds(3))
	if r := h.a.RetiredUfrags(); !slices.Equal(r, []string{creds(1).LocalUfrag}) {
		t.Errorf("retired %v", r)
	}
}

func TestCurrentPathThatTakesOnNewerCredentialsRetiresItsOld(t *testing.T) {
	h := newHarness(t)
	h.prove(pathA, checkOpts{}, time.Millisecond)
	h.a.Restart(creds(2))
	h.a.Restart(creds(3))
	if r := h.a.RetiredUfrags(); len(r) != 0 {
		t.Fatalf("retired %v while in use", r)
	}
	h.check(pathA, checkOpts{creds: creds(3)})
	if r := h.a.RetiredUfrags(); !h.out.Events.Has(EventUfragsRetired) || !slices.Equal(r, []string{creds(1).LocalUfrag}) {
		t.Errorf("retired %v, events %b", r, h.out.Events)
	}
}

func TestRestartGivesTheSessionTimeToConnect(t *testing.T) {
	for name, idle := range map[string]time.Duration{"new": 29 * time.Second, "failed": 90 * time.Second} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.wait(idle)
			h.a.Restart(creds(2))
			if next := h.a.Next(); next.After(h.now) {
				t.Errorf("next %v", next)
			}
			h.poll()
			h.wait(29 * time.Second)
			if s, _ := h.a.State(); s == StateFailed {
				t.Fatal("failed too early")
			}
			h.wait(time.Second)
			h.wantState(StateFailed, ReasonNoCheck)
		})
	}
}

// A restart may change only the client's half: the Host's ufrag is still in use.
func TestUfragThatANewerGenerationUsesIsNotRetired(t *testing.T) {
	h := newHarness(t)
	for n := 2; n < 8; n++ {
		c := creds(n)
		c.LocalUfrag, c.LocalPassword = creds(1).LocalUfrag, creds(1).LocalPassword
		h.a.Restart(c)
		if r := h.a.RetiredUfrags(); len(r) != 0 {
			t.Fatalf("retired %v", r)
		}
	}
	c := creds(7)
	c.LocalUfrag, c.LocalPassword = creds(1).LocalUfrag, creds(1).LocalPassword
	if h.check(pathA, checkOpts{creds: c}); h.info(pathA).Generation != 7 {
		t.Error("the wrong generation was found")
	}
}
