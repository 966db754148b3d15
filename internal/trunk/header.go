package trunk

import (
	"encoding/binary"

	"github.com/dchest/siphash"

	"github.com/usher-rtc/usher/ufrag"
)

const (
	// Version is the only version of the wire.
	Version = 1
	// HeaderLen is the size of a datagram's header.
	HeaderLen = 24
	// FrameLen is the size of the header of a frame for an IPv4 client without
	// optional fields. An IPv6 client makes it 12 bytes longer.
	FrameLen = 12
	// MaxFrameHeaderLen is the size of a frame's header with everything in it.
	MaxFrameHeaderLen = FrameLen + 12 + ufrag.RouteLen + 19 + 1 + 4*MaxSSRCs
	// MaxFrames bounds the frames of a datagram, so that a reader has room for
	// all their headers. It is more than fit into DefaultMTU.
	MaxFrames = 128
	// MaxTagged bounds what the tag covers: the header and all frame headers,
	// or a whole control datagram.
	MaxTagged = HeaderLen + MaxFrames*MaxFrameHeaderLen
	// MaxDatagram is the largest UDP payload over IPv4.
	MaxDatagram = 65507
	// MaxSSRCs bounds the SSRCs of a frame: audio and video, each with
	// retransmission.
	MaxSSRCs = 4
	// DefaultMTU is the default size of a datagram with several frames in it,
	// in bytes of UDP payload: 1,500 less IP and UDP headers and some room for
	// the encapsulation that private networks add.
	DefaultMTU = 1400
	// DefaultHops is what the first sender of a frame writes into Header.Hops.
	// Edge to cluster to Host and back are two, the rest is room.
	DefaultHops = 4

	tagAt = 16
)

// Type says what a datagram carries.
type Type uint8

// The types of datagrams. All but TypeData are control datagrams.
const (
	TypeData      Type = 1
	TypeHello     Type = 2
	TypeHelloAck  Type = 3
	TypeAnnounce  Type = 4
	TypeKeepalive Type = 5
	TypeGoodbye   Type = 6
)

// String returns the name of the type in lower case.
func (t Type) String() string {
	switch t {
	case TypeData:
		return "data"
	case TypeHello:
		return "hello"
	case TypeHelloAck:
		return "hello-ack"
	case TypeAnnounce:
		return "announce"
	case TypeKeepalive:
		return "keepalive"
	case TypeGoodbye:
		return "goodbye"
	default:
		return "unknown"
	}
}

// Header is the header of a datagram without version and tag.
type Header struct {
	// Type says what follows.
	Type Type
	// KeyID selects the key of the tag. 0 lets the sealing function fill in the
	// id that the Keys mint with.
	KeyID byte
	// Hops is how many links the content may still travel, this one included.
	// The first sender writes DefaultHops; whoever passes frames on writes what
	// it received less one, and drops them if that is 0. A datagram with 0 is
	// refused.
	Hops uint8
	// Epoch is random at each start of the sender, never a clock.
	Epoch uint64
	// Seq counts the datagrams from this sender, in this epoch, to this peer,
	// and wraps.
	Seq uint32
}

// Keys has the keys of the tag. *ufrag.Keyring implements it; keys that are
// exchanged while running take effect with the next datagram. Both methods are
// called for every datagram, so they must neither lock nor allocate.
type Keys interface {
	// TrunkKey returns the key with this id.
	TrunkKey(id byte) (key [16]byte, ok bool)
	// MintID returns the id of the key to seal with.
	MintID() byte
}

// AppendHeader appends a header with the tag still zero. See Seal.
func AppendHeader(dst []byte, h *Header) []byte {
	dst = append(dst, Version, byte(h.Type), h.KeyID, h.Hops)
	dst = binary.BigEndian.AppendUint64(dst, h.Epoch)
	dst = binary.BigEndian.AppendUint32(dst, h.Seq)
	return binary.BigEndian.AppendUint64(dst, 0)
}

// Seal writes the tag into tagged, which is a header with everything behind it
// that the tag covers: all frame headers without their payloads, or the whole
// body of a control datagram. It fills in a missing key id first. It reports
// false, and the datagram must not be sent, if there is no such key or if no
// hops are left.
func Seal(tagged []byte, keys Keys) bool {
	if tagged[2] == 0 {
		tagged[2] = keys.MintID()
	}
	key, ok := keys.TrunkKey(tagged[2])
	if !ok || tagged[3] == 0 {
		return false
	}
	clear(tagged[tagAt:HeaderLen])
	binary.BigEndian.PutUint64(tagged[tagAt:], sum(&key, tagged))
	return true
}

// sum is SipHash-2-4 over b, in which the tag must be zero.
func sum(key *[16]byte, b []byte) uint64 {
	return siphash.Hash(binary.LittleEndian.Uint64(key[:8]), binary.LittleEndian.Uint64(key[8:]), b)
}

// Problem says why a datagram is refused. The zero value is OK. The values are
// small and dense, to index counters with.
type Problem uint8

const (
	// OK means that nothing is wrong.
	OK Problem = iota
	// ProblemShort is a datagram shorter than its header.
	ProblemShort
	// ProblemVersion is another version.
	ProblemVersion
	// ProblemType is a type that does not exist.
	ProblemType
	// ProblemHops is a datagram with no hops left.
	ProblemHops
	// ProblemKey is a key id that is not in Keys.
	ProblemKey
	// ProblemTag is a wrong tag.
	ProblemTag
	// ProblemEmpty is a data datagram or an announcement with nothing in it.
	ProblemEmpty
	// ProblemFrame is a frame that reaches beyond the datagram.
	ProblemFrame
	// ProblemFrames is a datagram of more than MaxFrames frames.
	ProblemFrames
	// ProblemAddress is an address of no known family, or an IPv4 address in
	// the form for IPv6.
	ProblemAddress
	// ProblemRoute is a route that is none.
	ProblemRoute
	// ProblemSSRCs is a list of no SSRCs or of more than MaxSSRCs.
	ProblemSSRCs
	// ProblemControl is a control datagram of the wrong size or with a value
	// that does not exist.
	ProblemControl
	// NumProblems is the number of values, OK included.
	NumProblems
)

var problemNames = [NumProblems]string{
	"ok", "trunk short", "trunk version", "trunk type", "trunk hops", "trunk key", "trunk tag",
	"trunk empty", "trunk frame", "trunk frames", "trunk address", "trunk route", "trunk ssrcs",
	"trunk control",
}

// String returns a short name, fit for a label of a counter.
func (p Problem) String() string {
	if p < NumProblems {
		return problemNames[p]
	}
	return "unknown"
}
