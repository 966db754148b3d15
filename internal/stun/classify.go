package stun

import "encoding/binary"

// Class says what kind of packet a datagram on a shared port is, by its first
// bytes (RFC 7983 section 7, RFC 9443 section 3).
type Class uint8

const (
	// ClassOther is everything that WebRTC does not send: ZRTP, TURN channel
	// data, QUIC, a STUN-like first byte without the cookie, an empty datagram.
	ClassOther Class = iota
	// ClassSTUN has a first byte of 0 to 3, 20 bytes or more, and the cookie.
	ClassSTUN
	// ClassDTLS has a first byte of 20 to 63.
	ClassDTLS
	// ClassRTP has a first byte of 128 to 191: RTP or RTCP, protected or not.
	ClassRTP
)

// String returns the name of the class in lower case.
func (c Class) String() string {
	switch c {
	case ClassSTUN:
		return "stun"
	case ClassDTLS:
		return "dtls"
	case ClassRTP:
		return "rtp"
	default:
		return "other"
	}
}

// Classify tells the kinds of packets on one port apart. It looks at the first
// eight bytes and at the length and never panics. ClassSTUN promises the
// cookie only; [Parse] says whether it is a message.
func Classify(b []byte) Class {
	if len(b) == 0 {
		return ClassOther
	}
	switch first := b[0]; {
	case first <= 3:
		// The cookie too, not only the range: RFC 7983 leaves other protocols
		// that begin with a small byte to it, and RFC 3489 had none.
		if len(b) >= HeaderLen && binary.BigEndian.Uint32(b[4:8]) == Cookie {
			return ClassSTUN
		}
		return ClassOther
	case first >= 20 && first <= 63:
		return ClassDTLS
	case first >= 128 && first <= 191:
		return ClassRTP
	default:
		return ClassOther
	}
}

// IsRTCP reports whether a packet of [ClassRTP] is RTCP: a second byte of 192
// to 223 (RFC 5761 section 4).
func IsRTCP(b []byte) bool {
	return len(b) >= 2 && b[0]>>6 == 2 && b[1] >= 192 && b[1] <= 223
}

// SSRC returns the synchronisation source of an RTP packet, or the sender's of
// an RTCP packet. SRTP and SRTCP leave both in the clear (RFC 3711 sections
// 3.1 and 3.4), and both are only a claim until the packet is authenticated.
// It reports false for anything else and for packets too short to hold one.
func SSRC(b []byte) (uint32, bool) {
	if len(b) < 8 || b[0]>>6 != 2 {
		return 0, false
	}
	if b[1] >= 192 && b[1] <= 223 {
		return binary.BigEndian.Uint32(b[4:8]), true
	}
	if len(b) < 12 {
		return 0, false
	}
	return binary.BigEndian.Uint32(b[8:12]), true
}
