package ufrag

import (
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"

	"github.com/usher-rtc/usher/internal/config"
)

// A Keyring holds the keys of a fleet: all of them decode, one mints. It is safe
// for concurrent use, look-ups take no lock, and [Keyring.Replace] changes the
// whole set at once while it is in use. Keyrings print their key ids, never their
// secrets. The zero Keyring is empty and refuses everything until Replace.
type Keyring struct {
	set atomic.Pointer[keySet]
}

type keySet struct {
	mint byte
	ids  []byte        // sorted
	byID [256]*derived // by any byte a stranger may send
}

var emptySet = &keySet{}

// NewKeyring returns a keyring with these keys, which mints with the key whose id
// is mint. The error is a [*ConfigError]: no keys, an id that is not a letter or
// digit, an id or a secret used twice, a secret left zero, a mint id without key.
func NewKeyring(mint byte, keys ...Key) (*Keyring, error) {
	k := new(Keyring)
	if err := k.Replace(mint, keys...); err != nil {
		return nil, err
	}
	return k, nil
}

// Replace swaps the whole set of keys in one step: every call that starts after
// it returns sees the new set, and no call ever sees a mixture. It validates like
// [NewKeyring] and changes nothing if it returns an error.
func (k *Keyring) Replace(mint byte, keys ...Key) error {
	set, err := newKeySet(mint, keys)
	if err != nil {
		return err
	}
	k.set.Store(set)
	return nil
}

func newKeySet(mint byte, keys []Key) (*keySet, error) {
	if err := checkKeys(mint, keys); err != nil {
		return nil, err
	}
	set := &keySet{mint: mint}
	for _, key := range keys {
		set.byID[key.ID] = derive(key)
	}
	for id, key := range set.byID {
		if key != nil {
			set.ids = append(set.ids, byte(id))
		}
	}
	return set, nil
}

func checkKeys(mint byte, keys []Key) error {
	if len(keys) == 0 {
		return config.Errorf("Keys", "must have at least one key")
	}
	minting := false
	for i, key := range keys {
		if !validID(key.ID) {
			return config.Errorf(fmt.Sprintf("Keys[%d].ID", i), "must be one of 0-9, A-Z, a-z, not %q", key.ID)
		}
		if key.Secret == [SecretLength]byte{} {
			return config.Errorf(fmt.Sprintf("Keys[%d].Secret", i), "is all zeros; key %q needs %d random bytes", key.ID, SecretLength)
		}
		for j, other := range keys[:i] {
			if other.ID == key.ID {
				return config.Errorf(fmt.Sprintf("Keys[%d].ID", i), "%q is also the id of Keys[%d]", key.ID, j)
			}
			if other.Secret == key.Secret {
				return config.Errorf(fmt.Sprintf("Keys[%d].Secret", i), "key %q has the same secret as key %q", key.ID, other.ID)
			}
		}
		minting = minting || key.ID == mint
	}
	if !minting {
		return config.Errorf("Mint", "no key has the id %q", mint)
	}
	return nil
}

func (k *Keyring) load() *keySet {
	if k != nil {
		if set := k.set.Load(); set != nil {
			return set
		}
	}
	return emptySet
}

// MintID returns the id of the minting key, 0 if the keyring is empty.
func (k *Keyring) MintID() byte { return k.load().mint }

// IDs returns the ids of all keys in ascending order, in a slice of the caller's.
func (k *Keyring) IDs() []byte { return append([]byte(nil), k.load().ids...) }

// TrunkKey returns the SipHash key for the tags of trunk datagrams under the key
// with this id. The key id byte of the trunk header is this id. It neither locks
// nor allocates.
func (k *Keyring) TrunkKey(id byte) (key [16]byte, ok bool) {
	if d := k.load().byID[id]; d != nil {
		return d.trunk, true
	}
	return key, false
}

// StoreKey returns the key for the MACs that bind the values of a flow store to
// their keys, under the key with this id. It neither locks nor allocates.
func (k *Keyring) StoreKey(id byte) (key [32]byte, ok bool) {
	if d := k.load().byID[id]; d != nil {
		return d.store, true
	}
	return key, false
}

// String lists the key ids, never the secrets.
func (k *Keyring) String() string {
	set := k.load()
	if len(set.ids) == 0 {
		return "keyring (empty)"
	}
	return fmt.Sprintf("keyring %s, mint %c", set.ids, set.mint)
}

// Format implements [fmt.Formatter], so that no verb shows a secret.
func (k *Keyring) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, k.String()) }

// LogValue implements [slog.LogValuer], so that no log shows a secret.
func (k *Keyring) LogValue() slog.Value { return slog.StringValue(k.String()) }
