package icelite

import (
	"encoding/binary"
	"hash/crc32"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/stun"
)

func TestDataIsBelievedOnlyFromProvenPaths(t *testing.T) {
	const dtls, rtp = stun.ClassDTLS, stun.ClassRTP
	nothing := func(*harness) {}
	firstCheck := func(h *harness) { h.check(pathA, checkOpts{}) }
	proven := func(h *harness) { h.prove(pathA, checkOpts{}, time.Millisecond) }
	second := func(h *harness) { proven(h); h.check(pathC, checkOpts{}) }
	for name, tc := range map[string]struct {
		set   func(*harness)
		from  Path
		class stun.Class
		known bool
		want  DataVerdict
	}{
		"DTLS before any check":                  {nothing, pathA, dtls, false, Drop},
		"SRTP before any check":                  {nothing, pathA, rtp, true, Drop},
		"DTLS from the first path":               {firstCheck, pathA, dtls, false, Deliver},
		"SRTP from the first path":               {firstCheck, pathA, rtp, false, Deliver},
		"DTLS from a stranger, first path":       {firstCheck, pathX, dtls, false, Drop},
		"SRTP from a stranger, first path":       {firstCheck, pathX, rtp, false, Drop},
		"DTLS from a proven path":                {proven, pathA, dtls, false, Deliver},
		"DTLS from a stranger":                   {proven, pathX, dtls, true, Drop},
		"unknown SSRC from a stranger":           {proven, pathX, rtp, false, Drop},
		"known SSRC from a stranger":             {proven, pathX, rtp, true, DeliverSRTP},
		"other kinds of packets":                 {proven, pathA, stun.ClassOther, true, Drop},
		"STUN is no data":                        {proven, pathA, stun.ClassSTUN, true, Drop},
		"DTLS from a second path, unproven":      {second, pathC, dtls, false, Drop},
		"unknown SSRC from a second path":        {second, pathC, rtp, false, Drop},
		"known SSRC from a second path":          {second, pathC, rtp, true, DeliverSRTP},
		"the other ingress, same client address": {proven, pathB, dtls, false, Drop},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			tc.set(h)
			if v := h.data(tc.from, relay1, tc.class, tc.known, 100); v != tc.want {
				t.Errorf("%v, want %v", v, tc.want)
			}
			if tc.want != Deliver && h.a.current >= 0 {
				h.wantCurrent(pathA)
			}
		})
	}
}

// C41: DTLS from elsewhere before, during and after the client's checks.
func TestClientHelloFromAStrangerNeverCounts(t *testing.T) {
	h := newHarness(t)
	hello := func() {
		t.Helper()
		if v := h.data(pathX, relay1, stun.ClassDTLS, false, 1200); v != Drop || len(h.out.Packets) != 0 {
			t.Fatalf("%v, %d packets", v, len(h.out.Packets))
		}
	}
	hello()
	own := h.ownCheckIn(h.check(pathA, checkOpts{}), pathA)
	hello()
	h.answer(own, creds(1))
	hello()
	h.wantCurrent(pathA)
	if len(h.a.Paths()) != 1 {
		t.Error("a stranger has a path")
	}
}

func TestKnownSSRCFromANewAddressStartsACheckThereAtOnce(t *testing.T) {
	h := newHarness(t)
	h.prove(pathA, checkOpts{}, 50*time.Millisecond)
	h.keepAlive(time.Second, pathA, creds(1))
	// The NAT rebinds: from here on everything comes from C.
	h.sleep(20 * time.Millisecond)
	if v := h.rtp(pathC); v != DeliverSRTP {
		t.Fatalf("verdict %v", v)
	}
	own := h.ownCheckIn(h.out.Packets, pathC)
	h.sleep(50 * time.Millisecond)
	h.wantCurrent(pathA)
	h.answer(own, creds(1))
	h.wantCurrent(pathC)
	if v := h.rtp(pathC); v != Deliver {
		t.Errorf("verdict %v after the proof", v)
	}
	if v := h.data(pathC, relay1, stun.ClassDTLS, false, 100); v != Deliver {
		t.Errorf("DTLS: %v", v)
	}
}

