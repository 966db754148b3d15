package flowtable

import (
	"context"
	"net/netip"
	"strconv"
	"time"
)

// FlowStore remembers flows outside a relay, so that a relay that was restarted,
// or another one that a balancer moved a client to, knows whose packets it gets
// before the client's next check. It is a help and never an authority: relays
// believe no value without its MAC, and lose nothing but recovery time when the
// store is down, slow, empty or wrong.
//
// A relay calls Save from one goroutine and Load from a few others, all off the
// packet path and always with a deadline. Both must return promptly once ctx is
// done, whatever the network does.
//
// The caller owns all slices it passes; a store keeps none of them after it has
// returned. Whoever made a store closes it, after the relays that use it.
// Package flowtest has the tests that every implementation must pass.
type FlowStore interface {
	// Save keeps each value under its key for ttl from now, in place of an
	// earlier one; if a key occurs twice, the last counts. Values are opaque and
	// have 1 to MaxValueLen bytes. Values outside that, and a ttl below a
	// millisecond, are an error. After an error some entries may have been saved.
	Save(ctx context.Context, entries []Entry, ttl time.Duration) error
	// Load returns the value of each key, in the order of the keys, and nil for a
	// key that has none. With an error, the values that are not nil are good, and
	// nothing is known about the others. A value longer than MaxValueLen, which
	// somebody else must have written, may be cut, but not to a length that is
	// allowed; it is for the caller to refuse.
	Load(ctx context.Context, keys []Key) ([][]byte, error)
}

// RunIdentifier is a [FlowStore] that can tell when it may have lost everything. It is
// optional: without it, a relay that sees no write fail finds out with the next
// refresh, and a store that was restarted empty lacks a flow for a quarter of its
// entry's life.
type RunIdentifier interface {
	// RunID returns a text that stays the same until the store, or a part of it, is
	// another process and may be empty. An error says nothing. A relay calls it from
	// one goroutine every few seconds, with a deadline, and writes all live flows again,
	// at the pace of a recovery, when the text has changed.
	RunID(ctx context.Context) (string, error)
}

// Entry is a value and its key.
type Entry struct {
	Key   Key
	Value []byte
}

// MaxValueLen is the most bytes of a value in a [FlowStore].
const MaxValueLen = 128

// Canonical returns the key in the one form that all spellings of a client share:
// an IPv4-mapped IPv6 address as IPv4, and no zone.
func (k Key) Canonical() Key {
	k.Client = netip.AddrPortFrom(k.Client.Addr().Unmap().WithZone(""), k.Client.Port())
	return k
}

// String returns the ingress id and the client, as in "7/203.0.113.9:54321". It is
// the same for every spelling of the client's address, and the name of the flow in
// stores whose keys are text.
func (k Key) String() string { return string(k.AppendText(nil)) }

// AppendText appends what String returns.
func (k Key) AppendText(dst []byte) []byte {
	dst = strconv.AppendUint(dst, uint64(k.Ingress), 10)
	dst = append(dst, '/')
	return k.Canonical().Client.AppendTo(dst)
}
