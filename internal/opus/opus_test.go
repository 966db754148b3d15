package opus

import (
	"fmt"
	"testing"
	"time"
)

func TestDurations(t *testing.T) {
	for _, c := range []struct {
		name   string
		packet []byte
		want   time.Duration // 0: no Opus packet
	}{
		{"SILK narrow band 10 ms", []byte{0 << 3, 1}, 10 * time.Millisecond},
		{"SILK narrow band 60 ms", []byte{3 << 3, 1}, 60 * time.Millisecond},
		{"SILK wide band 20 ms", []byte{9 << 3, 1}, 20 * time.Millisecond},
		{"hybrid 20 ms", []byte{13 << 3, 1}, 20 * time.Millisecond},
		{"hybrid full band 10 ms", []byte{14 << 3, 1}, 10 * time.Millisecond},
		{"CELT 2.5 ms", []byte{16 << 3, 1}, 2500 * time.Microsecond},
		{"CELT full band 20 ms stereo", []byte{31<<3 | 4, 1}, 20 * time.Millisecond},
		{"two equal frames", []byte{31<<3 | 1, 1}, 40 * time.Millisecond},
		{"two frames of their own lengths", []byte{31<<3 | 2, 1}, 40 * time.Millisecond},
		{"six frames", []byte{31<<3 | 3, 6, 1}, 120 * time.Millisecond},
		{"six frames with padding, VBR", []byte{31<<3 | 3, 0xc0 | 6, 1}, 120 * time.Millisecond},
		{"48 frames of 2.5 ms", []byte{16<<3 | 3, 48, 1}, 120 * time.Millisecond},
		{"a table of contents alone", []byte{31 << 3}, 20 * time.Millisecond},
		{"seven frames are too long", []byte{31<<3 | 3, 7, 1}, 0},
		{"no frame", []byte{31<<3 | 3, 0, 1}, 0},
		{"no frame count", []byte{31<<3 | 3}, 0},
		{"nothing", nil, 0},
	} {
		d, ok := Duration(c.packet)
		if ok != (c.want != 0) || ok && d != c.want {
			t.Errorf("%s: %v %v, want %v", c.name, d, ok, c.want)
		}
	}
}

func TestEveryConfigurationHasALength(t *testing.T) {
	for config := range 32 {
		d, ok := Duration([]byte{byte(config << 3), 1})
		if !ok || d < 2500*time.Microsecond || d > 60*time.Millisecond {
			t.Errorf("configuration %d: %v %v", config, d, ok)
		}
	}
}

func TestSilence(t *testing.T) {
	if d, ok := Duration(Silence()); !ok || d != SilenceDuration {
		t.Errorf("%v %v", d, ok)
	}
	if IsDTX(Silence()) {
		t.Error("silence is not what an encoder makes of it")
	}
	for _, c := range []struct {
		packet []byte
		want   bool
	}{{nil, false}, {[]byte{0x78}, true}, {[]byte{0x78, 0}, true}, {[]byte{0x78, 0, 0}, false}} {
		if got := IsDTX(c.packet); got != c.want {
			t.Errorf("IsDTX(%x): %v", c.packet, got)
		}
	}
}

// FuzzTicks compares with the text of RFC 6716 section 3.2, written as such.
func FuzzTicks(f *testing.F) {
	f.Add([]byte{0xf8, 0xff, 0xfe})
	f.Add([]byte{0xfb, 0x06})
	f.Fuzz(func(t *testing.T, b []byte) {
		ticks, ok := Ticks(b)
		if d := Time(int64(ticks)); ok && (d <= 0 || d > MaxDuration || ticks%120 != 0) {
			t.Fatalf("%x lasts %v", b, d)
		}
		if len(b) == 0 {
			if ok {
				t.Fatal("nothing is a packet")
			}
			return
		}
		config, micros := b[0]>>3, 0
		switch {
		case config < 12:
			micros = []int{10000, 20000, 40000, 60000}[config%4]
		case config < 16:
			micros = []int{10000, 20000}[config%2]
		default:
			micros = []int{2500, 5000, 10000, 20000}[config%4]
		}
		frames := []int{1, 2, 2, 0}[b[0]&3]
		if b[0]&3 == 3 && len(b) > 1 {
			frames = int(b[1] % 64)
		}
		want := time.Duration(frames*micros) * time.Microsecond
		if valid := want > 0 && want <= MaxDuration; valid != ok || ok && Time(int64(ticks)) != want {
			t.Fatalf("%x: %v %v, want %v", b, Time(int64(ticks)), ok, want)
		}
	})
}

func ExampleDuration() {
	d, ok := Duration(Silence())
	fmt.Println(d, ok)
	// Output: 20ms true
}
