package e2e

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/e2e/link"
)

// TestMovingStranger sends a call's own checks, and fresh ones signed with its
// password, from another address. A client could do no more to say that it has
// moved; but nobody there answers, so nothing may move, and little may go there.
func TestMovingStranger(t *testing.T) {
	const (
		checks   = 40
		every    = 50 * time.Millisecond
		maxBytes = 1500
	)
	eachMover(t, func(t *testing.T, name string, start func(*testing.T, context.Context, *moving) mover) {
		ctx := testContext(t, 2*time.Minute, "ufragctl", "relayd")
		m := newMoving(t, ctx, 1, 1)
		call := m.begin(t, ctx, start(t, ctx, m), true)
		client, l := call.client(t)
		own := l.Find(client, link.Up, time.Time{}, link.Request)
		if len(own) == 0 {
			t.Fatal("no check of the client's to replay")
		}
		audio := l.Find(client, link.Up, time.Time{}, link.RTP)
		ssrc := audio[len(audio)-1].SSRC
		for _, attack := range []struct {
			name, address string
			packet        func(i int) []byte
		}{
			{"forged", "127.0.2.1", func(i int) []byte { return m.check(t, call.first, i, i%2 == 0) }},
			{"replayed", "127.0.2.2", func(i int) []byte { return own[i%len(own)].Data }},
			// From the client's own NAT, where the relay looks for flows by IP address.
			{"replayed nearby", natAddr, func(i int) []byte { return own[i%len(own)].Data }},
			{"junk nearby", natAddr, func(int) []byte { return junkRTP(ssrc) }},
		} {
			s := newStranger(t, m, attack.address)
			before := call.meter.session.Stats()
			event := time.Now()
			ticker := time.NewTicker(every)
			for i := range checks {
				<-ticker.C
				s.send(t, attack.packet(i))
				if attack.name == "forged" {
					s.send(t, junkRTP(ssrc))
				}
			}
			ticker.Stop()
			packets, size := s.received(300 * time.Millisecond)
			g := call.gapsSince(t, ctx, event, time.Since(event))
			after := call.meter.session.Stats()
			t.Logf("stranger %s-%s packets %d bytes %d; gap stranger-%s-%s up_ms %.0f down_ms %.0f",
				name, attack.name, packets, size, name, attack.name, millis(g.audioUp), millis(g.audioDown))
			if size >= maxBytes {
				t.Errorf("%s: %d bytes went to a stranger, want fewer than %d", attack.name, size, maxBytes)
			}
			if after.ClientAddr != before.ClientAddr || after.PathChanges != before.PathChanges {
				t.Errorf("%s: moved from %v to %v, %d times", attack.name,
					before.ClientAddr, after.ClientAddr, after.PathChanges-before.PathChanges)
			}
			if g.audioUp > mustRecover || g.audioDown > mustRecover {
				t.Errorf("%s: %v", attack.name, g)
			}
		}
		// What the strangers did must not keep the client from moving afterwards.
		if _, err := l.Rebind(); err != nil {
			t.Fatal(err)
		}
		outer, _ := l.Outer(client)
		waitForAddr(t, call.meter.session, outer)
		call.checkOrder(t, ctx)
		if hs := l.Find(netip.AddrPort{}, link.Down, own[len(own)-1].At.Add(time.Second), link.Handshake); len(hs) > 0 {
			t.Errorf("%d DTLS handshake packets", len(hs))
		}
	})
}

// junkRTP looks like the client's audio and is none.
func junkRTP(ssrc uint32) []byte {
	b := make([]byte, 100)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	b[0], b[1] = 0x80, 111
	binary.BigEndian.PutUint32(b[8:], ssrc)
	return b
}
