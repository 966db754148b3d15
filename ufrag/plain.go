package ufrag

import (
	"encoding/hex"
)

// PlainLength is the number of characters of a ufrag made by a [Plain] codec.
const PlainLength = 1 + 2*RouteLen

// Plain is a [Codec] for debugging: the ufrag shows the route in hexadecimal, so
// that a packet capture can be read by eye. It hides nothing and checks nothing;
// whoever sees one ufrag learns the address of the owner and can name any other.
// Nothing in this module chooses it: only [NewPlain] makes one, and the zero
// Plain refuses everything.
//
// A ufrag is the key id character and 24 lower-case hexadecimal digits of the
// binary form of the route: kind 1 digit, cluster 3, host 12 (for IPv4: address
// 8, port 4), session 8. Passwords are derived as by [BlockCodec].
type Plain struct {
	keys *Keyring
}

// NewPlain returns a codec for debugging that does not hide routes. The keyring
// is for the passwords.
func NewPlain(keys *Keyring) *Plain { return &Plain{keys: keys} }

// Encode implements [Codec]. It returns [ErrRoute] for a route that is not valid,
// and [ErrKeyID] if the keyring is empty.
func (p *Plain) Encode(r Route) (string, error) {
	if !r.IsValid() {
		return "", ErrRoute
	}
	id := p.keys.MintID()
	if id == 0 {
		return "", ErrKeyID
	}
	var buf [RouteLen]byte
	return string(hex.AppendEncode([]byte{id}, r.AppendBinary(buf[:0]))), nil
}

// Decode implements [Codec]. It returns, in this order, [ErrLength], [ErrKeyID],
// [ErrAlphabet] or [ErrKind].
func (p *Plain) Decode(ufrag []byte) (Route, error) {
	if len(ufrag) != PlainLength {
		return Route{}, ErrLength
	}
	if p.keys.load().byID[ufrag[0]] == nil {
		return Route{}, ErrKeyID
	}
	for _, c := range ufrag[1:] {
		// One spelling only: package hex also takes upper case.
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return Route{}, ErrAlphabet
		}
	}
	var buf [RouteLen]byte
	if _, err := hex.Decode(buf[:], ufrag[1:]); err != nil {
		return Route{}, ErrAlphabet
	}
	return ParseRoute(buf[:])
}

// AppendPassword implements [Codec]. It returns [ErrLength] or [ErrKeyID].
func (p *Plain) AppendPassword(dst, ufrag []byte) ([]byte, error) {
	if len(ufrag) != PlainLength {
		return dst, ErrLength
	}
	return appendPassword(dst, p.keys, ufrag)
}
