package bridge

import (
	"strconv"
	"time"
)

// Codec makes PCM of Opus and Opus of PCM for services that want it. The
// samples are signed, 16 bits, little endian, mono. This module has none of its
// own, so that it needs no C and no large dependency: see examples/pcm.
type Codec interface {
	// Rate is the sample rate, 16,000 or 24,000.
	Rate() int
	// NewDecoder makes a decoder for one session's microphone.
	NewDecoder() (Decoder, error)
	// NewEncoder makes an encoder for one session's loudspeaker.
	NewEncoder() (Encoder, error)
}

// Decoder turns Opus packets into PCM. It is used by one goroutine at a time.
type Decoder interface {
	// Decode appends the PCM of one Opus packet to dst.
	Decode(dst, packet []byte) ([]byte, error)
	// Conceal appends 20 ms in place of a packet that is missing before next,
	// which may hold a copy of it (in-band FEC). next is empty for all but the
	// last one of a gap.
	Conceal(dst, next []byte) ([]byte, error)
}

// Encoder turns PCM into Opus packets. It is used by one goroutine at a time.
type Encoder interface {
	// Encode appends one Opus packet to dst for exactly 20 ms of PCM.
	Encode(dst, pcm []byte) ([]byte, error)
}

const (
	frameDuration = 20 * time.Millisecond
	// maxConcealed is the longest gap that decoders fill, in packets of 20 ms.
	// What they make up beyond it sounds like nothing on earth; the time stamps
	// tell of the rest.
	maxConcealed = 5
	opusName     = "opus"
)

func pcmName(rate int) string { return "pcm16/" + strconv.Itoa(rate) }

// pcmRate reads the rate from a name like pcm16/24000.
func pcmRate(name string) (rate int, ok bool) {
	for _, rate := range []int{16000, 24000} {
		if name == pcmName(rate) {
			return rate, true
		}
	}
	return 0, false
}

// pcmDuration is how long that many bytes of PCM are.
func pcmDuration(bytes, rate int) time.Duration {
	return time.Duration(bytes/2) * time.Second / time.Duration(rate)
}

// framer cuts PCM of any length into frames and encodes them.
type framer struct {
	encoder Encoder
	size    int    // bytes of a frame
	rest    []byte // less than a frame
	packet  []byte // scratch
}

func newFramer(c Codec) (*framer, error) {
	encoder, err := c.NewEncoder()
	if err != nil {
		return nil, err
	}
	return &framer{encoder: encoder, size: c.Rate() / 50 * 2}, nil
}

// add encodes all whole frames that there are now.
func (f *framer) add(pcm []byte, emit func(packet []byte) error) error {
	for len(pcm) > 0 {
		var frame []byte
		if len(f.rest) > 0 || len(pcm) < f.size {
			take := min(f.size-len(f.rest), len(pcm))
			f.rest = append(f.rest, pcm[:take]...)
			pcm = pcm[take:]
			if len(f.rest) < f.size {
				return nil
			}
			frame = f.rest
			f.rest = f.rest[:0]
		} else {
			frame, pcm = pcm[:f.size], pcm[f.size:]
		}
		var err error
		if f.packet, err = f.encoder.Encode(f.packet[:0], frame); err != nil {
			return err
		}
		if err := emit(f.packet); err != nil {
			return err
		}
	}
	return nil
}

// flush fills a frame that is not whole up with silence.
func (f *framer) flush(emit func(packet []byte) error) error {
	if len(f.rest) == 0 {
		return nil
	}
	return f.add(make([]byte, f.size-len(f.rest)), emit)
}

// clear forgets a frame that is not whole.
func (f *framer) clear() { f.rest = f.rest[:0] }
