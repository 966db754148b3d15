package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/usher-rtc/usher/internal/meter"
)

// spell is the time of an event and what came after it, in times of meter.Now.
type spell struct {
	from, to int64
	// down is how long nothing was there to forward packets, from the beginning on.
	down time.Duration
}

// stream is the audio of one call in one direction.
type stream struct{ sent, received []meter.Event }

const (
	// late is how long before the end of a spell a packet must have been sent for
	// its absence to be a loss.
	late = 500 * time.Millisecond
	// border is how much longer than nothing was there packets may be lost: those
	// that were between two hosts, or in the dead one's sockets.
	border = backbone + 15*time.Millisecond
)

// gap is the longest silence at the receiver in the spell beyond the time between
// two packets.
func (s stream) gap(w spell) time.Duration {
	last, longest := w.from, int64(0)
	for _, e := range s.received {
		if e.At > w.to {
			break
		}
		if e.At >= w.from {
			longest = max(longest, e.At-last)
		}
		last = e.At
	}
	longest = max(longest, w.to-max(last, w.from))
	return max(0, time.Duration(longest)-meter.Interval)
}

// silent reports whether nothing arrived towards the end of the spell.
func (s stream) silent(w spell) bool {
	return !slices.ContainsFunc(s.received, func(e meter.Event) bool { return e.At >= w.to-int64(late) })
}

// lost returns how many of the packets that were sent in the spell never arrived
// although something was there to forward them.
func (s stream) lost(w spell) (n int) {
	arrived := make(map[uint32]bool, len(s.received))
	for _, e := range s.received {
		arrived[e.Seq] = true
	}
	from := w.from
	if w.down > 0 {
		from += int64(w.down + border)
	}
	for _, e := range s.sent {
		if e.At >= from && e.At <= w.to-int64(late) && !arrived[e.Seq] {
			n++
		}
	}
	return n
}

// delay returns the median time that packets took.
func (s stream) delay() time.Duration {
	sent := make(map[uint32]int64, len(s.sent))
	for _, e := range s.sent {
		sent[e.Seq] = e.At
	}
	var all []time.Duration
	for _, e := range s.received {
		if at, ok := sent[e.Seq]; ok {
			all = append(all, time.Duration(e.At-at))
		}
	}
	return percentile(all, 0.5)
}

// percentile returns the smallest of some durations that q of them do not exceed,
// and 0 of none.
func percentile(all []time.Duration, q float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[max(int(q*float64(len(sorted))+0.9999999)-1, 0)]
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// verdict is what the calls noticed of an event.
type verdict struct {
	name   string
	spell  spell
	noise  time.Duration      // that bounds are wider by
	gaps   [2][]time.Duration // of near and of far calls, the longer one of the directions
	silent int                // calls that were at the end of the spell
	lost   int
	notes  []string
	slow   []string // bounds that were not kept
}

// add takes one more call.
func (v *verdict) add(far bool, up, down stream) {
	i := 0
	if far {
		i = 1
	}
	v.gaps[i] = append(v.gaps[i], max(up.gap(v.spell), down.gap(v.spell)))
	v.lost += up.lost(v.spell) + down.lost(v.spell)
	if up.silent(v.spell) || down.silent(v.spell) {
		v.silent++
	}
}

// within requires that 99 % of the gaps of near calls are no longer than the bound,
// beyond the time in which nothing was there, and those of far calls no longer than
// that and so many round trips between the regions.
func (v *verdict) within(bound time.Duration, trips int) {
	for i, limit := range []time.Duration{0, time.Duration(2*trips) * backbone} {
		limit += v.spell.down + bound + v.noise
		p := percentile(v.gaps[i], 0.99)
		v.note("%s %.0f goal %.0f", nearOrFar(i == 1), millis(p), millis(limit))
		if p > limit {
			v.slow = append(v.slow, fmt.Sprintf("%s: 99 %% of the gaps of %s calls are at most %.1f ms, want %.1f", v.name, nearOrFar(i == 1), millis(p), millis(limit)))
		}
	}
}

// lossless requires that every packet arrived that something could forward.
func (v *verdict) lossless() {
	if v.lost > 0 {
		v.slow = append(v.slow, fmt.Sprintf("%s: %d packets were lost", v.name, v.lost))
	}
}

func (v *verdict) note(format string, args ...any) {
	v.notes = append(v.notes, fmt.Sprintf(format, args...))
}

// all are the gaps of all calls.
func (v *verdict) all() []time.Duration { return slices.Concat(v.gaps[0], v.gaps[1]) }

// String is the line of the verdict, as that of a drill.
func (v *verdict) String() string {
	all := v.all()
	return fmt.Sprintf("drill %s gap_ms %.0f %.0f %.0f lost %d (%s)", v.name, millis(percentile(all, 0.5)),
		millis(percentile(all, 0.99)), millis(percentile(all, 1)), v.lost, strings.Join(v.notes, "; "))
}

func nearOrFar(far bool) string {
	if far {
		return "far"
	}
	return "near"
}
