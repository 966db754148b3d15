package stun

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
)

// Builder appends a message to a buffer of the caller's. It allocates nothing
// if the buffer has the capacity; otherwise it grows it as append does. The
// order of the calls is the order on the wire: AddIntegrity comes after every
// attribute that it shall protect, AddFingerprint last. Use one Builder from
// one goroutine at a time.
type Builder struct {
	buf    []byte
	start  int
	failed bool
}

// maxLength is the largest multiple of four that the length field can say.
const maxLength = 65532

// Reset begins a message behind what buf already holds.
func (b *Builder) Reset(buf []byte, typ Type, id TransactionID) {
	b.start = len(buf)
	b.failed = false
	b.buf = binary.BigEndian.AppendUint16(buf, uint16(typ))
	b.buf = append(b.buf, 0, 0)
	b.buf = binary.BigEndian.AppendUint32(b.buf, Cookie)
	b.buf = append(b.buf, id[:]...)
}

// Bytes returns the buffer given to Reset with the message behind it, or nil
// if one of the Add methods was given a value that no message can carry.
func (b *Builder) Bytes() []byte {
	if b.failed {
		return nil
	}
	return b.buf
}

// grow appends the header of an attribute and room for its value, padded with
// zeros, and corrects the length of the message. It returns the room.
func (b *Builder) grow(typ uint16, size int) []byte {
	length := len(b.buf) - b.start - HeaderLen + 4 + (size+3)&^3
	if b.failed || length > maxLength {
		b.failed = true
		return nil
	}
	b.buf = binary.BigEndian.AppendUint16(b.buf, typ)
	b.buf = binary.BigEndian.AppendUint16(b.buf, uint16(size))
	at := len(b.buf)
	for n := size; n > 0; n -= len(zeros) {
		b.buf = append(b.buf, zeros[:min((n+3)&^3, len(zeros))]...)
	}
	binary.BigEndian.PutUint16(b.buf[b.start+2:], uint16(length))
	return b.buf[at : at+size]
}

// zeros is padding, and room that the value then overwrites. Its length is a
// multiple of four, so only the last piece of a value is padded.
var zeros [64]byte

// AddRaw appends any attribute. A value that makes the message longer than
// 65,532 bytes spoils the message: see Bytes.
func (b *Builder) AddRaw(typ uint16, value []byte) {
	copy(b.grow(typ, len(value)), value)
}

// AddUsername appends USERNAME. A longer one than MaxUsername spoils the
// message: see Bytes.
func (b *Builder) AddUsername(local, remote string) {
	size := len(local) + 1 + len(remote)
	if size > MaxUsername {
		b.failed = true
		return
	}
	if v := b.grow(AttrUsername, size); v != nil {
		copy(v, local)
		v[len(local)] = ':'
		copy(v[len(local)+1:], remote)
	}
}

// AddPriority appends PRIORITY (RFC 8445 section 7.1.1).
func (b *Builder) AddPriority(priority uint32) {
	if v := b.grow(AttrPriority, 4); v != nil {
		binary.BigEndian.PutUint32(v, priority)
	}
}

// AddUseCandidate appends USE-CANDIDATE (RFC 8445 section 7.1.2).
func (b *Builder) AddUseCandidate() { b.grow(AttrUseCandidate, 0) }

// AddControlled appends ICE-CONTROLLED (RFC 8445 section 7.1.3).
func (b *Builder) AddControlled(tieBreaker uint64) {
	if v := b.grow(AttrICEControlled, 8); v != nil {
		binary.BigEndian.PutUint64(v, tieBreaker)
	}
}

// AddControlling appends ICE-CONTROLLING (RFC 8445 section 7.1.3).
func (b *Builder) AddControlling(tieBreaker uint64) {
	if v := b.grow(AttrICEControlling, 8); v != nil {
		binary.BigEndian.PutUint64(v, tieBreaker)
	}
}

// AddXORMappedAddress appends XOR-MAPPED-ADDRESS. An IPv4 address mapped into
// IPv6 is sent as IPv4; an invalid one spoils the message: see Bytes.
func (b *Builder) AddXORMappedAddress(addr netip.AddrPort) {
	ip := addr.Addr().Unmap()
	if !ip.IsValid() {
		b.failed = true
		return
	}
	size, family := 8, byte(1)
	if ip.Is6() {
		size, family = 20, 2
	}
	v := b.grow(AttrXORMappedAddress, size)
	if v == nil {
		return
	}
	v[0], v[1] = 0, family
	binary.BigEndian.PutUint16(v[2:], addr.Port()^Cookie>>16)
	if ip.Is4() {
		a := ip.As4()
		copy(v[4:], a[:])
	} else {
		a := ip.As16()
		copy(v[4:], a[:])
	}
	mask := b.buf[b.start+4:] // cookie, then transaction id
	for i := range v[4:] {
		v[4+i] ^= mask[i]
	}
}

// AddErrorCode appends ERROR-CODE (RFC 8489 section 14.8). A code outside 300
// to 699 spoils the message: see Bytes.
func (b *Builder) AddErrorCode(code int, reason string) {
	if code < 300 || code > 699 {
		b.failed = true
		return
	}
	if v := b.grow(AttrErrorCode, 4+len(reason)); v != nil {
		v[2], v[3] = byte(code/100), byte(code%100)
		copy(v[4:], reason)
	}
}

// AddUnknownAttributes appends UNKNOWN-ATTRIBUTES, for an answer with 420.
func (b *Builder) AddUnknownAttributes(types []uint16) {
	if v := b.grow(AttrUnknownAttributes, 2*len(types)); v != nil {
		for i, t := range types {
			binary.BigEndian.PutUint16(v[2*i:], t)
		}
	}
}

// AddIntegrity appends MESSAGE-INTEGRITY over everything appended so far.
func (b *Builder) AddIntegrity(a *Authenticator, password []byte) {
	at := len(b.buf)
	if v := b.grow(AttrMessageIntegrity, integritySize); v != nil {
		a.compute(b.buf[b.start:at], password)
		copy(v, a.sum[:])
	}
}

// AddFingerprint appends FINGERPRINT over everything appended so far.
func (b *Builder) AddFingerprint() {
	at := len(b.buf)
	if v := b.grow(AttrFingerprint, 4); v != nil {
		binary.BigEndian.PutUint32(v, crc32.ChecksumIEEE(b.buf[b.start:at])^fingerprintXOR)
	}
}
