package bridge

import (
	"encoding/binary"
	"time"
)

// Subprotocol is the WebSocket subprotocol (RFC 6455 section 1.9) that both
// sides name, and with it the version of everything in docs/bridge.md.
const Subprotocol = "usher.bridge.v1"

// Sizes on the wire, in bytes.
const (
	// HeaderLen is the length of the header before the payload of every binary
	// message.
	HeaderLen = 16
	// MaxPayload is the longest payload of a binary message.
	MaxPayload = 64 << 10
	// MaxMessage is the longest message of either kind.
	MaxMessage = HeaderLen + MaxPayload
)

// Kind says what a binary message carries.
type Kind uint8

// The kinds of binary messages. Others are ignored, so that a later version of
// one side may send them.
const (
	KindAudio       Kind = 1 // one Opus packet, or PCM
	KindEventText   Kind = 2 // a string on the client's data channel, UTF-8
	KindEventBinary Kind = 3 // binary data on the client's data channel
)

// Flags belong to audio for the service.
type Flags uint8

// The flags. All other bits are sent as 0 and ignored.
const (
	FlagLevel     Flags = 1 << iota // Header.Level means something
	FlagVoice                       // the client takes it for speech
	FlagConcealed                   // PCM made up by a decoder in place of a lost packet
)

// Header is what precedes the payload of a binary message.
type Header struct {
	Kind  Kind
	Flags Flags
	// Level is the loudness in -dBov (RFC 6464), 0 the loudest, 127 silence.
	Level uint8
	// Duration of the audio, for the service only; a multiple of 500 us, at
	// most 120 ms. 0 from the service.
	Duration time.Duration
	// Lost is how many packets are missing right before this one.
	Lost uint32
	// Time is when the audio begins in its sender's stream, and for an event
	// where the audio was when it came. Whole microseconds.
	Time time.Duration
}

// durationUnit is the resolution of Header.Duration on the wire: Opus has
// frames of 2.5 ms and packets of up to 120 ms.
const durationUnit = 500 * time.Microsecond

// Append appends the 16 bytes of a header.
func (h *Header) Append(dst []byte) []byte {
	dst = append(dst, byte(h.Kind), byte(h.Flags), h.Level, byte(min(h.Duration/durationUnit, 255)))
	dst = binary.BigEndian.AppendUint32(dst, h.Lost)
	return binary.BigEndian.AppendUint64(dst, uint64(h.Time/time.Microsecond))
}

// maxTime keeps a time from the wire in the range of a time.Duration.
const maxTime = uint64(1<<63-1) / 1000

// Parse takes a binary message apart. The payload is a part of the message. It
// reports false for a message that is too short or too long, and for a time
// beyond 292 years, which no sender has reached.
func (h *Header) Parse(message []byte) (payload []byte, ok bool) {
	if len(message) < HeaderLen || len(message) > MaxMessage {
		return nil, false
	}
	t := binary.BigEndian.Uint64(message[8:])
	if t > maxTime {
		return nil, false
	}
	*h = Header{
		Kind:     Kind(message[0]),
		Flags:    Flags(message[1]),
		Level:    message[2],
		Duration: time.Duration(message[3]) * durationUnit,
		Lost:     binary.BigEndian.Uint32(message[4:]),
		Time:     time.Duration(t) * time.Microsecond,
	}
	return message[HeaderLen:], true
}