func TestDTLSOnAnUnprovenPathAsksAgain(t *testing.T) {
	h := newHarness(t)
	h.prove(pathA, checkOpts{}, time.Millisecond)
	h.check(pathC, checkOpts{})
	h.wait(2 * time.Second) // all tries are lost
	if v := h.data(pathC, relay1, stun.ClassDTLS, false, 1200); v != Drop {
		t.Fatalf("verdict %v", v)
	}
	own := h.ownCheckIn(h.out.Packets, pathC)
	h.answer(own, creds(1))
	if v := h.data(pathC, relay1, stun.ClassDTLS, false, 1200); v != Deliver {
		t.Errorf("verdict %v", v)
	}
}

// C101: Chromium's trial of DTLS in STUN.
func TestDTLSInSTUN(t *testing.T) {
	h := newHarness(t)
	piece := func(n byte) []byte { b := make([]byte, 900); b[0], b[1] = 22, n; return b }
	with := func(payload []byte) checkOpts {
		return checkOpts{raw: func(b *stun.Builder) {
			if payload != nil {
				b.AddRaw(stun.AttrDTLSInSTUN, payload)
			}
			b.AddRaw(stun.AttrDTLSInSTUNAck, nil)
		}}
	}
	acks := func(ps []Outgoing) []uint32 {
		t.Helper()
		m := h.parse(ps[0].Data).m
		if m.DTLSAck == nil {
			t.Fatal("no acknowledgements")
		}
		var sums []uint32
		for b := m.DTLSAck; len(b) > 0; b = b[4:] {
			sums = append(sums, binary.BigEndian.Uint32(b))
		}
		return sums
	}
	same := func(got []uint32, want ...[]byte) {
		t.Helper()
		if len(got) != len(want) {
			t.Fatalf("%d acknowledgements, want %d", len(got), len(want))
		}
		for i := range want {
			if got[i] != crc32.ChecksumIEEE(want[i]) {
				t.Errorf("acknowledgement %d is wrong", i)
			}
		}
	}
	if m := h.parse(h.check(pathA, checkOpts{})[0].Data).m; m.DTLSAck != nil {
		t.Error("acknowledgements for a client that did not ask")
	}
	h.a.NoteDTLS(piece(9)) // not used yet: not remembered
	same(acks(h.check(pathA, with(nil))))

	c := h.makeCheck(with(piece(1)))
	ps := h.stunFrom(pathA, relay1, c)
	same(acks(ps), piece(1))
	if len(h.out.EmbeddedDTLS) != 1 || string(h.out.EmbeddedDTLS[0]) != string(piece(1)) {
		t.Fatal("the payload was not handed over")
	}
	ps = h.stunFrom(pathA, relay1, c)
	same(acks(ps), piece(1))
	if len(h.out.EmbeddedDTLS) != 0 {
		t.Error("a repetition was handed over again")
	}
	forged := with(piece(7))
	forged.password = "wrong"
	h.check(pathA, forged)
	if len(h.out.EmbeddedDTLS) != 0 {
		t.Error("DTLS from an unauthenticated check")
	}
	for name, other := range map[string][]byte{"STUN": c.raw, "SRTP": {0x80, 111, 0, 1}, "something": {1, 2, 3}} {
		if ps := h.check(pathA, with(other)); len(h.out.EmbeddedDTLS) != 0 {
			t.Errorf("%s was handed over", name)
		} else {
			same(acks(ps), piece(1))
		}
	}
	h.check(pathA, with(piece(2)))
	h.a.NoteDTLS(piece(3))
	h.a.NoteDTLS(piece(3))
	h.a.NoteDTLS([]byte{23, 1, 2}) // application data
	h.a.NoteDTLS(nil)
	h.a.NoteDTLS(piece(4))
	same(acks(h.check(pathA, with(piece(5)))), piece(2), piece(3), piece(4), piece(5))
}
