package stun

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
)

// Problem says why a datagram is refused. The zero value is OK. The values are
// small and dense, to index counters with.
type Problem uint8

const (
	// OK means that nothing is wrong.
	OK Problem = iota
	// ProblemShort is a datagram of fewer than 20 bytes.
	ProblemShort
	// ProblemType is a first byte with one of the two top bits set.
	ProblemType
	// ProblemCookie is a missing cookie.
	ProblemCookie
	// ProblemLengthAlignment is a length field that is not a multiple of four.
	ProblemLengthAlignment
	// ProblemLength is a length field that says more than the datagram holds.
	ProblemLength
	// ProblemAttributeBounds is an attribute that reaches beyond the message.
	ProblemAttributeBounds
	// ProblemAttributeSize is an interpreted attribute of the wrong size or form.
	ProblemAttributeSize
	// ProblemUsernameTooLong is a USERNAME of more than MaxUsername bytes.
	ProblemUsernameTooLong
	// ProblemFingerprint is a FINGERPRINT that is wrong.
	ProblemFingerprint
	// ProblemFingerprintNotLast is a FINGERPRINT with an attribute after it.
	ProblemFingerprintNotLast
	// NumProblems is the number of values, OK included.
	NumProblems
)

var problemNames = [NumProblems]string{
	"ok", "stun short", "stun type", "stun cookie", "stun length alignment", "stun length",
	"stun attribute bounds", "stun attribute size", "stun username too long",
	"stun fingerprint", "stun fingerprint not last",
}

// String returns a short name, fit for a label of a counter.
func (p Problem) String() string {
	if p < NumProblems {
		return problemNames[p]
	}
	return "unknown"
}

const fingerprintXOR = 0x5354554e // RFC 8489 section 14.7

// Parse reads the message at the start of b into m, which it overwrites. On
// any Problem but OK the content of m is of no use. Parse allocates nothing,
// reads no byte outside b[:len(b)], and writes none. The rules of refusal are
// those of the package documentation.
func Parse(b []byte, m *Message) Problem {
	*m = Message{}
	if len(b) < HeaderLen {
		return ProblemShort
	}
	if b[0]&0xC0 != 0 {
		return ProblemType
	}
	if binary.BigEndian.Uint32(b[4:8]) != Cookie {
		return ProblemCookie
	}
	length := int(binary.BigEndian.Uint16(b[2:4]))
	if length&3 != 0 {
		return ProblemLengthAlignment
	}
	if length > len(b)-HeaderLen {
		return ProblemLength
	}
	raw := b[: HeaderLen+length : HeaderLen+length]
	m.Raw = raw
	m.Type = Type(binary.BigEndian.Uint16(b[0:2]))
	m.TransactionID = TransactionID(b[8:HeaderLen])

	var hasError bool
	// The length is a multiple of four and so is every step, so there are
	// either four bytes of attribute header left or none.
	for at := HeaderLen; at < len(raw); {
		typ := binary.BigEndian.Uint16(raw[at:])
		size := int(binary.BigEndian.Uint16(raw[at+2:]))
		next := at + 4 + (size+3)&^3
		if next > len(raw) {
			return ProblemAttributeBounds
		}
		value := raw[at+4 : at+4+size : at+4+size]
		switch {
		case typ == AttrFingerprint:
			if size != 4 {
				return ProblemAttributeSize
			}
			if next != len(raw) {
				return ProblemFingerprintNotLast
			}
			if crc32.ChecksumIEEE(raw[:at])^fingerprintXOR != binary.BigEndian.Uint32(value) {
				return ProblemFingerprint
			}
			m.HasFingerprint = true
		case m.HasIntegrity:
			// Not covered by the integrity: as if it were not there.
		default:
			if p := m.attribute(typ, value, at, &hasError); p != OK {
				return p
			}
		}
		at = next
	}
	return OK
}

func (m *Message) attribute(typ uint16, value []byte, at int, hasError *bool) Problem {
	switch typ {
	case AttrUsername:
		if m.Username != nil {
			return OK
		}
		if len(value) > MaxUsername {
			return ProblemUsernameTooLong
		}
		m.Username = value
	case AttrMessageIntegrity:
		if len(value) != integritySize {
			return ProblemAttributeSize
		}
		m.HasIntegrity = true
		m.integrityAt = at
	case AttrPriority:
		if m.HasPriority {
			return OK
		}
		if len(value) != 4 {
			return ProblemAttributeSize
		}
		m.HasPriority = true
		m.Priority = binary.BigEndian.Uint32(value)
	case AttrUseCandidate:
		m.UseCandidate = true
	case AttrICEControlling, AttrICEControlled:
		controlling := typ == AttrICEControlling
		if controlling && m.Controlling || !controlling && m.Controlled {
			return OK
		}
		if len(value) != 8 {
			return ProblemAttributeSize
		}
		if !m.Controlling && !m.Controlled {
			m.TieBreaker = binary.BigEndian.Uint64(value)
		}
		m.Controlling = m.Controlling || controlling
		m.Controlled = m.Controlled || !controlling
	case AttrErrorCode:
		if *hasError {
			return OK
		}
		if len(value) < 4 || value[2]&7 < 3 || value[2]&7 > 6 || value[3] > 99 {
			return ProblemAttributeSize
		}
		*hasError = true
		m.ErrorCode = int(value[2]&7)*100 + int(value[3])
	case AttrXORMappedAddress:
		if m.XORMapped.IsValid() {
			return OK
		}
		return m.xorMapped(value)
	case AttrDTLSInSTUN:
		if m.DTLS == nil {
			m.DTLS = value
		}
	case AttrDTLSInSTUNAck:
		if m.DTLSAck == nil {
			m.DTLSAck = value
		}
	case AttrMappedAddress, AttrUnknownAttributes, AttrRealm, AttrNonce:
	default:
		if typ < attrComprehensionLimit && m.unknownN < maxUnknown {
			m.unknown[m.unknownN] = typ
			m.unknownN++
		}
	}
	return OK
}

// xorMapped reads XOR-MAPPED-ADDRESS (RFC 8489 section 14.2).
func (m *Message) xorMapped(value []byte) Problem {
	if len(value) < 4 {
		return ProblemAttributeSize
	}
	port := binary.BigEndian.Uint16(value[2:]) ^ Cookie>>16
	switch {
	case value[1] == 1 && len(value) == 8:
		var a [4]byte
		for i := range a {
			a[i] = value[4+i] ^ m.Raw[4+i]
		}
		m.XORMapped = netip.AddrPortFrom(netip.AddrFrom4(a), port)
	case value[1] == 2 && len(value) == 20:
		var a [16]byte
		for i := range a {
			a[i] = value[4+i] ^ m.Raw[4+i] // cookie, then transaction id
		}
		m.XORMapped = netip.AddrPortFrom(netip.AddrFrom16(a).Unmap(), port)
	default:
		return ProblemAttributeSize
	}
	return OK
}
