package e2e

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/usher-rtc/usher/relay"
)

// TestMovingRelay replaces the relay under a running call: by itself after a
// crash, by itself after an orderly end, and by another relay, with another trunk
// address, which takes over the ingress. Clients keep their address and hear
// nothing of it.
func TestMovingRelay(t *testing.T) {
	const mustResume = 1500 * time.Millisecond // beyond the outage
	eachMover(t, func(t *testing.T, name string, start func(*testing.T, context.Context, *moving) mover) {
		// The race detector would keep a relay without sockets alive for another
		// second, which is not an outage that anybody else has.
		t.Setenv("GORACE", "atexit_sleep_ms=0")
		ctx := testContext(t, 2*time.Minute, "ufragctl", "relayd")
		m := newMoving(t, ctx, 1, 1)
		call := m.begin(t, ctx, start(t, ctx, m), true)
		for _, change := range []struct {
			name    string
			end     func(*process)
			replace func()
		}{
			{"crash", (*process).kill, func() { m.restartRelay(t, ctx) }},
			{"restart", (*process).stop, func() { m.restartRelay(t, ctx) }},
			{"successor", (*process).stop, func() { m.succeedRelay(t) }},
		} {
			begin, before := time.Now(), call.c.arrived(t, ctx)
			change.end(m.relay) // returns when the process is gone
			down := time.Now()
			change.replace()
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

// restartRelay starts the relay again as it was, and waits until it has bound its
// sockets.
func (m *moving) restartRelay(t *testing.T, ctx context.Context) {
	t.Helper()
	m.relay = m.run(t, "relayd", m.relayArgs...)
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		problem := m.relayAnswers(ctx)
		if problem == "" {
			return
		}
		if time.Since(begin) > 15*time.Second {
			t.Fatal(problem)
		}
	}
}

// succeedRelay starts a relay at the same ingress, but another trunk address, in
// the test's own process. It is told where the Hosts are.
func (m *moving) succeedRelay(t *testing.T) {
	t.Helper()
	cfg := relay.Config{
		Trunk: netip.MustParseAddrPort("127.0.0.1:4100"), Workers: 2, Cluster: 7, Codec: m.codec, TrunkKeys: m.keys,
		AllowUpstream: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")},
	}
	for i, l := range m.links {
		cfg.Ingresses = append(cfg.Ingresses, relay.Ingress{ID: uint16(i + 1), Listen: l.Relay()})
	}
	for _, h := range m.hosts {
		cfg.Peers = append(cfg.Peers, h.Addr())
	}
	var server *relay.Server
	err := m.Do(func() (err error) {
		server, err = relay.New(cfg)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve()
	}()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the successor: %+v", server.Stats())
		}
		_ = server.Close()
		<-served
	})
}
