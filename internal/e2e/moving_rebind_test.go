package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/e2e/link"
	"github.com/usher-rtc/usher/transceiver"
)

// The goals are printed beside what was measured; what a test insists on leaves
// room for a machine that does other things as well.
const (
	mustRecover = time.Second
	// window is how long after an event gaps are looked for.
	window = 2 * time.Second
)

// movingCall is a call that is up, with traffic in both directions.
type movingCall struct {
	m     *moving
	c     mover
	meter *meter
	first generation
	audio bool
}

// begin makes a call and waits until both directions have flowed for a while.
func (m *moving) begin(t *testing.T, ctx context.Context, c mover, audio bool) *movingCall {
	t.Helper()
	call := &movingCall{m: m, c: c, audio: audio}
	call.first = c.call(t, ctx, m.urls[0], audio)
	call.meter = m.meterOf(t, call.first.Ufrag)
	t.Logf("data channel open %.0f ms after the answer", call.first.Connect)
	eventually(t, 15*time.Second, func() string {
		sound, counters := call.meter.heard()
		down := c.arrived(t, ctx)
		if len(counters) < 25 || len(down.counters) < 25 || audio && (len(sound) < 25 || down.packets < 25) {
			return fmt.Sprintf("up %d packets and %d messages, down %d and %d",
				len(sound), len(counters), down.packets, len(down.counters))
		}
		return ""
	})
	return call
}

// client returns the call's own address and the link it uses.
func (call *movingCall) client(t *testing.T) (netip.AddrPort, *link.Link) {
	t.Helper()
	outer := call.meter.session.ClientAddr()
	for _, l := range call.m.links {
		if client, ok := l.Client(outer); ok {
			return client, l
		}
	}
	t.Fatalf("the client is at %v, where no link has one", outer)
	return netip.AddrPort{}, nil
}

// downAudio returns when audio was delivered to the client, as the links saw it:
// a browser cannot say so itself.
func (call *movingCall) downAudio(since time.Time) (all []time.Time) {
	for _, l := range call.m.links {
		for _, p := range l.Find(netip.AddrPort{}, link.Down, since, link.RTP) {
			all = append(all, p.At)
		}
	}
	return all
}

// gaps returns the largest gaps from an event to the end of the window after it,
// of audio and of messages.
type gaps struct {
	audioUp, audioDown, messagesUp, messagesDown time.Duration
}

func (g gaps) String() string {
	return fmt.Sprintf("audio up %v down %v, messages up %v down %v",
		g.audioUp.Round(time.Millisecond), g.audioDown.Round(time.Millisecond),
		g.messagesUp.Round(time.Millisecond), g.messagesDown.Round(time.Millisecond))
}

// gapsSince waits for the window after the event, and a little longer for what
// was sent in it to arrive, and measures.
func (call *movingCall) gapsSince(t *testing.T, ctx context.Context, event time.Time, window time.Duration) (g gaps) {
	t.Helper()
	end := event.Add(window)
	select {
	case <-time.After(time.Until(end.Add(2 * oneWay))):
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	}
	sound, counters := call.meter.heard()
	down := call.c.arrived(t, ctx)
	g.messagesUp = largestGap(times(counters), event, end)
	g.messagesDown = largestGap(times(down.counters), event, end)
	if call.audio {
		g.audioUp = largestGap(sound, event, end)
		g.audioDown = largestGap(call.downAudio(event), event, end)
	}
	return g
}

// checkOrder fails the test unless every message came once and in order, as a
// reliable channel promises, in both directions.
func (call *movingCall) checkOrder(t *testing.T, ctx context.Context) {
	t.Helper()
	_, up := call.meter.heard()
	for direction, counters := range map[string][]mark{"up": up, "down": call.c.arrived(t, ctx).counters} {
		for i, c := range counters {
			if c.N != i {
				t.Errorf("message %d arrived %s in place of message %d", c.N, direction, i)
				break
			}
		}
	}
}

// checkDecoded fails the test unless the client took nearly all audio that was
// delivered to it.
func (call *movingCall) checkDecoded(t *testing.T, before, after arrived, since time.Time) {
	t.Helper()
	delivered, taken := len(call.downAudio(since)), after.packets-before.packets
	if taken*100 < delivered*80 {
		t.Errorf("the client took %d of %d packets of audio", taken, delivered)
	}
}

