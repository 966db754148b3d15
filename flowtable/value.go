package flowtable

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"time"

	"github.com/usher-rtc/usher/ufrag"
)

// The value of a flow in a FlowStore, see docs/wire.md:
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------+---------------+-------------------------------+
//	|  version = 1  |    key id     |    expiry, Unix seconds ...   |
//	+---------------+---------------+-------------------------------+
//	|   ... expiry, 32 bits in all  |     route, 12 bytes ...       |
//	+-------------------------------+-------------------------------+
//	|                  ... tag, the last 16 bytes                   |
//	+---------------------------------------------------------------+
const (
	valueVersion = 1
	valueTagLen  = 16
	valueExpiry  = 2
	valueRoute   = valueExpiry + 4
	valueTag     = valueRoute + ufrag.RouteLen
	// ValueLen is the length of a value that [Value.Seal] makes.
	ValueLen = valueTag + valueTagLen
	// ClockSlack is how far the clocks of relays that share a store may differ:
	// a value is accepted for so long after it has expired.
	ClockSlack = time.Minute
)

// Value is what relays keep in a [FlowStore] about a flow. On the way to the
// store it gets a MAC over itself and the flow's key: who can write to the store
// cannot make values, and a value is worth nothing under another key.
type Value struct {
	// Route leads to the session's owner.
	Route ufrag.Route
	// Expires is the end of the value's life by the clock of its writer, in whole
	// seconds. It makes old values worthless even in a store that forgets nothing.
	Expires time.Time
}

// ErrNoKey says that a keyring has no key to seal with.
var ErrNoKey = errors.New("flowtable: the keyring is empty")

// ErrNoRoute says that a flow cannot be stored, because its route is not known.
var ErrNoRoute = errors.New("flowtable: no valid route to store")

// Seal appends the value's bytes for the flow with key k, under the keyring's
// minting key. The error is ErrNoKey or ErrNoRoute; then dst is returned as it was.
func (v Value) Seal(dst []byte, k Key, keys *ufrag.Keyring) ([]byte, error) {
	if !v.Route.IsValid() {
		return dst, ErrNoRoute
	}
	id := keys.MintID()
	secret, ok := keys.StoreKey(id)
	if !ok {
		return dst, ErrNoKey
	}
	at := len(dst)
	dst = append(dst, valueVersion, id)
	seconds := min(max(v.Expires.Unix(), 0), 1<<32-1)
	dst = binary.BigEndian.AppendUint32(dst, uint32(seconds))
	dst = v.Route.AppendBinary(dst)
	return append(dst, valueMAC(secret, k, dst[at:])...), nil
}

// valueMAC is HMAC-SHA256 over the flow's key (client address in 16 bytes, port,
// ingress) and the value before its tag, cut to 16 bytes.
func valueMAC(secret [32]byte, k Key, head []byte) []byte {
	m := hmac.New(sha256.New, secret[:])
	p := packKey(k)
	m.Write(p[:])
	m.Write(head)
	return m.Sum(nil)[:valueTagLen]
}

// Refusal says why a value from a store is not used.
type Refusal uint8

const (
	// Accepted means: the value is good.
	Accepted Refusal = iota
	// RefusedLength means: not the length of a value of this version.
	RefusedLength
	// RefusedVersion means: a version that this relay does not know.
	RefusedVersion
	// RefusedKeyID means: made with a key that is not in the keyring.
	RefusedKeyID
	// RefusedMAC means: forged, damaged, or a value of another flow.
	RefusedMAC
	// RefusedExpired means: its life ended more than ClockSlack ago.
	RefusedExpired
	// RefusedRoute means: a route of an unknown kind under a good MAC.
	RefusedRoute

	// NumRefusals is the number of refusals, for arrays of counters.
	NumRefusals
)

var refusalNames = [NumRefusals]string{
	Accepted:       "accepted",
	RefusedLength:  "wrong length",
	RefusedVersion: "unknown version",
	RefusedKeyID:   "unknown key",
	RefusedMAC:     "wrong mac",
	RefusedExpired: "expired",
	RefusedRoute:   "invalid route",
}

// String returns the refusal as shown in statistics and metrics.
func (r Refusal) String() string {
	if r < NumRefusals {
		return refusalNames[r]
	}
	return "invalid refusal"
}

// OpenValue reads a value that was found in a store under key k. It believes
// nothing before the MAC is verified. Unless it returns Accepted, the Value is zero.
func OpenValue(b []byte, k Key, keys *ufrag.Keyring, now time.Time) (Value, Refusal) {
	if len(b) == 0 {
		return Value{}, RefusedLength
	}
	if b[0] != valueVersion {
		return Value{}, RefusedVersion
	}
	if len(b) != ValueLen {
		return Value{}, RefusedLength
	}
	secret, ok := keys.StoreKey(b[1])
	if !ok {
		return Value{}, RefusedKeyID
	}
	if !hmac.Equal(b[valueTag:], valueMAC(secret, k, b[:valueTag])) {
		return Value{}, RefusedMAC
	}
	v := Value{Expires: time.Unix(int64(binary.BigEndian.Uint32(b[valueExpiry:])), 0)}
	if now.Sub(v.Expires) > ClockSlack {
		return Value{}, RefusedExpired
	}
	var err error
	if v.Route, err = ufrag.ParseRoute(b[valueRoute:valueTag]); err != nil {
		return Value{}, RefusedRoute
	}
	return v, Accepted
}
