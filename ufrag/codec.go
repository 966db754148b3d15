package ufrag

import (
	"encoding/binary"
	"errors"
	"sync"

	"github.com/usher-rtc/usher/internal/config"
)

const (
	// Length is the number of characters of a ufrag made by a [BlockCodec]. RFC
	// 8839 section 5.4 asks for 4 to 256, and for at most 32 when sending.
	Length = 23
	// PasswordLength is the number of characters of a derived ICE password. RFC
	// 8839 section 5.4 asks for at least 22.
	PasswordLength = 32
)

// ConfigError is the error that constructors return for a bad configuration. It
// names the field; find it with errors.As.
type ConfigError = config.Error

// What is wrong with a ufrag or a route. Decode returns these values themselves:
// refusing a packet allocates nothing.
var (
	// ErrLength: not the length that the codec makes; truncated, perhaps.
	ErrLength = errors.New("ufrag: wrong length")
	// ErrKeyID: no such key in the keyring; retired, or from somebody else.
	ErrKeyID = errors.New("ufrag: made with a key that the keyring does not have")
	// ErrAlphabet: a character that is not a digit of the encoding.
	ErrAlphabet = errors.New("ufrag: character outside the alphabet")
	// ErrRange: 22 digits that stand for 2^128 or more. Accepting them would
	// give one block several spellings.
	ErrRange = errors.New("ufrag: value out of range")
	// ErrCheck: the check bits are not zero; a guess, or made with another key.
	ErrCheck = errors.New("ufrag: check bits not zero: a guess, or made with another key of the same id")
	// ErrKind: made with our key, but of a kind that this version does not know.
	ErrKind = errors.New("ufrag: unknown kind of route")
	// ErrRoute: a route that cannot be encoded.
	ErrRoute = errors.New("ufrag: invalid route")
)

// A Codec turns routes into ufrags and back, and knows the password of each
// ufrag. Its methods must be safe for concurrent use. A relay decodes on its
// packet path, so an implementation of Decode and AppendPassword should neither
// block nor allocate.
//
// A transceiver uses it to mint, a relay to route: both sides need codecs that
// agree. [NewCodec] makes the standard one.
type Codec interface {
	// Encode returns a ufrag for the route: 4 to 32 characters of the ice-char
	// set of RFC 8839.
	Encode(Route) (string, error)
	// Decode returns the route inside a ufrag that this or an agreeing codec
	// made, or an error for any other bytes. It does not keep the slice.
	Decode(ufrag []byte) (Route, error)
	// AppendPassword appends the ICE password that belongs to the ufrag. It does
	// not keep the slices. The ufrag has been decoded before.
	AppendPassword(dst, ufrag []byte) ([]byte, error)
}

// BlockCodec is the standard [Codec]: one AES-128 block per ufrag, see the
// package documentation. It is safe for concurrent use, follows every change of
// its keyring, and allocates nothing when it decodes.
type BlockCodec struct {
	keys *Keyring
}

// NewCodec returns the standard codec. It mints with the keyring's minting key
// and decodes with all of them.
func NewCodec(keys *Keyring) *BlockCodec { return &BlockCodec{keys: keys} }

// blockScratch holds what goes in and out of a cipher.Block: arguments of an
// interface method escape, so a block on the stack would be an allocation.
type blockScratch struct{ in, out [16]byte }

var blockScratches = sync.Pool{New: func() any { return new(blockScratch) }}

// Encode implements [Codec]. It returns [ErrRoute] for a route that is not valid,
// and [ErrKeyID] if the keyring is empty.
func (c *BlockCodec) Encode(r Route) (string, error) {
	if !r.IsValid() {
		return "", ErrRoute
	}
	set := c.keys.load()
	key := set.byID[set.mint]
	if key == nil {
		return "", ErrKeyID
	}
	s := blockScratches.Get().(*blockScratch)
	binary.BigEndian.PutUint64(s.in[:8], r.head())
	binary.BigEndian.PutUint64(s.in[8:], uint64(r.Session)<<32)
	key.block.Encrypt(s.out[:], s.in[:])
	hi := binary.BigEndian.Uint64(s.out[:8])
	lo := binary.BigEndian.Uint64(s.out[8:])
	blockScratches.Put(s)

	var text [Length]byte
	text[0] = set.mint
	encode62((*[digits62]byte)(text[1:]), hi, lo)
	return string(text[:]), nil
}

// Decode implements [Codec]. It returns, in this order, [ErrLength], [ErrKeyID],
// [ErrAlphabet], [ErrRange], [ErrCheck] or [ErrKind].
func (c *BlockCodec) Decode(ufrag []byte) (Route, error) {
	if len(ufrag) != Length {
		return Route{}, ErrLength
	}
	key := c.keys.load().byID[ufrag[0]]
	if key == nil {
		return Route{}, ErrKeyID
	}
	hi, lo, err := decode62((*[digits62]byte)(ufrag[1:]))
	if err != nil {
		return Route{}, err
	}
	s := blockScratches.Get().(*blockScratch)
	binary.BigEndian.PutUint64(s.in[:8], hi)
	binary.BigEndian.PutUint64(s.in[8:], lo)
	key.block.Decrypt(s.out[:], s.in[:])
	head := binary.BigEndian.Uint64(s.out[:8])
	tail := binary.BigEndian.Uint64(s.out[8:])
	blockScratches.Put(s)
	if uint32(tail) != 0 {
		return Route{}, ErrCheck
	}
	return routeFrom(head, uint32(tail>>32))
}

// AppendPassword implements [Codec]: [PasswordLength] characters under the key
// that the ufrag names. It does not decode the ufrag; it returns [ErrLength] or
// [ErrKeyID].
func (c *BlockCodec) AppendPassword(dst, ufrag []byte) ([]byte, error) {
	if len(ufrag) != Length {
		return dst, ErrLength
	}
	return appendPassword(dst, c.keys, ufrag)
}

// Short returns the first 6 characters of a ufrag and an ellipsis, for logs: a
// whole ufrag does not belong there. Of something shorter than 12 characters,
// such as a browser's own ufrag, it shows half. Bytes that are not printable
// ASCII become question marks.
func Short(s string) string {
	n := min(6, len(s)/2)
	out := make([]byte, n, n+len("…"))
	for i := range out {
		if out[i] = s[i]; s[i] <= ' ' || s[i] > '~' {
			out[i] = '?'
		}
	}
	return string(append(out, "…"...))
}