// TestMovingRebind gives clients a new port at their NAT while they speak.
func TestMovingRebind(t *testing.T) {
	eachMover(t, func(t *testing.T, name string, start func(*testing.T, context.Context, *moving) mover) {
		ctx := testContext(t, 2*time.Minute, "ufragctl", "relayd")
		m := newMoving(t, ctx, 1, 1)
		call := m.begin(t, ctx, start(t, ctx, m), true)
		rebindOften(t, ctx, call, name)
	})
}

// TestMovingRebindInACrowd does the same while 100 other calls, on two Hosts,
// come from the same IP address.
func TestMovingRebindInACrowd(t *testing.T) {
	long(t)
	const others = 100
	eachMover(t, func(t *testing.T, name string, start func(*testing.T, context.Context, *moving) mover) {
		ctx := testContext(t, 3*time.Minute, "ufragctl", "relayd")
		m := newMoving(t, ctx, 2, 1)
		for i := range others {
			crowd := &pionMover{network: m.network, silent: true}
			crowd.call(t, ctx, m.urls[i%2], false)
		}
		c := start(t, ctx, m)
		rebindOften(t, ctx, m.begin(t, ctx, c, true), name+"-crowd")
		for i, h := range m.hosts {
			if got := h.Stats().Connected; got < others/2 {
				t.Errorf("Host %d has %d connected sessions, want %d or more", i, got, others/2)
			}
		}
	})
}

func rebindOften(t *testing.T, ctx context.Context, call *movingCall, name string) {
	t.Helper()
	begin, before := time.Now(), call.c.arrived(t, ctx)
	for i := range 3 {
		client, l := call.client(t)
		event, err := l.Rebind()
		if err != nil {
			t.Fatal(err)
		}
		g := call.gapsSince(t, ctx, event, window)
		t.Logf("gap rebind-%s up_ms %.0f down_ms %.0f (goal 200; %v)", name, millis(g.audioUp), millis(g.audioDown), g)
		if g.audioUp > mustRecover || g.audioDown > mustRecover {
			t.Errorf("rebinding %d: %v", i, g)
		}
		if outer, _ := l.Outer(client); call.meter.session.ClientAddr() != outer {
			t.Errorf("the client is at %v, the session at %v", outer, call.meter.session.ClientAddr())
		}
	}
	call.checkDecoded(t, before, call.c.arrived(t, ctx), begin)
	call.checkOrder(t, ctx)
	if hs := call.m.links[0].Find(netip.AddrPort{}, link.Down, begin, link.Handshake); len(hs) > 0 {
		t.Errorf("%d DTLS handshake packets after a rebinding", len(hs))
	}
}

// TestMovingRebindWithoutAudio rebinds calls that have only a data channel, for
// which nothing but the client's next check can speak.
func TestMovingRebindWithoutAudio(t *testing.T) {
	long(t)
	eachMover(t, func(t *testing.T, name string, start func(*testing.T, context.Context, *moving) mover) {
		ctx := testContext(t, 2*time.Minute, "ufragctl", "relayd")
		m := newMoving(t, ctx, 1, 1)
		call := m.begin(t, ctx, start(t, ctx, m), false)
		client, l := call.client(t)
		event, err := l.Rebind()
		if err != nil {
			t.Fatal(err)
		}
		outer, _ := l.Outer(client)
		moved := waitForAddr(t, call.meter.session, outer)
		checks := l.Find(client, link.Up, event, link.Request)
		if len(checks) == 0 {
			t.Fatal("the session moved without a check of the client's")
		}
		first := checks[0].At
		t.Logf("rebind-data-%s first_check_ms %.0f check_to_moved_ms %.0f (goal %v)",
			name, millis(first.Sub(event)), millis(moved.Sub(first)), 2*oneWay)
		if moved.Sub(first) > mustRecover {
			t.Errorf("the session moved %v after the first check", moved.Sub(first))
		}
		g := call.gapsSince(t, ctx, event, max(time.Since(event), 15*time.Second))
		t.Logf("gap rebind-data-%s up_ms %.0f down_ms %.0f (with the client's wait and SCTP's timers)",
			name, millis(g.messagesUp), millis(g.messagesDown))
		call.checkOrder(t, ctx)
	})
}

// waitForAddr returns when a session's client was first seen at an address.
func waitForAddr(t *testing.T, s *transceiver.Session, want netip.AddrPort) time.Time {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if s.ClientAddr() == want {
			return time.Now()
		}
	}
	t.Fatalf("the session is at %v, its client at %v", s.ClientAddr(), want)
	return time.Time{}
}
