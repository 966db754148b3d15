package standin

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/usher-rtc/usher/examples/pcm"
)

const (
	frame     = 20 * time.Millisecond
	frameSize = 2 * rate / 50
	// loud is what a frame that counts as speech has, in dBFS.
	loud = -35
	// onset is how much speech makes a turn; a click is shorter.
	onset = 60 * time.Millisecond
	// leadIn is kept from before a turn was noticed, so that no word is cut.
	leadIn = 200 * time.Millisecond
	// longestTurn bounds what is kept of one.
	longestTurn = 30 * time.Second
)

type turn int

const (
	nothing turn = iota
	started
	stopped
)

// hearing finds turns in a stream of PCM. Its clock is the stream.
type hearing struct {
	pause time.Duration // what ends a turn

	rest     []byte // less than a frame
	heard    time.Duration
	speaking bool
	speech   time.Duration // in a row, before a turn
	silence  time.Duration // in a row, in a turn
	sound    []byte        // of the turn, or what may become a part of one
}

// next takes one frame out of what has come, and tells what it changed. ok is
// false when there is no whole frame.
func (h *hearing) next() (change turn, ok bool) {
	if len(h.rest) < frameSize {
		return nothing, false
	}
	h.sound = append(h.sound, h.rest[:frameSize]...)
	isLoud := pcm.Loudness(h.rest[:frameSize]) >= loud
	h.rest = append(h.rest[:0], h.rest[frameSize:]...)
	h.heard += frame
	switch {
	case !h.speaking && isLoud:
		if h.speech += frame; h.speech >= onset {
			h.speaking, h.silence = true, 0
			change = started
		}
	case !h.speaking:
		h.speech = 0
	case isLoud:
		h.silence = 0
	default:
		if h.silence += frame; h.silence >= h.pause {
			h.speaking, h.speech = false, 0
			change = stopped
		}
	}
	most := longestTurn
	if !h.speaking && change != stopped {
		most = leadIn + onset
	}
	if over := len(h.sound) - int(most.Milliseconds())*bytesPerMS; over > 0 {
		h.sound = append(h.sound[:0], h.sound[over:]...)
	}
	return change, true
}

// take returns the sound of the turn that has ended, without the pause, and
// forgets it.
func (h *hearing) take() []byte {
	end := max(0, len(h.sound)-int(h.silence.Milliseconds())*bytesPerMS)
	sound := append([]byte(nil), h.sound[:end]...)
	h.clear()
	return sound
}

// clear forgets what was heard.
func (h *hearing) clear() {
	h.sound, h.speaking, h.speech, h.silence = h.sound[:0], false, 0, 0
}

// tone is a soft sound whose loudness rises and falls.
func tone(d time.Duration) []byte {
	sound := make([]byte, int(d.Milliseconds())*bytesPerMS)
	for i := range len(sound) / 2 {
		at := float64(i) / rate
		v := 6000 * (1 + 0.5*math.Sin(2*math.Pi*3*at)) * math.Sin(2*math.Pi*440*at)
		binary.LittleEndian.PutUint16(sound[2*i:], uint16(int16(v)))
	}
	return sound
}
