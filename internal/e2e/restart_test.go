package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/e2e/link"
	"github.com/usher-rtc/usher/internal/stun"
)

// TestRestartFiveInARow makes ICE restarts under audio and messages. Each gets a
// fresh ufrag for the same Host; DTLS, and the messages under way, must not notice.
func TestRestartFiveInARow(t *testing.T) {
	const restarts = 5
	eachMover(t, func(t *testing.T, name string, start func(*testing.T, context.Context, *moving) mover) {
		ctx := testContext(t, 2*time.Minute, "ufragctl", "relayd")
		m := newMoving(t, ctx, 1, 1)
		call := m.begin(t, ctx, start(t, ctx, m), true)
		begin, before := time.Now(), call.c.arrived(t, ctx)
		generations := []generation{call.first}
		for range restarts {
			event := time.Now()
			g := call.c.restart(t, ctx)
			generations = append(generations, g)
			call.waitForGeneration(t, g, event)
		}
		g := call.gapsSince(t, ctx, begin, time.Since(begin)+window/2)
		t.Logf("gap restart-%s up_ms %.0f down_ms %.0f (goal 120; %v)", name,
			millis(max(g.audioUp, g.messagesUp)), millis(max(g.audioDown, g.messagesDown)), g)
		if max(g.audioUp, g.audioDown, g.messagesUp, g.messagesDown) > mustRecover {
			t.Errorf("in %d restarts: %v", restarts, g)
		}
		call.checkOrder(t, ctx)
		call.checkDecoded(t, before, call.c.arrived(t, ctx), begin)
		for _, d := range []link.Direction{link.Up, link.Down} {
			if hs := m.links[0].Find(netip.AddrPort{}, d, begin, link.Handshake); len(hs) > 0 {
				t.Errorf("%d DTLS handshake packets in direction %d", len(hs), d)
			}
		}
		call.checkGenerations(t, ctx, generations)
	})
}

// waitForGeneration waits until the client's traffic has followed a check with
// the generation's ufrag for long enough that the session must have moved to it.
// Restarting earlier than that is refused by Firefox's DTLS.
func (call *movingCall) waitForGeneration(t *testing.T, g generation, since time.Time) {
	t.Helper()
	const settled = 500 * time.Millisecond
	eventually(t, 15*time.Second, func() string {
		for _, l := range call.m.links {
			for _, check := range l.Find(netip.AddrPort{}, link.Up, since, link.Request) {
				if !bytes.Contains(check.Data, []byte(g.Ufrag+":")) {
					continue
				}
				outer, _ := l.Outer(check.Client)
				if call.meter.session.ClientAddr() != outer {
					return fmt.Sprintf("the session is at %v, the client at %v", call.meter.session.ClientAddr(), outer)
				}
				media := l.Find(check.Client, link.Up, check.At, link.RTP)
				if n := len(media); n == 0 || media[n-1].At.Sub(media[0].At) < settled {
					return fmt.Sprintf("%d packets of audio after the first check with the new ufrag", n)
				}
				return ""
			}
		}
		return "no check with the new ufrag"
	})
}

// checkGenerations fails the test unless every answer had a ufrag of its own
// for the same Host, of which only the newest (and, for a client that turns back,
// the one before it) still work.
func (call *movingCall) checkGenerations(t *testing.T, ctx context.Context, all []generation) {
	t.Helper()
	first, err := call.m.codec.Decode([]byte(all[0].Ufrag))
	if err != nil {
		t.Fatal(err)
	}
	var ufrags []string
	for _, g := range all {
		route, err := call.m.codec.Decode([]byte(g.Ufrag))
		if err != nil || !route.SameHost(first) {
			t.Errorf("ufrag %s leads to %v, want %v (%v)", g.Ufrag, route, first, err)
		}
		if slices.Contains(ufrags, g.Ufrag) {
			t.Errorf("ufrag %s was given twice", g.Ufrag)
		}
		ufrags = append(ufrags, g.Ufrag)
	}
	stranger := newStranger(t, call.m, "127.0.2.9")
	newest := all[len(all)-1]
	// The newest first: if its check were not answered, silence would mean nothing.
	if !stranger.answered(t, call.m, newest, time.Second) {
		t.Error("a check with the newest credentials was not answered")
	}
	for i, g := range all[:len(all)-2] {
		if stranger.answered(t, call.m, g, 200*time.Millisecond) {
			t.Errorf("a check with the credentials of generation %d of %d was answered", i+1, len(all))
		}
	}
}

// stranger is a socket somewhere else that knows more than it should.
type stranger struct {
	conn *net.UDPConn
	to   netip.AddrPort
}

func newStranger(t *testing.T, m *moving, address string) *stranger {
	t.Helper()
	var conn *net.UDPConn
	err := m.Do(func() error {
		pc, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp4", address+":0")
		if err == nil {
			conn = pc.(*net.UDPConn)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &stranger{conn, m.links[0].Relay()}
}

// check makes a check of the client's, signed as the client would.
func (m *moving) check(t *testing.T, g generation, number int, useCandidate bool) []byte {
	t.Helper()
	password, err := m.codec.AppendPassword(nil, []byte(g.Ufrag))
	if err != nil {
		t.Fatal(err)
	}
	id := stun.TransactionID{'s', 't', 'r', 'a', 'n', 'g', 'e', 'r', g.Ufrag[1], g.Ufrag[2], byte(number >> 8), byte(number)}
	var b stun.Builder
	b.Reset(nil, stun.BindingRequest, id)
	b.AddUsername(g.Ufrag, g.ClientUfrag)
	b.AddControlling(1)
	b.AddPriority(1)
	if useCandidate {
		b.AddUseCandidate()
	}
	b.AddIntegrity(new(stun.Authenticator), password)
	b.AddFingerprint()
	return b.Bytes()
}

func (s *stranger) send(t *testing.T, b []byte) {
	t.Helper()
	if _, err := s.conn.WriteToUDPAddrPort(b, s.to); err != nil {
		t.Fatal(err)
	}
}

// answered reports whether a check with these credentials gets a success response.
func (s *stranger) answered(t *testing.T, m *moving, g generation, limit time.Duration) bool {
	t.Helper()
	request := m.check(t, g, 0, false)
	s.send(t, request)
	_ = s.conn.SetReadDeadline(time.Now().Add(limit))
	for buf := make([]byte, 2048); ; {
		n, _, err := s.conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return false
		}
		var message stun.Message
		if stun.Parse(buf[:n], &message) == stun.OK && message.Type.IsSuccess() && bytes.Equal(buf[8:20], request[8:20]) {
			return true
		}
	}
}

// received returns how many bytes came until none did for a while.
func (s *stranger) received(quiet time.Duration) (packets, size int) {
	for buf := make([]byte, 2048); ; {
		_ = s.conn.SetReadDeadline(time.Now().Add(quiet))
		n, _, err := s.conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return packets, size
		}
		packets, size = packets+1, size+n
	}
}
