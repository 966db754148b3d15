package pcm

import (
	"encoding/binary"
	"math"
	"testing"
)

func TestLoudness(t *testing.T) {
	silent := math.Inf(-1)
	sine := func(amplitude float64) (pcm []byte) {
		for i := range 320 {
			pcm = binary.LittleEndian.AppendUint16(pcm, uint16(int16(amplitude*math.Sin(2*math.Pi*float64(i)/32))))
		}
		return pcm
	}
	for _, tt := range []struct {
		name string
		pcm  []byte
		want float64
	}{
		{"nothing", nil, silent},
		{"half a sample", []byte{1}, silent},
		{"zeros", make([]byte, 640), silent},
		{"the loudest there is", []byte{0, 0x80, 0, 0x80}, 0},
		{"full sine", sine(32767), -3.01},
		{"a hundredth of it", sine(327.67), -43.01},
	} {
		if got := Loudness(tt.pcm); got != tt.want && !(math.Abs(got-tt.want) < 0.1) {
			t.Errorf("%s: %.2f dBFS, want %.2f", tt.name, got, tt.want)
		}
	}
}
