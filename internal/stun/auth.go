package stun

import (
	"crypto/sha1" // RFC 8489 section 14.5 prescribes HMAC-SHA1
	"crypto/subtle"
	"encoding/binary"
	"hash"
)

const (
	integritySize = sha1.Size
	integrityLen  = 4 + integritySize // the attribute with its header
)

// Authenticator makes and checks MESSAGE-INTEGRITY: HMAC-SHA1 keyed with the
// password itself, as short-term credentials ask for (RFC 8489 section 9.1.1).
// The zero value is ready to use. The first use allocates its hash; all later
// ones allocate nothing, which is why it is a type and not a function. One
// goroutine at a time.
type Authenticator struct {
	h      hash.Hash
	pad    [sha1.BlockSize]byte
	sum    [sha1.Size]byte
	header [HeaderLen]byte
}

// Check reports whether m has a MESSAGE-INTEGRITY and it is right for the
// password. It compares in constant time and keeps no reference to either.
func (a *Authenticator) Check(m *Message, password []byte) bool {
	if !m.HasIntegrity {
		return false
	}
	a.compute(m.Raw[:m.integrityAt], password)
	at := m.integrityAt + 4
	return subtle.ConstantTimeCompare(a.sum[:], m.Raw[at:at+integritySize]) == 1
}

// compute leaves in a.sum the HMAC of a message that ends before its
// MESSAGE-INTEGRITY, with the length field as if it ended after it.
func (a *Authenticator) compute(before, password []byte) {
	if a.h == nil {
		a.h = sha1.New()
	}
	copy(a.header[:], before)
	// The message may have come with more behind it: what is hashed is always
	// the length up to and including MESSAGE-INTEGRITY.
	binary.BigEndian.PutUint16(a.header[2:], uint16(len(before)-HeaderLen+integrityLen))

	// HMAC by hand (RFC 2104): crypto/hmac makes a new object for every key,
	// and here almost every message has a key of its own.
	a.pad = [sha1.BlockSize]byte{}
	if len(password) > sha1.BlockSize {
		a.h.Reset()
		a.h.Write(password)
		a.h.Sum(a.pad[:0])
	} else {
		copy(a.pad[:], password)
	}
	for i := range a.pad {
		a.pad[i] ^= 0x36
	}
	a.h.Reset()
	a.h.Write(a.pad[:])
	a.h.Write(a.header[:])
	a.h.Write(before[HeaderLen:])
	a.h.Sum(a.sum[:0])

	for i := range a.pad {
		a.pad[i] ^= 0x36 ^ 0x5c
	}
	a.h.Reset()
	a.h.Write(a.pad[:])
	a.h.Write(a.sum[:])
	a.h.Sum(a.sum[:0])
}
