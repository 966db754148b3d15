package main

import (
	"slices"
	"time"
)

// What counts as speech. Loudness is in dBFS: 0 is a square wave of full scale,
// a voice at a desk has about -30, its room -60 to -70.
const (
	// quiet is never speech, whatever the room, and silent is what total
	// silence counts as.
	quiet, silent = -50.0, -75.0
	// above is how far over the noise floor speech begins. It ends at less, by
	// hysteresis.
	above, hysteresis = 12.0, 4.0
	// overAnswer comes on top while the agent speaks: what echo cancellation
	// leaves of its own voice must not interrupt it.
	overAnswer = 6.0

	// onset is how long somebody has to speak until it is a turn, which a click
	// is not, and bargeIn until it is one while the agent speaks.
	onset, bargeIn = 80 * time.Millisecond, 200 * time.Millisecond
	// hangOver is the silence that ends a turn: longer than the pauses within a
	// sentence, and all of it is delay.
	hangOver = 600 * time.Millisecond
	// floorWindow is how far back the noise floor looks. Nobody speaks for as
	// long without a pause, so its quietest moment is the room. A fan that
	// starts to blow is taken for speech for as long and no longer.
	floorWindow = 4 * time.Second
	// floorGrain is what a moment is.
	floorGrain = 60 * time.Millisecond
)

type turnEvent int

const (
	nothing turnEvent = iota
	turnStarted
	turnEnded
)

// turns finds where the user's turns begin and end, from nothing but loudness.
// It has no clock: time is what the sound lasts.
type turns struct {
	floor    floor
	speaking bool          // the newest piece is speech
	active   bool          // a turn goes on
	speech   time.Duration // in it, or in what may become one
	silence  time.Duration // since then

	said, pause time.Duration // what speech and silence were when the last turn ended
}

// push takes the next piece of sound. answering says that the agent speaks.
func (t *turns) push(loudness float64, d time.Duration, answering bool) turnEvent {
	loudness = max(loudness, silent)
	threshold := max(t.floor.push(loudness, d)+above, quiet)
	begins := onset
	switch {
	case t.active:
		threshold -= hysteresis
	case answering:
		threshold += overAnswer
		begins = bargeIn
	}
	if t.speaking = loudness > threshold; t.speaking {
		t.speech += d
		t.silence = 0
	} else {
		t.silence += d
	}
	switch {
	case t.active && t.silence >= hangOver:
		t.end()
		return turnEnded
	case !t.active && t.speaking && t.speech >= begins:
		t.active = true
		return turnStarted
	case !t.active && t.silence >= onset: // it did not become one
		t.speech = 0
	}
	return nothing
}

// end makes whatever comes next another turn.
func (t *turns) end() {
	t.said, t.pause = 0, 0
	if t.active {
		t.said, t.pause = t.speech, t.silence
	}
	t.active, t.speech, t.silence = false, 0, 0
}

// floor is how loud the room is: the least of the last floorWindow.
type floor struct {
	parts [8]float64 // of the window, each part's least; silence is 0
	now   int        // the part that is being filled
	age   time.Duration
	mean  float64 // over about floorGrain
}

// push takes the next piece of sound and returns the floor. It begins with
// silence, so the first words are heard although nothing is known of the room.
func (f *floor) push(loudness float64, d time.Duration) float64 {
	f.mean += (loudness - silent - f.mean) * min(1, float64(d)/float64(floorGrain))
	f.parts[f.now] = min(f.parts[f.now], f.mean)
	if f.age += d; f.age >= floorWindow/time.Duration(len(f.parts)) {
		f.age, f.now = 0, (f.now+1)%len(f.parts)
		f.parts[f.now] = f.mean
	}
	return silent + slices.Min(f.parts[:])
}
