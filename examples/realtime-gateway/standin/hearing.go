package standin

import (
	"encoding/binary"
	"math"
	"time"
)

const (
	frame     = 20 * time.Millisecond
	frameSize = 2 * rate / 50
	// loud is the root mean square of a frame that counts as speech, of 32,768.
	loud = 600
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
	pcm := h.rest[:frameSize]
	h.sound = append(h.sound, pcm...)
	isLoud := rms(pcm) >= loud
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

func rms(pcm []byte) float64 {
	sum := 0.0
	for i := 0; i+1 < len(pcm); i += 2 {
		v := float64(int16(binary.LittleEndian.Uint16(pcm[i:])))
		sum += v * v
	}
	return math.Sqrt(sum / float64(len(pcm)/2))
}

// tone is a soft sound whose loudness rises and falls.
func tone(d time.Duration) []byte {
	pcm := make([]byte, int(d.Milliseconds())*bytesPerMS)
	for i := range len(pcm) / 2 {
		at := float64(i) / rate
		v := 6000 * (1 + 0.5*math.Sin(2*math.Pi*3*at)) * math.Sin(2*math.Pi*440*at)
		binary.LittleEndian.PutUint16(pcm[2*i:], uint16(int16(v)))
	}
	return pcm
}
