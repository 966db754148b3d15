package ufrag

import "math/bits"

// A block is 22 digits in base 62: 62^21 < 2^128 < 62^22. They are handled as a
// head of 2 digits and two limbs of 10, the most that fit into 64 bits, so that
// decoding needs no division and no more than a few wide multiplications.
const (
	digits62  = 22
	limbDigit = 10
	headDigit = digits62 - 2*limbDigit
	limb62    = 62 * 62 * 62 * 62 * 62 * 62 * 62 * 62 * 62 * 62 // 62^10 < 2^60
)

const alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// notDigit marks bytes outside the alphabet. No digit has its top bit, so a whole
// ufrag is checked by or-ing the digits together.
const notDigit = 0x80

var digitOf = func() (t [256]uint8) {
	for i := range t {
		t[i] = notDigit
	}
	for i := range len(alphabet) {
		t[alphabet[i]] = uint8(i)
	}
	return t
}()

// decode62 returns the 128-bit value of 22 digits.
func decode62(s *[digits62]byte) (hi, lo uint64, err error) {
	var mid, low uint64
	d0, d1 := digitOf[s[0]], digitOf[s[1]]
	bad := d0 | d1
	// Two chains of multiplications that the processor runs side by side.
	for i := range limbDigit {
		m, l := digitOf[s[headDigit+i]], digitOf[s[headDigit+limbDigit+i]]
		mid = mid*62 + uint64(m)
		low = low*62 + uint64(l)
		bad |= m | l
	}
	if bad&notDigit != 0 {
		return 0, 0, ErrAlphabet
	}
	// v = (head*62^10 + mid)*62^10 + low
	h1, h0 := bits.Mul64(uint64(d0)*62+uint64(d1), limb62)
	h0, carry := bits.Add64(h0, mid, 0)
	h1 += carry // at most 62^12 >> 64: no overflow
	hi, lo = bits.Mul64(h0, limb62)
	over, up := bits.Mul64(h1, limb62)
	hi, c1 := bits.Add64(hi, up, 0)
	lo, c2 := bits.Add64(lo, low, 0)
	hi, c3 := bits.Add64(hi, 0, c2)
	if over|c1|c3 != 0 {
		return 0, 0, ErrRange
	}
	return hi, lo, nil
}

// encode62 writes the 22 digits of a 128-bit value.
func encode62(s *[digits62]byte, hi, lo uint64) {
	// Divide the 128 bits by 62^10 twice.
	q1, r := hi/limb62, hi%limb62
	q0, low := bits.Div64(r, lo, limb62)
	head, mid := bits.Div64(q1, q0, limb62)
	put62(s[headDigit+limbDigit:], low)
	put62(s[headDigit:headDigit+limbDigit], mid)
	put62(s[:headDigit], head)
}

func put62(s []byte, v uint64) {
	for i := len(s) - 1; i >= 0; i-- {
		s[i] = alphabet[v%62]
		v /= 62
	}
}
