package main

import (
	"time"

	"github.com/usher-rtc/usher/internal/bench/gaps"
	"github.com/usher-rtc/usher/internal/bench/stats"
)

// border is how much longer than nothing was there packets may be lost: those
// that were between two hosts, or in the dead one's sockets.
const border = backbone + 15*time.Millisecond

// verdict is what the calls noticed of an event. Its problems are bounds that were
// not kept.
type verdict struct {
	gaps.Verdict
	noise  time.Duration      // that bounds are wider by
	groups [2][]time.Duration // the gaps of near and of far calls
	silent int                // calls that were at the end of the spell
}

// add takes one more call.
func (v *verdict) add(far bool, up, down gaps.Stream) {
	longest := time.Duration(0)
	silent := false
	for _, s := range []gaps.Stream{up, down} {
		_, lost := s.Losses(v.Spell, border)
		v.Lost += lost
		silent = silent || s.Silent(v.Spell)
		// Of the receiver alone: the noise stands for senders that were held up.
		longest = max(longest, gaps.Stream{Received: s.Received}.Gap(v.Spell))
	}
	v.Gaps = append(v.Gaps, longest)
	i := 0
	if far {
		i = 1
	}
	v.groups[i] = append(v.groups[i], longest)
	if silent {
		v.silent++
	}
}

// within requires that 99 % of the gaps of near calls are no longer than the bound,
// beyond the time in which nothing was there, and those of far calls no longer than
// that and so many round trips between the regions.
func (v *verdict) within(bound time.Duration, trips int) {
	for i, limit := range []time.Duration{0, time.Duration(2*trips) * backbone} {
		limit += v.Spell.Outage() + bound + v.noise
		p := stats.Quantile(v.groups[i], 0.99)
		v.Note("%s %.0f goal %.0f", nearOrFar(i == 1), stats.Millis(p), stats.Millis(limit))
		if p > limit {
			v.Fail("%s: 99 %% of the gaps of %s calls are at most %.1f ms, want %.1f", v.Name, nearOrFar(i == 1), stats.Millis(p), stats.Millis(limit))
		}
	}
}

// lossless requires that every packet arrived that something could forward.
func (v *verdict) lossless() {
	if v.Lost > 0 {
		v.Fail("%s: %d packets were lost", v.Name, v.Lost)
	}
}

func nearOrFar(far bool) string {
	if far {
		return "far"
	}
	return "near"
}
