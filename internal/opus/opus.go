package opus

import "time"

// Rate is the clock of Opus in RTP, in ticks a second, whatever the sound's
// own sample rate is (RFC 7587 section 4.1).
const Rate = 48000

const (
	// MaxDuration is the longest packet that there may be (RFC 6716 section 3.2.5).
	MaxDuration = 120 * time.Millisecond
	// MaxFrame is the longest single frame, in bytes (RFC 6716 section 3.2.1).
	MaxFrame = 1275
)

// frameTicks are the lengths of one frame in ticks of Rate, by the
// configuration in the first five bits (RFC 6716, table 2).
var frameTicks = [32]uint16{
	480, 960, 1920, 2880, 480, 960, 1920, 2880, 480, 960, 1920, 2880, // SILK
	480, 960, 480, 960, // hybrid
	120, 240, 480, 960, 120, 240, 480, 960, 120, 240, 480, 960, 120, 240, 480, 960, // CELT
}

// Ticks returns the length of a packet in ticks of Rate, and false for bytes
// that cannot be an Opus packet: none at all, no frame, or more than 120 ms.
func Ticks(packet []byte) (ticks uint32, ok bool) {
	if len(packet) == 0 {
		return 0, false
	}
	frames := uint32(1)
	switch packet[0] & 3 {
	case 1, 2:
		frames = 2
	case 3:
		if len(packet) < 2 {
			return 0, false
		}
		frames = uint32(packet[1] & 0x3f)
	}
	ticks = frames * uint32(frameTicks[packet[0]>>3])
	return ticks, ticks != 0 && ticks <= Rate/1000*120
}

// Duration is Ticks as a time.
func Duration(packet []byte) (d time.Duration, ok bool) {
	ticks, ok := Ticks(packet)
	return Time(int64(ticks)), ok
}

// Time is how long that many ticks of Rate are.
func Time(ticks int64) time.Duration {
	return time.Duration(ticks) * (time.Second / 1000) / (Rate / 1000)
}

// IsDTX reports whether a packet is what an encoder makes while there is
// nothing to say: a table of contents and no sound. Such a packet need not be
// sent, except for the first one.
func IsDTX(packet []byte) bool { return len(packet) > 0 && len(packet) <= 2 }

// silence is a frame of digital silence in CELT, full band, mono, 20 ms. It
// brings a decoder of any state to rest.
var silence = [...]byte{0xf8, 0xff, 0xfe}

// SilenceDuration is the length of what Silence returns.
const SilenceDuration = 20 * time.Millisecond

// Silence returns a packet of silence. It must not be changed.
func Silence() []byte { return silence[:] }
