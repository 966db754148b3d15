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
	// downFrom and downTo bound the time in which no process could have forwarded
	// packets: what was sent then must be lost. Both are zero if there was none.
	downFrom, downTo int64
}

// outage is how long nothing could have been forwarded.
func (s spell) outage() time.Duration { return time.Duration(s.downTo - s.downFrom) }

// stream is the audio of one call in one direction.
type stream struct {
	sent, received []meter.Event
}

// gap is the longest silence at the receiver beyond the spacing of the packets:
// 20 ms, or more where the sender itself, on a busy machine, left more time
// between two. The silence around the beginning of the spell counts from the last
// packet before it, and one that has not ended counts to the end of the spell.
func (s *stream) gap(w spell) time.Duration {
	last := w.from
	for _, e := range s.received {
		if e.At >= w.from {
			break
		}
		last = e.At
	}
	longest := int64(0)
	silence := func(from, to int64) {
		if to-from-int64(meter.Interval) > longest {
			longest = max(longest, to-from-s.spacing(from, to))
		}
	}
	for _, e := range s.received {
		if e.At > w.to {
			break
		}
		silence(last, e.At) // negative before the spell
		last = max(last, e.At)
	}
	silence(last, w.to)
	return time.Duration(longest)
}

// spacing is the longest time between two packets of the sender's in a time, of
// which the first may have left before it: it was received at its beginning.
func (s *stream) spacing(from, to int64) int64 {
	longest, last := int64(meter.Interval), int64(0)
	for _, e := range s.sent {
		if e.At > to {
			break
		}
		if e.At > from && last != 0 {
			longest = max(longest, e.At-max(last, from-int64(meter.Interval)))
		}
		last = e.At
	}
	return longest
}

const (
	// straggle is how long before the end of a spell a packet must have been sent
	// for its absence to be a loss.
	straggle = 500 * time.Millisecond
	// border is how far outside of an outage a packet may have been sent and still
	// have met it: it was in a socket of the dead process, or between two.
	border = 5 * time.Millisecond
)

// losses returns how many packets were sent in the spell, and how many of them
// never arrived although something was there to forward them.
func (s *stream) losses(w spell) (sent, lost int) {
	arrived := make(map[uint32]bool, len(s.received))
	for _, e := range s.received {
		arrived[e.Seq] = true
	}
	for _, e := range s.sent {
		if e.At < w.from || e.At > w.to-int64(straggle) {
			continue
		}
		sent++
		excused := w.downTo != 0 && e.At >= w.downFrom-int64(border) && e.At <= w.downTo+int64(border)
		if !arrived[e.Seq] && !excused {
			lost++
		}
	}
	return sent, lost
}

// call is what is known about one call: the streams that were meant to flow.
type call struct {
	name     string
	up, down *stream // nil if that direction was silent on purpose
}

// verdict is the outcome of a drill.
type verdict struct {
	name       string
	spell      spell
	calls      []call
	gaps       []time.Duration // of each call, the longer one of its directions, as in calls
	sent, lost int
	notes      []string
	problems   []string
	late       int // of the problems: gaps that were longer than wanted
}

func judge(name string, w spell, calls []call) *verdict {
	v := &verdict{name: name, spell: w, calls: calls}
	up, down := time.Duration(0), time.Duration(0)
	for _, c := range calls {
		longest := time.Duration(0)
		for _, s := range []*stream{c.up, c.down} {
			if s == nil {
				continue
			}
			g := s.gap(w)
			longest = max(longest, g)
			if s == c.up {
				up = max(up, g)
			} else {
				down = max(down, g)
			}
			sent, lost := s.losses(w)
			v.sent += sent
			v.lost += lost
		}
		v.gaps = append(v.gaps, longest)
	}
	v.note("up %.0f down %.0f calls %d sent %d", millis(up), millis(down), len(calls), v.sent)
	if w.downTo != 0 {
		v.note("outage_ms %.0f", millis(w.outage()))
	}
	for i, c := range calls {
		if c.name != "" {
			v.note("%s %.0f", c.name, millis(v.gaps[i]))
		}
	}
	return v
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// percentile returns the smallest of some durations that q of them do not exceed.
func percentile(all []time.Duration, q float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	i := int(q*float64(len(sorted))+0.9999999) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

func (v *verdict) p99() time.Duration { return percentile(v.gaps, 0.99) }

// String is the drill's line.
func (v *verdict) String() string {
	return fmt.Sprintf("drill %s gap_ms %.0f %.0f %.0f lost %d (%s)", v.name, millis(percentile(v.gaps, 0.5)),
		millis(v.p99()), millis(percentile(v.gaps, 1)), v.lost, strings.Join(v.notes, "; "))
}

func (v *verdict) note(format string, args ...any) {
	v.notes = append(v.notes, fmt.Sprintf(format, args...))
}

func (v *verdict) fail(format string, args ...any) {
	v.problems = append(v.problems, fmt.Sprintf(format, args...))
}

// slow notes a gap that is longer than wanted.
func (v *verdict) slow(format string, args ...any) {
	v.late++
	v.fail(format, args...)
}

// within requires gaps of at most the bound beyond the outage: of 99 % of all
// calls, and of every browser.
func (v *verdict) within(bound time.Duration) *verdict {
	limit := v.spell.outage() + bound
	v.note("goal %.0f", millis(limit))
	if len(v.gaps) == 0 {
		v.fail("no calls")
	}
	if p := v.p99(); p > limit {
		v.slow("99 %% of the gaps are at most %.1f ms, want %.1f", millis(p), millis(limit))
	}
	for i, c := range v.calls {
		if c.name != "" && v.gaps[i] > limit {
			v.slow("%s had a gap of %.1f ms, want at most %.1f", c.name, millis(v.gaps[i]), millis(limit))
		}
	}
	return v
}

// beyond requires that the bound does not hold: the mechanism that keeps it is
// off. If it did hold, the drill would show nothing about the mechanism.
func (v *verdict) beyond(bound time.Duration) *verdict {
	limit := v.spell.outage() + bound
	v.note("off: more than %.0f", millis(limit))
	if p := v.p99(); p <= limit {
		v.fail("with the mechanism off, 99 %% of the gaps are at most %.1f ms; the bound of %.1f shows nothing", millis(p), millis(limit))
	}
	return v
}

// lossless requires that every packet arrived that was not bound to be lost.
func (v *verdict) lossless() *verdict {
	if v.lost > 0 {
		v.fail("%d of %d packets were lost", v.lost, v.sent)
	}
	return v
}

// lossy requires that packets were lost, because the mechanism is off.
func (v *verdict) lossy() *verdict {
	v.note("off: some must be lost")
	if v.lost == 0 {
		v.fail("with the mechanism off, no packet of %d was lost; a loss of none shows nothing", v.sent)
	}
	return v
}
