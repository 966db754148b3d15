package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/e2e/link"
)

// TestMovingBetweenTwoIngresses offers clients two addresses that both work.
// They check both for the life of the call; the session must choose one and stay.
func TestMovingBetweenTwoIngresses(t *testing.T) {
	long(t)
	const (
		settle = 5 * time.Second
		watch  = time.Minute
	)
	eachMover(t, func(t *testing.T, name string, start func(*testing.T, context.Context, *moving) mover) {
		ctx := testContext(t, 3*time.Minute, "ufragctl", "relayd")
		m := newMoving(t, ctx, 1, 2)
		call := m.begin(t, ctx, start(t, ctx, m), true)
		call.checkTwoCandidates(t)
		call.gapsSince(t, ctx, time.Now(), settle)
		s, begin, before := call.meter.session, time.Now(), call.c.arrived(t, ctx)
		settled := s.Stats()
		g := call.gapsSince(t, ctx, begin, watch)
		after := s.Stats()
		t.Logf("ingresses-%s changes_setup %d changes_later %d ingress %d; gap ingresses-%s up_ms %.0f down_ms %.0f",
			name, settled.PathChanges, after.PathChanges-settled.PathChanges, after.Ingress, name,
			millis(g.audioUp), millis(g.audioDown))
		if after.PathChanges != settled.PathChanges {
			t.Errorf("%d changes of path in %v", after.PathChanges-settled.PathChanges, watch)
		}
		if settled.PathChanges > 1 {
			t.Errorf("%d changes of path while the call was set up", settled.PathChanges)
		}
		if g.audioUp > mustRecover || g.audioDown > mustRecover {
			t.Errorf("%v", g)
		}
		call.checkDecoded(t, before, call.c.arrived(t, ctx), begin)
		call.checkOrder(t, ctx)
	})
}

// TestMovingFirstIngressDead makes calls to two addresses, alive or with the
// first one dead from the start, and compares how long they take to set up.
func TestMovingFirstIngressDead(t *testing.T) {
	long(t)
	const mustConnect = 3 * time.Second
	eachMover(t, func(t *testing.T, name string, start func(*testing.T, context.Context, *moving) mover) {
		open := make(map[bool]float64)
		for _, dead := range []bool{false, true} {
			t.Run(map[bool]string{false: "alive", true: "dead"}[dead], func(t *testing.T) {
				ctx := testContext(t, time.Minute, "ufragctl", "relayd")
				m := newMoving(t, ctx, 1, 2)
				m.links[0].Drop(link.Up, dead)
				m.links[0].Drop(link.Down, dead)
				call := m.begin(t, ctx, start(t, ctx, m), true)
				call.checkTwoCandidates(t)
				open[dead] = call.first.Connect
				if got := call.meter.session.Stats().Ingress; dead && got != 2 {
					t.Errorf("the session is at ingress %d, want 2", got)
				}
				if call.first.Connect > millis(mustConnect) {
					t.Errorf("data channel open after %.0f ms", call.first.Connect)
				}
				call.checkOrder(t, ctx)
			})
		}
		t.Logf("first-ingress-dead-%s open_ms %.0f alive_ms %.0f cost_ms %.0f (goal 150)",
			name, open[true], open[false], open[true]-open[false])
	})
}

// checkTwoCandidates fails the test unless the answer has both ingresses.
func (call *movingCall) checkTwoCandidates(t *testing.T) {
	t.Helper()
	for _, want := range []string{" 127.0.0.1 3478 typ host", " 127.0.0.1 3479 typ host"} {
		if !strings.Contains(call.first.Answer, want) {
			t.Fatalf("no candidate%q in the answer:\n%s", want, call.first.Answer)
		}
	}
}
