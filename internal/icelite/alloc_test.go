package icelite

import (
	"net/netip"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/race"
	"github.com/usher-rtc/usher/internal/stun"
)

// Everything that happens per packet or per timer, in a session that has
// reached its steady state.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	race.NoAllocs(t)
	h := newHarness(t)
	h.prove(pathA, checkOpts{}, time.Millisecond)
	h.prove(pathC, checkOpts{}, time.Millisecond)
	h.rtp(pathA)
	var checks [64]packet
	for i := range checks {
		checks[i] = h.makeCheck(checkOpts{})
	}
	withDTLS := h.makeCheck(checkOpts{raw: func(b *stun.Builder) { b.AddRaw(stun.AttrDTLSInSTUN, append([]byte{22}, make([]byte, 899)...)) }})
	forged := h.makeCheck(checkOpts{password: "wrong"})
	own := h.ownCheckIn(h.check(pathB, checkOpts{}), pathB)
	wrong := creds(1)
	wrong.RemotePassword = "wrong"
	badAnswer := h.makeAnswer(own, wrong, 0)
	n := 0
	for name, f := range map[string]func(){
		"check": func() {
			c := &checks[n%len(checks)]
			n++
			h.stunFrom(pathA, relay1, *c)
		},
		"check on another path":  func() { n++; h.stunFrom(pathC, relay1, checks[n%len(checks)]) },
		"check with DTLS":        func() { h.stunFrom(pathA, relay1, withDTLS) },
		"forged check":           func() { h.stunFrom(pathX, relay1, forged) },
		"forged answer":          func() { h.stunFrom(pathB, relay1, badAnswer) },
		"SRTP":                   func() { h.rtp(pathA) },
		"SRTP from elsewhere":    func() { h.rtp(pathX) },
		"relay changes":          func() { n++; h.data(pathA, []netip.AddrPort{relay1, relay2, relay3}[n%3], stun.ClassRTP, true, 100) },
		"what may be sent":       func() { h.a.Allow(h.now, 100) },
		"timers":                 func() { h.sleep(100 * time.Millisecond); h.out.Reset(); h.a.Poll(h.now, &h.out) },
		"when the next timer is": func() { h.a.Next() },
	} {
		t.Run(name, func(t *testing.T) {
			h.a.Poll(h.now, &h.out)
			if a := testing.AllocsPerRun(200, f); a != 0 {
				t.Errorf("%v allocations", a)
			}
		})
	}
}

func BenchmarkCheck(b *testing.B) {
	h := newHarness(b)
	h.prove(pathA, checkOpts{}, time.Millisecond)
	var checks [256]packet
	for i := range checks {
		checks[i] = h.makeCheck(checkOpts{})
	}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		h.stunFrom(pathA, relay1, checks[n%len(checks)])
		n++
	}
	perPacket(b)
}

func BenchmarkData(b *testing.B) {
	h := newHarness(b)
	h.prove(pathA, checkOpts{}, time.Millisecond)
	b.ReportAllocs()
	for b.Loop() {
		h.rtp(pathA)
		h.a.Allow(h.now, 150)
	}
	perPacket(b)
}

func perPacket(b *testing.B) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N), "ns/packet")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "packets/s")
}
