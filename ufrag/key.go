package ufrag

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"sync"

	"github.com/usher-rtc/usher/internal/config"
)

// SecretLength is the number of bytes of a key's secret.
const SecretLength = 32

// HKDF labels. They are part of the wire format.
const (
	labelBlock    = "usher v1 ufrag block"
	labelPassword = "usher v1 ice password"
	labelStore    = "usher v1 store mac"
	labelTrunk    = "usher v1 trunk tag"
)

// A Key is one entry of a [Keyring]. Printing or logging it, whichever way, shows
// the id only.
type Key struct {
	// ID is the character that names the key: one of 0-9, A-Z, a-z. It is the
	// first character of every ufrag made with the key, and the key id byte in
	// the header of trunk datagrams.
	ID byte
	// Secret is what everything else is derived from: random, not a password.
	Secret [SecretLength]byte
}

// GenerateKey returns a key with a fresh random secret. The error is a
// [*ConfigError] for an id that is not a letter or digit.
func GenerateKey(id byte) (Key, error) {
	if !validID(id) {
		return Key{}, config.Errorf("ID", "must be one of 0-9, A-Z, a-z, not %q", id)
	}
	k := Key{ID: id}
	_, _ = rand.Read(k.Secret[:]) // crypto/rand never returns an error
	return k, nil
}

// String returns the id of the key, never the secret.
func (k Key) String() string { return fmt.Sprintf("key %q", k.ID) }

// Format implements [fmt.Formatter], so that no verb shows the secret.
func (k Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, k.String()) }

// LogValue implements [slog.LogValuer], so that no log shows the secret.
func (k Key) LogValue() slog.Value { return slog.StringValue(k.String()) }

// MarshalText implements encoding.TextMarshaler for JSON and its like, so that a
// dumped configuration does not show the secret. [FormatKeyFile] is the way to
// write keys.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

func validID(id byte) bool { return digitOf[id] != notDigit }

// derived holds what comes from one key. It is immutable but for its pool.
type derived struct {
	block cipher.Block // AES-128
	trunk [16]byte
	store [32]byte
	macs  sync.Pool // of *passwordScratch
}

// passwordScratch is an HMAC under the password key and room for its input and
// output, which escape through hash.Hash.
type passwordScratch struct {
	mac hash.Hash
	in  [PlainLength]byte // the longest ufrag of any codec here
	out [sha256.Size]byte
}

func derive(k Key) *derived {
	expand := func(label string, n int) []byte {
		b, err := hkdf.Key(sha256.New, k.Secret[:], nil, label, n)
		if err != nil {
			panic(err) // lengths are constants
		}
		return b
	}
	block, err := aes.NewCipher(expand(labelBlock, 16))
	if err != nil {
		panic(err) // 16 bytes are a key
	}
	d := &derived{block: block}
	copy(d.trunk[:], expand(labelTrunk, len(d.trunk)))
	copy(d.store[:], expand(labelStore, len(d.store)))
	password := expand(labelPassword, sha256.Size)
	d.macs.New = func() any {
		return &passwordScratch{mac: hmac.New(sha256.New, password)}
	}
	return d
}

// appendPassword derives the password of a ufrag under the key that its first
// character names. The ufrag has from 1 to len(passwordScratch.in) characters.
func appendPassword(dst []byte, keys *Keyring, ufrag []byte) ([]byte, error) {
	key := keys.load().byID[ufrag[0]]
	if key == nil {
		return dst, ErrKeyID
	}
	s := key.macs.Get().(*passwordScratch)
	s.mac.Reset()
	s.mac.Write(s.in[:copy(s.in[:], ufrag)])
	dst = base64.RawStdEncoding.AppendEncode(dst, s.mac.Sum(s.out[:0])[:24])
	key.macs.Put(s)
	return dst, nil
}
