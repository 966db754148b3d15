package main

import (
	"strings"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/meter"
)

const ms = int64(time.Millisecond)

// every makes events 20 ms apart in [from, to) ms, numbered from first on.
func every(from, to int64, first uint32) (all []meter.Event) {
	for at := from; at < to; at += 20 {
		all = append(all, meter.Event{Seq: first, At: at * ms})
		first++
	}
	return all
}

func at(points ...int64) (all []meter.Event) {
	for i, p := range points {
		all = append(all, meter.Event{Seq: uint32(i), At: p * ms})
	}
	return all
}

func TestGap(t *testing.T) {
	w := spell{from: 1000 * ms, to: 2000 * ms}
	for _, tt := range []struct {
		name     string
		received []meter.Event
		want     int64
	}{
		{"steady", every(0, 2020, 0), 0},
		{"across the beginning", append(every(0, 981, 0), every(1150, 2020, 50)...), 1150 - 980 - 20},
		{"before it", append(every(0, 500, 0), every(990, 2020, 50)...), 0},
		{"inside", append(every(0, 1201, 0), every(1300, 2020, 50)...), 80},
		{"never again", every(0, 1501, 0), 480},
		{"after the end", append(every(0, 2001, 0), every(5000, 5100, 200)...), 0},
		{"nothing at all", nil, 980},
		{"out of order", at(990, 1010, 1005, 1030, 1980), 930},
	} {
		if got := (&stream{received: tt.received}).gap(w); got != time.Duration(tt.want*ms) {
			t.Errorf("%s: %v, want %d ms", tt.name, got, tt.want)
		}
	}
}

// TestGapOfABusySender checks that a silence of the sender's own is not counted.
func TestGapOfABusySender(t *testing.T) {
	w := spell{from: 1000 * ms, to: 2000 * ms}
	paused := append(every(0, 1201, 0), every(1400, 2020, 61)...) // nothing from 1200 to 1400
	for _, tt := range []struct {
		name           string
		sent, received []meter.Event
		want           int64
	}{
		{"steady sender", every(0, 2020, 0), paused, 180},
		{"the same silence at both", paused, paused, 0},
		{"a longer one at the receiver", paused, append(every(0, 1101, 0), every(1500, 2020, 66)...), 400 - 200},
		{"a pause of the sender's elsewhere", append(every(0, 1601, 0), every(1800, 2020, 81)...), paused, 180},
		{"a sender that has ended", every(0, 1201, 0), every(0, 1201, 0), 780},
	} {
		s := &stream{sent: tt.sent, received: tt.received}
		if got := s.gap(w); got != time.Duration(tt.want*ms) {
			t.Errorf("%s: %v, want %d ms", tt.name, got, tt.want)
		}
	}
}

func TestLosses(t *testing.T) {
	sent := every(0, 4000, 0) // number n is sent at 20n ms
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
	quiet := spell{from: 1000 * ms, to: 3000 * ms}
	down := spell{from: 1000 * ms, to: 3000 * ms, downFrom: 1500 * ms, downTo: 1600 * ms}
	for _, tt := range []struct {
		name  string
		spell spell
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
		n, lost := (&stream{sent: sent, received: without(tt.lost...)}).losses(tt.spell)
		if n != 76 || lost != tt.want {
			t.Errorf("%s: %d of %d lost, want %d of 76", tt.name, lost, n, tt.want)
		}
	}
}

func TestPercentile(t *testing.T) {
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(100-i))
	}
	for _, tt := range []struct {
		all  []time.Duration
		q    float64
		want time.Duration
	}{
		{nil, 0.5, 0}, {[]time.Duration{7}, 0.99, 7}, {hundred, 0.5, 50}, {hundred, 0.99, 99}, {hundred, 1, 100},
		{[]time.Duration{1, 2, 3}, 0.5, 2}, {[]time.Duration{1, 2, 3}, 0.99, 3},
	} {
		if got := percentile(tt.all, tt.q); got != tt.want {
			t.Errorf("%v of %d: %d, want %d", tt.q, len(tt.all), got, tt.want)
		}
	}
}

// TestVerdicts checks that each requirement can fail, and the line that is printed.
func TestVerdicts(t *testing.T) {
	w := spell{from: 1000 * ms, to: 3000 * ms, downFrom: 1000 * ms, downTo: 1100 * ms}
	whole := &stream{sent: every(0, 3000, 0), received: every(1, 3020, 0)}
	holed := &stream{sent: every(0, 3000, 0), received: append(every(1, 1000, 0), every(1301, 3020, 65)...)}
	make2 := func(name string) *verdict {
		return judge("restart", w, []call{{up: whole, down: whole}, {name: name, up: whole, down: holed}})
	}
	for _, tt := range []struct {
		name string
		v    *verdict
		want string // part of the problem; "" for none
	}{
		{"within", make2("").within(200 * time.Millisecond), ""},
		{"not within", make2("").within(199 * time.Millisecond), "at most 300.0 ms, want 299.0"},
		{"not within, the browser", make2("firefox").within(0), "firefox had a gap"},
		{"beyond", make2("").beyond(199 * time.Millisecond), ""},
		{"not beyond", make2("").beyond(200 * time.Millisecond), "shows nothing"},
		{"lossy", make2("").lossy(), ""},
		{"not lossless", make2("").lossless(), "9 of 304 packets were lost"},
		{"lossless", judge("x", w, []call{{up: whole}}).lossless(), ""},
		{"not lossy", judge("x", w, []call{{up: whole}}).lossy(), "shows nothing"},
		{"no calls", judge("x", w, nil).within(time.Second), "no calls"},
	} {
		got := strings.Join(tt.v.problems, "\n")
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: problems %q, want %q", tt.name, got, tt.want)
		}
	}
	const line = "drill restart gap_ms 0 300 300 lost 9 (up 0 down 300 calls 2 sent 304; outage_ms 100; firefox 300)"
	if got := make2("firefox").String(); got != line {
		t.Errorf("got  %s\nwant %s", got, line)
	}
}
