package ufrag

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testKey returns a key with a secret that depends on its id alone.
func testKey(id byte) Key {
	k := Key{ID: id}
	for i := range k.Secret {
		k.Secret[i] = id + byte(i)
	}
	return k
}

// testKeyring mints with A and also knows B.
func testKeyring(tb testing.TB) *Keyring {
	tb.Helper()
	k, err := NewKeyring('A', testKey('A'), testKey('B'))
	if err != nil {
		tb.Fatal(err)
	}
	return k
}
