package bridge

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/usher-rtc/usher/transceiver"
)

// fakeCodec makes PCM of a packet by repeating its second byte, and a packet
// of PCM from its first sample.
type fakeCodec int

func (c fakeCodec) Rate() int                    { return int(c) }
func (c fakeCodec) NewDecoder() (Decoder, error) { return c, nil }
func (c fakeCodec) NewEncoder() (Encoder, error) { return c, nil }

func (c fakeCodec) Decode(dst, packet []byte) ([]byte, error) {
	if packet[1] == 0xee {
		return nil, errors.New("no Opus")
	}
	return append(dst, bytes.Repeat(packet[1:2], int(c)/50*2)...), nil
}

func (c fakeCodec) Conceal(dst, next []byte) ([]byte, error) {
	return append(dst, bytes.Repeat([]byte{0xcc}, int(c)/50*2)...), nil
}

func (c fakeCodec) Encode(dst, pcm []byte) ([]byte, error) {
	if len(pcm) != int(c)/50*2 {
		return nil, errors.New("not a frame")
	}
	return append(dst, 0x78, pcm[0], pcm[len(pcm)-1]), nil
}

func TestPCM(t *testing.T) {
	s := newScript(t)
	r := newRig(t, Config{Codecs: []Codec{fakeCodec(16000), fakeCodec(24000)}}, s.URL).begin()
	service, _ := s.ready(t, "pcm16/16000")
	say := func(n, lost int, b byte) {
		r.audio.in <- transceiver.Frame{
			Payload: []byte{0x78, b}, Time: time.Duration(n) * frameDuration, Duration: frameDuration, Lost: lost,
		}
	}
	say(0, 0, 7)
	say(3, 2, 8)    // two are made up
	say(4, 0, 0xee) // no Opus: as good as lost
	say(20, 15, 9)  // too many to be made up
	for _, want := range []Header{
		{Kind: KindAudio, Duration: frameDuration},
		{Kind: KindAudio, Duration: frameDuration, Flags: FlagConcealed, Time: frameDuration},
		{Kind: KindAudio, Duration: frameDuration, Flags: FlagConcealed, Time: 2 * frameDuration},
		{Kind: KindAudio, Duration: frameDuration, Time: 3 * frameDuration},
		{Kind: KindAudio, Duration: frameDuration, Flags: FlagConcealed, Time: 4 * frameDuration},
		{Kind: KindAudio, Duration: frameDuration, Lost: 15, Time: 20 * frameDuration},
	} {
		h, pcm := service.frame()
		if h != want || len(pcm) != 640 {
			t.Errorf("%+v with %d bytes, want %+v", h, len(pcm), want)
		}
	}
	// From the service, in pieces of any length; a mark fills the last one up.
	speech := make([]byte, 640*3+100)
	for i := range speech {
		speech[i] = byte(1 + i/640)
	}
	for rest, at := speech, 0; len(rest) > 0; {
		n := min(len(rest), 246)
		service.binary(Header{Kind: KindAudio, Time: pcmDuration(at, 16000)}, rest[:n])
		rest, at = rest[n:], at+n
	}
	service.say(mark{typeMark, 1})
	eventually(t, "four packets", func() bool { return len(r.audio.packets()) == 4 })
	for i, want := range [][]byte{{0x78, 1, 1}, {0x78, 2, 2}, {0x78, 3, 3}, {0x78, 4, 0}} {
		if got := r.audio.packets()[i]; !bytes.Equal(got, want) {
			t.Errorf("packet %d is % x, want % x", i, got, want)
		}
	}
	// What is not whole is dropped with the rest by an interruption.
	service.binary(Header{Kind: KindAudio}, speech[:100])
	service.say(interrupt{typeInterrupt, 1})
	service.binary(Header{Kind: KindAudio}, speech[640:1280])
	eventually(t, "a fifth packet", func() bool { return len(r.audio.packets()) == 5 })
	if got := r.audio.packets()[4]; !bytes.Equal(got, []byte{0x78, 2, 2}) {
		t.Errorf("% x", got)
	}
	service.binary(Header{Kind: KindAudio}, speech[:101])
	told := dropped{Type: typeDropped}
	service.text(&told)
	if told.Count != 1 || told.What != "audio" {
		t.Errorf("%+v", told)
	}
}

// TestFramerCutsAnywhere: whatever the pieces are, the frames are the same.
func FuzzFramerCutsAnywhere(f *testing.F) {
	f.Add([]byte{1, 200, 3}, uint16(700))
	f.Fuzz(func(t *testing.T, cuts []byte, total uint16) {
		pcm := make([]byte, int(total)*2)
		for i := range total {
			binary.LittleEndian.PutUint16(pcm[2*i:], i)
		}
		frame := newFrames(t)
		rest := pcm
		for _, c := range cuts {
			n := min(2*int(c), len(rest))
			frame.add(rest[:n])
			rest = rest[n:]
		}
		frame.add(rest)
		whole := len(pcm) / 640 * 640
		if got := bytes.Join(frame.got, nil); !bytes.Equal(got, pcm[:whole]) {
			t.Fatalf("%d bytes in frames, want %d", len(got), whole)
		}
		if err := frame.framer.flush(frame.emit); err != nil {
			t.Fatal(err)
		}
		want := append(pcm, make([]byte, (640-len(pcm)%640)%640)...)
		if got := bytes.Join(frame.got, nil); !bytes.Equal(got, want) {
			t.Fatalf("%d bytes after flush, want %d", len(got), len(want))
		}
	})
}

type frames struct {
	t      *testing.T
	framer *framer
	got    [][]byte
}

// plainCodec passes PCM through.
type plainCodec struct{ fakeCodec }

func (c plainCodec) NewEncoder() (Encoder, error)           { return c, nil }
func (c plainCodec) Encode(dst, pcm []byte) ([]byte, error) { return append(dst, pcm...), nil }

func newFrames(t *testing.T) *frames {
	f, err := newFramer(plainCodec{fakeCodec(16000)})
	if err != nil {
		t.Fatal(err)
	}
	return &frames{t: t, framer: f}
}

func (f *frames) emit(p []byte) error { f.got = append(f.got, append([]byte(nil), p...)); return nil }

func (f *frames) add(pcm []byte) {
	if err := f.framer.add(pcm, f.emit); err != nil {
		f.t.Fatal(err)
	}
}
