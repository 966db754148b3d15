package stun

import (
	"bytes"
	"net/netip"
)

const (
	// HeaderLen is the size of the fixed header (RFC 8489 section 5).
	HeaderLen = 20
	// Cookie is the constant in bytes 4 to 8 of every message.
	Cookie = 0x2112A442
	// MaxUsername is the longest USERNAME accepted, in bytes: RFC 8489 section
	// 14.3 asks for fewer than 509.
	MaxUsername = 508
)

// Attribute types that this package interprets, and those it only knows, so
// that they do not count as unknown (RFC 8489 section 18.3, RFC 8445 section
// 16.1). 0xC070 and 0xC071 are in the range of the designated expert and are
// Chromium's trial of DTLS inside STUN.
const (
	AttrMappedAddress      uint16 = 0x0001
	AttrUsername           uint16 = 0x0006
	AttrMessageIntegrity   uint16 = 0x0008
	AttrErrorCode          uint16 = 0x0009
	AttrUnknownAttributes  uint16 = 0x000A
	AttrRealm              uint16 = 0x0014
	AttrNonce              uint16 = 0x0015
	AttrXORMappedAddress   uint16 = 0x0020
	AttrPriority           uint16 = 0x0024
	AttrUseCandidate       uint16 = 0x0025
	AttrFingerprint        uint16 = 0x8028
	AttrICEControlled      uint16 = 0x8029
	AttrICEControlling     uint16 = 0x802A
	AttrDTLSInSTUN         uint16 = 0xC070
	AttrDTLSInSTUNAck      uint16 = 0xC071
	attrComprehensionLimit uint16 = 0x8000 // below it a receiver must understand the attribute
)

// Type is a message type: class and method, 14 bits (RFC 8489 section 5).
type Type uint16

// The types of the Binding method, the only one ICE uses.
const (
	BindingRequest    Type = 0x0001
	BindingIndication Type = 0x0011
	BindingSuccess    Type = 0x0101
	BindingError      Type = 0x0111
)

const (
	classMask = 0x0110
	// MethodBinding is the method of the four Binding types.
	MethodBinding uint16 = 0x001
)

// IsRequest reports whether the class of t is request.
func (t Type) IsRequest() bool { return t&classMask == 0x0000 }

// IsIndication reports whether the class of t is indication.
func (t Type) IsIndication() bool { return t&classMask == 0x0010 }

// IsSuccess reports whether the class of t is success response.
func (t Type) IsSuccess() bool { return t&classMask == 0x0100 }

// IsError reports whether the class of t is error response.
func (t Type) IsError() bool { return t&classMask == 0x0110 }

// Method returns the 12-bit method, without the class bits in its midst.
func (t Type) Method() uint16 {
	v := uint16(t)
	return v&0x000F | v&0x00E0>>1 | v&0x3E00>>2
}

// TransactionID identifies a request and its response.
type TransactionID [12]byte

// maxUnknown bounds the list of unknown attributes that a Message keeps, so
// that a Message has a fixed size. More than eight is no client's mistake.
const maxUnknown = 8

// Message is one parsed message. Its slices point into the datagram that
// [Parse] was given and are valid as long as that is. A nil slice means that
// the attribute is absent; a present but empty one is not nil. Reuse a Message
// for one datagram after another; it is not safe for concurrent use.
type Message struct {
	// Raw is the message without any bytes that came after it.
	Raw []byte
	// Type is class and method.
	Type Type
	// TransactionID is as it came.
	TransactionID TransactionID

	// Username is the value of the first USERNAME.
	Username []byte
	// Priority is the value of PRIORITY, if HasPriority is set.
	Priority    uint32
	HasPriority bool
	// UseCandidate says that USE-CANDIDATE is there.
	UseCandidate bool
	// Controlling and Controlled say which of the two ICE role attributes are
	// there. TieBreaker belongs to the first of them.
	Controlling bool
	Controlled  bool
	TieBreaker  uint64
	// ErrorCode is 300 to 699, or 0 if there is no ERROR-CODE.
	ErrorCode int
	// XORMapped is XOR-MAPPED-ADDRESS without the XOR, unmapped to IPv4 where
	// it can be; the zero AddrPort if absent.
	XORMapped netip.AddrPort
	// DTLS and DTLSAck are the payloads of attributes 0xC070 and 0xC071.
	DTLS    []byte
	DTLSAck []byte
	// HasFingerprint says that there is a FINGERPRINT, and it is right: a wrong
	// one is a Problem.
	HasFingerprint bool
	// HasIntegrity says that there is a MESSAGE-INTEGRITY. Whether it is right
	// only [Authenticator.Check] can say.
	HasIntegrity bool

	integrityAt int // offset in Raw of the MESSAGE-INTEGRITY attribute
	unknown     [maxUnknown]uint16
	unknownN    int
}

// UnknownRequired returns the types of the first attributes, eight at most,
// that this package does not know and that a receiver must understand. A
// request that has any is to be answered with 420 (RFC 8489 section 6.3.1).
// The slice is part of m.
func (m *Message) UnknownRequired() []uint16 { return m.unknown[:m.unknownN] }

// SplitUsername splits the USERNAME of a connectivity check at its first colon
// (RFC 8445 section 7.2.2): the ufrag of whoever receives the check, then that
// of its sender. It reports false if there is no USERNAME, no colon, or if
// either half is empty.
func (m *Message) SplitUsername() (local, remote []byte, ok bool) {
	i := bytes.IndexByte(m.Username, ':')
	if i <= 0 || i == len(m.Username)-1 {
		return nil, nil, false
	}
	return m.Username[:i:i], m.Username[i+1:], true
}
