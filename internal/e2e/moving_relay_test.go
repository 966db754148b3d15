package e2e

import (
	"context"
	"testing"
	"time"
)

// TestMovingRelay replaces the relay under a running call: once by the same
// program after a crash, once by another one, with another trunk address, after
// an orderly end. Clients keep their address and hear nothing of it.
func TestMovingRelay(t *testing.T) {
	const mustResume = 2 * time.Second // beyond the outage
	eachMover(t, func(t *testing.T, name string, start func(*testing.T, context.Context, *moving) mover) {
		ctx := testContext(t, 2*time.Minute, "ufragctl", "relayd")
		m := newMoving(t, ctx, 1, 1)
		call := m.begin(t, ctx, start(t, ctx, m), true)
		for _, change := range []struct {
			name  string
			end   func()
			trunk string
		}{
			{"crash", m.relay.kill, "127.0.0.1:4000"},
			{"successor", func() { m.relay.stop() }, "127.0.0.1:4100"},
		} {
			begin, before := time.Now(), call.c.arrived(t, ctx)
			change.end() // returns when the process is gone
			down := time.Now()
			args := append([]string(nil), m.relayArgs...)
			args[1] = change.trunk
			m.relay = m.run(t, "relayd", args...)
			for problem := m.relayAnswers(ctx); problem != ""; problem = m.relayAnswers(ctx) {
				if time.Since(down) > 15*time.Second {
					t.Fatal(problem)
				}
				time.Sleep(time.Millisecond)
			}
			up := time.Now()
			outage := up.Sub(down)
			g := call.gapsSince(t, ctx, begin, up.Sub(begin)+2*window)
			t.Logf("gap relay-%s-%s up_ms %.0f down_ms %.0f outage_ms %.0f (goal %.0f; %v)", change.name, name,
				millis(g.audioUp), millis(g.audioDown), millis(outage), millis(outage+120*time.Millisecond), g)
			if g.audioUp > outage+mustResume || g.audioDown > outage+mustResume {
				t.Errorf("%s: outage %v, %v", change.name, outage, g)
			}
			call.checkDecoded(t, before, call.c.arrived(t, ctx), begin)
		}
		call.checkOrder(t, ctx)
	})
}
