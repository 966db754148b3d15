package main

import (
	"time"

	"github.com/usher-rtc/usher/internal/bench/gaps"
	"github.com/usher-rtc/usher/internal/bench/stats"
)

// border is how far outside of an outage a packet may have been sent and still
// have met it: it was in a socket of the dead process, or between two.
const border = 5 * time.Millisecond

// call is what is known about one call: the streams that were meant to flow.
type call struct {
	name     string
	up, down *gaps.Stream // nil if that direction was silent on purpose
}

// verdict is the outcome of a drill.
type verdict struct {
	gaps.Verdict        // its Gaps are in the order of calls
	calls        []call // those that are judged
	sent         int
	late         int // of the problems: gaps that were longer than wanted
}

func judge(name string, w gaps.Spell, calls []call) *verdict {
	v := &verdict{Verdict: gaps.Verdict{Name: name, Spell: w}, calls: calls}
	up, down := time.Duration(0), time.Duration(0)
	for _, c := range calls {
		longest := time.Duration(0)
		for _, s := range []*gaps.Stream{c.up, c.down} {
			if s == nil {
				continue
			}
			g := s.Gap(w)
			longest = max(longest, g)
			if s == c.up {
				up = max(up, g)
			} else {
				down = max(down, g)
			}
			sent, lost := s.Losses(w, border)
			v.sent += sent
			v.Lost += lost
		}
		v.Gaps = append(v.Gaps, longest)
	}
	v.Note("up %.0f down %.0f calls %d sent %d", stats.Millis(up), stats.Millis(down), len(calls), v.sent)
	if w.DownTo != 0 {
		v.Note("outage_ms %.0f", stats.Millis(w.Outage()))
	}
	for i, c := range calls {
		if c.name != "" {
			v.Note("%s %.0f", c.name, stats.Millis(v.Gaps[i]))
		}
	}
	return v
}

func (v *verdict) p99() time.Duration { return stats.Quantile(v.Gaps, 0.99) }

// slow notes a gap that is longer than wanted.
func (v *verdict) slow(format string, args ...any) {
	v.late++
	v.Fail(format, args...)
}

// within requires gaps of at most the bound beyond the outage: of 99 % of all
// calls, and of every browser.
func (v *verdict) within(bound time.Duration) *verdict {
	limit := v.Spell.Outage() + bound
	v.Note("goal %.0f", stats.Millis(limit))
	if len(v.Gaps) == 0 {
		v.Fail("no calls")
	}
	if p := v.p99(); p > limit {
		v.slow("99 %% of the gaps are at most %.1f ms, want %.1f", stats.Millis(p), stats.Millis(limit))
	}
	for i, c := range v.calls {
		if c.name != "" && v.Gaps[i] > limit {
			v.slow("%s had a gap of %.1f ms, want at most %.1f", c.name, stats.Millis(v.Gaps[i]), stats.Millis(limit))
		}
	}
	return v
}

// beyond requires that the bound does not hold: the mechanism that keeps it is
// off. If it did hold, the drill would show nothing about the mechanism.
func (v *verdict) beyond(bound time.Duration) *verdict {
	limit := v.Spell.Outage() + bound
	v.Note("off: more than %.0f", stats.Millis(limit))
	if p := v.p99(); p <= limit {
		v.Fail("with the mechanism off, 99 %% of the gaps are at most %.1f ms; the bound of %.1f shows nothing", stats.Millis(p), stats.Millis(limit))
	}
	return v
}

// lossless requires that every packet arrived that was not bound to be lost.
func (v *verdict) lossless() *verdict {
	if v.Lost > 0 {
		v.Fail("%d of %d packets were lost", v.Lost, v.sent)
	}
	return v
}

// lossy requires that packets were lost, because the mechanism is off.
func (v *verdict) lossy() *verdict {
	v.Note("off: some must be lost")
	if v.Lost == 0 {
		v.Fail("with the mechanism off, no packet of %d was lost; a loss of none shows nothing", v.sent)
	}
	return v
}
