package pcm

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/usher-rtc/usher/transceiver/bridge"
)

const frames = 50

// tone makes a second of a sine in frames of 20 ms.
func tone(c Codec, hertz float64) (out [][]byte) {
	for f := range frames {
		var b []byte
		for i := range c.Frame() {
			at := float64(f*c.Frame()+i) / float64(c)
			b = binary.LittleEndian.AppendUint16(b, uint16(int16(8000*math.Sin(2*math.Pi*hertz*at))))
		}
		out = append(out, b)
	}
	return out
}

// power is how strong a frequency is in PCM, relative to all of it: the
// Goertzel algorithm.
func power(c Codec, pcm []byte, hertz float64) (part, rms float64) {
	w := 2 * math.Cos(2*math.Pi*hertz/float64(c))
	var s1, s2, total float64
	n := len(pcm) / 2
	for i := range n {
		x := float64(int16(binary.LittleEndian.Uint16(pcm[2*i:])))
		total += x * x
		s1, s2 = x+w*s1-s2, s1
	}
	// A pure tone of n samples has n/2 times its energy in its own bin.
	return (s1*s1 + s2*s2 - w*s1*s2) / (total * float64(n) / 2), math.Sqrt(total / float64(n))
}

func encodeAll(t testing.TB, e bridge.Encoder, pcm [][]byte) (packets [][]byte) {
	t.Helper()
	for _, frame := range pcm {
		p, err := e.Encode(nil, frame)
		if err != nil {
			t.Fatal(err)
		}
		packets = append(packets, p)
	}
	return packets
}

// TestTone: what is encoded and decoded is the same tone, as loud as it was.
func TestTone(t *testing.T) {
	for _, c := range []Codec{Rate16k, Rate24k} {
		for _, lose := range []int{0, 10} { // every tenth packet is concealed
			e, err := c.NewEncoder()
			if err != nil {
				t.Fatal(err)
			}
			d, err := c.NewDecoder()
			if err != nil {
				t.Fatal(err)
			}
			in := tone(c, 440)
			var out []byte
			for i, p := range encodeAll(t, e, in) {
				before := len(out)
				if lose != 0 && i%lose == lose-1 {
					out, err = d.Conceal(out, nil)
				} else {
					out, err = d.Decode(out, p)
				}
				if err != nil {
					t.Fatal(err)
				}
				if got := len(out) - before; got != 2*c.Frame() {
					t.Fatalf("%d: packet %d holds %d bytes, want %d", c, i, got, 2*c.Frame())
				}
			}
			out = out[len(out)/5:] // encoders need a moment
			part, rms := power(c, out, 440)
			other, _ := power(c, out, 660)
			want := 8000 / math.Sqrt2
			least := 0.95
			if lose != 0 {
				least = 0.6 // a guess is not in phase
			}
			if part < least || other > 0.05 || rms < 0.8*want || rms > 1.2*want {
				t.Errorf("%d, loss of 1 in %d: %.2f of the sound is 440 Hz, %.2f is 660 Hz, loudness %.0f of %.0f", c, lose, part, other, rms, want)
			}
		}
	}
}

// TestPacketsOfAnyLength: a client may send less or more than 20 ms at once.
func TestPacketsOfAnyLength(t *testing.T) {
	silence := map[int][]byte{ // RFC 6716 section 3.1: CELT full band mono
		5: {0xe8, 0xff, 0xfe}, 20: {0xf8, 0xff, 0xfe}, 40: {0xf9, 0xff, 0xfe, 0xff, 0xfe},
	}
	for _, c := range []Codec{Rate16k, Rate24k} {
		d, err := c.NewDecoder()
		if err != nil {
			t.Fatal(err)
		}
		for ms, p := range silence {
			if out, err := d.Decode(nil, p); err != nil || len(out) != int(c)/1000*ms*2 {
				t.Errorf("%d ms at %d: %d bytes, %v", ms, c, len(out), err)
			}
		}
	}
}

func TestBadInput(t *testing.T) {
	d, err := Rate16k.NewDecoder()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range [][]byte{nil, {}, {0x7b}, {0x7b, 0x3f, 1}} {
		if out, err := d.Decode(nil, p); err == nil {
			t.Errorf("% x decodes to %d bytes", p, len(out))
		}
	}
	e, err := Rate16k.NewEncoder()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Encode(nil, make([]byte, 639)); err == nil {
		t.Error("half a sample encodes")
	}
	if _, err := Codec(44100).NewEncoder(); err == nil {
		t.Error("44.1 kHz is no rate of Opus")
	}
}

func BenchmarkEncode(b *testing.B) {
	for _, c := range []Codec{Rate16k, Rate24k} {
		b.Run(c.String(), func(b *testing.B) {
			e, err := c.NewEncoder()
			if err != nil {
				b.Fatal(err)
			}
			in := tone(c, 440)
			var dst []byte
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if dst, err = e.Encode(dst[:0], in[i%frames]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, c := range []Codec{Rate16k, Rate24k} {
		b.Run(c.String(), func(b *testing.B) {
			e, err := c.NewEncoder()
			if err != nil {
				b.Fatal(err)
			}
			d, err := c.NewDecoder()
			if err != nil {
				b.Fatal(err)
			}
			packets := encodeAll(b, e, tone(c, 440))
			var dst []byte
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if dst, err = d.Decode(dst[:0], packets[i%frames]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
