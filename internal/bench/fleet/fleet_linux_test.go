package main

import (
	"context"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/bench/gaps"
	"github.com/usher-rtc/usher/internal/meter"
	"github.com/usher-rtc/usher/internal/parts"
)

// TestFleet runs a small fleet: every call on its owner and through the edge near
// it, the near edge faster, and audio again after an edge, a cluster relay and a
// transceiver were replaced. How long things take is for make fleet.
func TestFleet(t *testing.T) {
	parts.Need(t, available())
	ctx, cancel := context.WithTimeout(t.Context(), 85*time.Second)
	defer cancel()
	var out strings.Builder
	err := run(ctx, options{calls: 8, rollouts: regexp.MustCompile("edge-|restart|transceiver"), quick: true, out: &out})
	if err != nil {
		t.Errorf("%v\n%s", err, &out)
	}
	for _, line := range []string{"fleet owners 8 of 8 near 8 of 8", "fleet saved_ms", "drill edge-restart/east-1", "drill transceiver-rollout/east-1"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("no line with %q in\n%s", line, &out)
		}
	}
}

func events(at ...time.Duration) (list []meter.Event) {
	for i, t := range at {
		list = append(list, meter.Event{Seq: uint32(i), At: int64(t)})
	}
	return list
}

func TestVerdict(t *testing.T) {
	const ms = time.Millisecond
	var sent []time.Duration
	for i := range 100 {
		sent = append(sent, time.Duration(i)*20*ms)
	}
	without := func(from, to int) []meter.Event { return append(events(sent...)[:from:from], events(sent...)[to:]...) }
	w := gaps.Spell{From: int64(400 * ms), To: int64(1900 * ms)}
	for _, tt := range []struct {
		name     string
		received []meter.Event
		down     time.Duration
		gap      time.Duration
		lost     int
		silent   bool
	}{
		{"all", events(sent...), 0, 0, 0, false},
		{"five missing", without(30, 35), 0, 100 * ms, 5, false},
		{"missing from before the beginning on", without(15, 25), 0, 200 * ms, 5, false},
		{"missing while nothing was there", without(20, 25), 100 * ms, 100 * ms, 0, false},
		{"missing to the end", without(50, 100), 0, 900 * ms, 21, true},
	} {
		w.DownFrom, w.DownTo = 0, 0
		if tt.down > 0 {
			w.DownFrom, w.DownTo = w.From, w.From+int64(tt.down)
		}
		s := gaps.Stream{Sent: events(sent...), Received: tt.received}
		v := &verdict{Verdict: gaps.Verdict{Spell: w}}
		v.add(false, s, gaps.Stream{Received: events(sent...)})
		if v.Gaps[0] != tt.gap || v.Lost != tt.lost || v.silent == 1 != tt.silent {
			t.Errorf("%s: gap %v, lost %d, %d silent; want %v, %d, %v", tt.name, v.Gaps[0], v.Lost, v.silent, tt.gap, tt.lost, tt.silent)
		}
	}
	v := &verdict{Verdict: gaps.Verdict{Name: "x", Spell: gaps.Spell{From: int64(400 * ms), To: int64(1900 * ms)}}}
	five := gaps.Stream{Sent: events(sent...), Received: without(30, 35)}
	v.add(false, five, five)
	v.add(true, five, five)
	v.within(90*ms, 1) // a round trip makes up for the far one
	v.lossless()
	if len(v.Problems) != 2 || !strings.Contains(v.Problems[0], "near calls are at most 100.0 ms, want 90.0") || !strings.Contains(v.Problems[1], "20 packets") {
		t.Errorf("%q", v.Problems)
	}
	if got, want := v.String(), "drill x gap_ms 100 100 100 lost 20 (near 100 goal 90; far 100 goal 130)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// What has a client at one end takes longer between the regions.
func TestDelayOf(t *testing.T) {
	packet := func(from, to string) []byte {
		b := make([]byte, 28)
		b[0] = 0x45
		for i, a := range []string{from, to} {
			copy(b[12+4*i:], netip.MustParseAddr(a).AsSlice())
		}
		return b
	}
	for _, tt := range []struct {
		name     string
		b        []byte
		expected time.Duration
	}{
		{"client to the other region's address", packet("10.1.5.9", "198.51.100.2"), internet},
		{"and back", packet("198.51.100.2", "10.1.5.9"), internet},
		{"NAT to a transceiver", packet("10.1.6.1", "10.2.3.1"), internet},
		{"edge to cluster relay", packet("10.1.1.1", "10.2.2.1"), backbone},
		{"and back", packet("10.2.2.1", "10.1.1.1"), backbone},
		{"not IPv4", []byte{0x60}, internet},
	} {
		if got := delayOf(tt.b); got != tt.expected {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.expected)
		}
	}
}
