package gaps

import (
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/bench/gaps/gapstest"
	"github.com/usher-rtc/usher/internal/meter"
)

const ms = int64(time.Millisecond)

func at(points ...int64) (all []meter.Event) {
	for i, p := range points {
		all = append(all, meter.Event{Seq: uint32(i), At: p * ms})
	}
	return all
}

func TestGap(t *testing.T) {
	w := Spell{From: 1000 * ms, To: 2000 * ms}
	for _, tt := range []struct {
		name     string
		received []meter.Event
		want     int64
	}{
		{"steady", gapstest.Every(0, 2020, 0), 0},
		{"across the beginning", append(gapstest.Every(0, 981, 0), gapstest.Every(1150, 2020, 50)...), 1150 - 980 - 20},
		{"before it", append(gapstest.Every(0, 500, 0), gapstest.Every(990, 2020, 50)...), 0},
		{"inside", append(gapstest.Every(0, 1201, 0), gapstest.Every(1300, 2020, 50)...), 80},
		{"never again", gapstest.Every(0, 1501, 0), 480},
		{"after the end", append(gapstest.Every(0, 2001, 0), gapstest.Every(5000, 5100, 200)...), 0},
		{"nothing at all", nil, 980},
		{"out of order", at(990, 1010, 1005, 1030, 1980), 930},
	} {
		if got := (Stream{Received: tt.received}).Gap(w); got != time.Duration(tt.want*ms) {
			t.Errorf("%s: %v, want %d ms", tt.name, got, tt.want)
		}
	}
}

// TestGapOfABusySender checks that a silence of the sender's own is not counted.
func TestGapOfABusySender(t *testing.T) {
	w := Spell{From: 1000 * ms, To: 2000 * ms}
	paused := append(gapstest.Every(0, 1201, 0), gapstest.Every(1400, 2020, 61)...) // nothing from 1200 to 1400
	for _, tt := range []struct {
		name           string
		sent, received []meter.Event
		want           int64
	}{
		{"steady sender", gapstest.Every(0, 2020, 0), paused, 180},
		{"the same silence at both", paused, paused, 0},
		{"a longer one at the receiver", paused, append(gapstest.Every(0, 1101, 0), gapstest.Every(1500, 2020, 66)...), 400 - 200},
		{"a pause of the sender's elsewhere", append(gapstest.Every(0, 1601, 0), gapstest.Every(1800, 2020, 81)...), paused, 180},
		{"a sender that has ended", gapstest.Every(0, 1201, 0), gapstest.Every(0, 1201, 0), 780},
	} {
		s := Stream{tt.sent, tt.received}
		if got := s.Gap(w); got != time.Duration(tt.want*ms) {
			t.Errorf("%s: %v, want %d ms", tt.name, got, tt.want)
		}
	}
}

func TestLosses(t *testing.T) {
	sent := gapstest.Every(0, 4000, 0) // number n is sent at 20n ms
	without := func(lost ...uint32) (received []meter.Event) {
		for _, e := range sent {
			keep := true
			for _, n := range lost {
				keep = keep && e.Seq != n
			}
			if keep {
				received = append(received, meter.Event{Seq: e.Seq, At: e.At + ms})
			}
		}
		return received
	}
	quiet := Spell{From: 1000 * ms, To: 3000 * ms}
	down := Spell{From: 1000 * ms, To: 3000 * ms, DownFrom: 1500 * ms, DownTo: 1600 * ms}
	for _, tt := range []struct {
		name  string
		spell Spell
		lost  []uint32
		want  int
	}{
		{"none", quiet, nil, 0},
		{"before", quiet, []uint32{49}, 0},
		{"the first", quiet, []uint32{50}, 1},
		{"two", quiet, []uint32{70, 90}, 2},
		{"too late to know", quiet, []uint32{126}, 0},
		{"in the outage", down, []uint32{75, 76, 77, 78, 79, 80}, 0},
		{"around the outage", down, []uint32{74, 77, 81}, 2},
	} {
		n, lost := Stream{sent, without(tt.lost...)}.Losses(tt.spell, 5*time.Millisecond)
		if n != 76 || lost != tt.want {
			t.Errorf("%s: %d of %d lost, want %d of 76", tt.name, lost, n, tt.want)
		}
	}
}

func TestSilent(t *testing.T) {
	w := Spell{From: 1000 * ms, To: 2000 * ms}
	for _, tt := range []struct {
		name     string
		received []meter.Event
		want     bool
	}{
		{"to the end", gapstest.Every(0, 2000, 0), false},
		{"for a while", gapstest.Every(0, 1501, 0), false},
		{"at the beginning", gapstest.Every(0, 1481, 0), true},
		{"never", nil, true},
	} {
		if got := (Stream{Received: tt.received}).Silent(w); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

func TestDelay(t *testing.T) {
	sent := gapstest.Every(0, 100, 0)
	received := []meter.Event{{Seq: 0, At: 30 * ms}, {Seq: 2, At: 45 * ms}, {Seq: 1, At: 90 * ms}, {Seq: 77, At: 91 * ms}} // 30, 5 and 70 ms
	if got := (Stream{sent, received}).Delay(); got != 30*time.Millisecond {
		t.Errorf("%v, want 30 ms", got)
	}
	if got := (Stream{Sent: sent}).Delay(); got != 0 {
		t.Errorf("%v although nothing arrived", got)
	}
}

func TestVerdict(t *testing.T) {
	v := Verdict{Name: "restart", Gaps: []time.Duration{3 * time.Millisecond, 1 * time.Millisecond, 2 * time.Millisecond}, Lost: 4}
	v.Note("calls %d", 3)
	v.Note("upgrades %d", 10)
	v.Fail("%s had a gap", "firefox")
	if got, want := v.String(), "drill restart gap_ms 2 3 3 lost 4 (calls 3; upgrades 10)"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if len(v.Problems) != 1 || v.Problems[0] != "firefox had a gap" {
		t.Errorf("problems %q", v.Problems)
	}
}
