package pcm

import (
	"encoding/binary"
	"math"
)

// Loudness returns the root mean square of samples (16 bits, little endian) in dBFS:
// 0 for a square wave of full scale, negative infinity for zeros and for no sample.
func Loudness(samples []byte) float64 {
	n := len(samples) / 2
	if n == 0 {
		return math.Inf(-1)
	}
	sum := 0.0
	for i := range n {
		s := float64(int16(binary.LittleEndian.Uint16(samples[2*i:]))) / (1 << 15)
		sum += s * s
	}
	return 10 * math.Log10(sum/float64(n))
}
