package gaps

import (
	"slices"
	"time"

	"github.com/usher-rtc/usher/internal/bench/stats"
	"github.com/usher-rtc/usher/internal/meter"
)

// Spell is the time of an event and what came after it, in times of meter.Now.
type Spell struct {
	From, To int64
	// DownFrom and DownTo bound the time in which no process could have forwarded
	// packets: what was sent then must be lost. Both are zero if there was none.
	DownFrom, DownTo int64
}

// Outage is how long nothing could have been forwarded.
func (w Spell) Outage() time.Duration { return time.Duration(w.DownTo - w.DownFrom) }

// Stream is the audio of one call in one direction: what its sender and its
// receiver recorded, each in the order in which it happened.
type Stream struct{ Sent, Received []meter.Event }

// Gap is the longest silence at the receiver beyond the spacing of the packets:
// 20 ms, or more where the sender itself, on a busy machine, left more time
// between two; without a record of the sender's, 20 ms. The silence around the
// beginning of the spell counts from the last packet before it, and one that has
// not ended counts to the end of the spell.
func (s Stream) Gap(w Spell) time.Duration {
	last := w.From
	for _, e := range s.Received {
		if e.At >= w.From {
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
	for _, e := range s.Received {
		if e.At > w.To {
			break
		}
		silence(last, e.At) // negative before the spell
		last = max(last, e.At)
	}
	silence(last, w.To)
	return time.Duration(longest)
}

// spacing is the longest time between two packets of the sender's in a time, of
// which the first may have left before it: it was received at its beginning.
func (s Stream) spacing(from, to int64) int64 {
	longest, last := int64(meter.Interval), int64(0)
	for _, e := range s.Sent {
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

// Straggle is how long before the end of a spell a packet must have been sent for
// its absence to be a loss.
const Straggle = 500 * time.Millisecond

// Losses returns how many packets were sent in the spell, and how many of them
// never arrived although something was there to forward them. border is how far
// outside of an outage a packet may have been sent and still have met it: it was
// on its way, or in a socket of the dead process.
func (s Stream) Losses(w Spell, border time.Duration) (sent, lost int) {
	arrived := make(map[uint32]bool, len(s.Received))
	for _, e := range s.Received {
		arrived[e.Seq] = true
	}
	for _, e := range s.Sent {
		if e.At < w.From || e.At > w.To-int64(Straggle) {
			continue
		}
		sent++
		excused := w.DownTo != 0 && e.At >= w.DownFrom-int64(border) && e.At <= w.DownTo+int64(border)
		if !arrived[e.Seq] && !excused {
			lost++
		}
	}
	return sent, lost
}

// Silent reports whether nothing arrived towards the end of the spell.
func (s Stream) Silent(w Spell) bool {
	return !slices.ContainsFunc(s.Received, func(e meter.Event) bool { return e.At >= w.To-int64(Straggle) })
}

// Delay returns the median time that packets took; 0 if none arrived.
func (s Stream) Delay() time.Duration {
	sent := make(map[uint32]int64, len(s.Sent))
	for _, e := range s.Sent {
		sent[e.Seq] = e.At
	}
	var all []time.Duration
	for _, e := range s.Received {
		if at, ok := sent[e.Seq]; ok {
			all = append(all, time.Duration(e.At-at))
		}
	}
	return stats.Quantile(all, 0.5)
}
