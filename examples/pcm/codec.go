package pcm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	"github.com/thesyncim/gopus"

	"github.com/usher-rtc/usher/transceiver/bridge"
)

const (
	// bitrate is where wideband speech in Opus has no audible faults.
	bitrate = 32000
	// complexity trades CPU for quality, 0 to 10. The browsers' own default for
	// telephones is lower; beyond this one, speech gains nothing.
	complexity = 9
	// maxPacket is more than any packet at this bitrate.
	maxPacket       = 1275
	framesPerSecond = 50
	maxFrames       = 6 // of 20 ms, in the longest packet that there is
)

// Codec is a bridge.Codec for one sample rate, 16000 or 24000.
type Codec int

// The codecs, for bridge.Config.Codecs.
const (
	Rate16k Codec = 16000
	Rate24k Codec = 24000
)

// Both returns all codecs that there are.
func Both() []bridge.Codec { return []bridge.Codec{Rate16k, Rate24k} }

// String returns the name that a service asks for.
func (c Codec) String() string { return "pcm16/" + strconv.Itoa(int(c)) }

// Rate implements bridge.Codec.
func (c Codec) Rate() int { return int(c) }

// Frame is how many samples 20 ms have.
func (c Codec) Frame() int { return int(c) / framesPerSecond }

// NewDecoder implements bridge.Codec.
func (c Codec) NewDecoder() (bridge.Decoder, error) {
	d, err := gopus.NewDecoder(gopus.DefaultDecoderConfig(int(c), 1))
	if err != nil {
		return nil, fmt.Errorf("pcm: %w", err)
	}
	return &decoder{opus: d, frame: c.Frame(), samples: make([]int16, c.Frame()*maxFrames)}, nil
}

// NewEncoder implements bridge.Codec.
func (c Codec) NewEncoder() (bridge.Encoder, error) {
	e, err := gopus.NewEncoder(gopus.EncoderConfig{SampleRate: int(c), Channels: 1, Application: gopus.ApplicationVoIP})
	if err == nil {
		err = errors.Join(e.SetFrameSize(c.Frame()), e.SetBitrate(bitrate), e.SetComplexity(complexity))
	}
	if err != nil {
		return nil, fmt.Errorf("pcm: %w", err)
	}
	return &encoder{opus: e, samples: make([]int16, c.Frame()), packet: make([]byte, maxPacket)}, nil
}

type decoder struct {
	opus    *gopus.Decoder
	frame   int
	samples []int16
}

// Decode implements bridge.Decoder.
func (d *decoder) Decode(dst, packet []byte) ([]byte, error) {
	if len(packet) == 0 {
		return dst, errors.New("pcm: an empty packet")
	}
	n, err := d.opus.DecodeInt16(packet, d.samples)
	if err != nil {
		return dst, fmt.Errorf("pcm: %w", err)
	}
	return appendSamples(dst, d.samples[:n]), nil
}

// Conceal implements bridge.Decoder. A copy in the next packet is not used:
// browsers send none unless they see loss, and the decoder's own guess at 20 ms
// is good.
func (d *decoder) Conceal(dst, _ []byte) ([]byte, error) {
	n, err := d.opus.DecodeInt16(nil, d.samples[:d.frame])
	if err != nil {
		return dst, fmt.Errorf("pcm: %w", err)
	}
	return appendSamples(dst, d.samples[:n]), nil
}

func appendSamples(dst []byte, samples []int16) []byte {
	for _, s := range samples {
		dst = binary.LittleEndian.AppendUint16(dst, uint16(s))
	}
	return dst
}

type encoder struct {
	opus    *gopus.Encoder
	samples []int16
	packet  []byte
}

// Encode implements bridge.Encoder.
func (e *encoder) Encode(dst, pcm []byte) ([]byte, error) {
	if len(pcm) != 2*len(e.samples) {
		return dst, fmt.Errorf("pcm: %d bytes are not 20 ms", len(pcm))
	}
	for i := range e.samples {
		e.samples[i] = int16(binary.LittleEndian.Uint16(pcm[2*i:]))
	}
	n, err := e.opus.EncodeInt16(e.samples, e.packet)
	if err != nil {
		return dst, fmt.Errorf("pcm: %w", err)
	}
	return append(dst, e.packet[:n]...), nil
}
