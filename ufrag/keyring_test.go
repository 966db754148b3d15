package ufrag

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
)

// C23: what cannot be right is refused at the start, with a message that names it.
func TestKeyringRefusals(t *testing.T) {
	a, b := testKey('A'), testKey('B')
	twin := a
	twin.ID = 'C'
	for _, tt := range []struct {
		name  string
		mint  byte
		keys  []Key
		field string
	}{
		{"no keys", 'A', nil, "Keys"},
		{"duplicate id", 'A', []Key{a, b, {ID: 'A', Secret: b.Secret}}, "Keys[2].ID"},
		{"duplicate secret", 'A', []Key{a, twin}, "Keys[1].Secret"},
		{"zero secret", 'A', []Key{a, {ID: 'B'}}, "Keys[1].Secret"},
		{"no id", 'A', []Key{{Secret: a.Secret}}, "Keys[0].ID"},
		{"id no letter", '-', []Key{{ID: '-', Secret: a.Secret}}, "Keys[0].ID"},
		{"id above ASCII", 0xe9, []Key{{ID: 0xe9, Secret: a.Secret}}, "Keys[0].ID"},
		{"mints with nothing", 0, []Key{a}, "Mint"},
		{"mints with a missing key", 'B', []Key{a}, "Mint"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var ce *ConfigError
			k, err := NewKeyring(tt.mint, tt.keys...)
			if k != nil || !errors.As(err, &ce) || ce.Field != tt.field || ce.Problem == "" {
				t.Errorf("NewKeyring = %v, %v; want field %s", k, err, tt.field)
			}
			k = testKeyring(t)
			if err := k.Replace(tt.mint, tt.keys...); !errors.As(err, &ce) {
				t.Errorf("Replace: %v", err)
			}
			if got := k.String(); got != "keyring AB, mint A" {
				t.Errorf("after a refused Replace: %s", got)
			}
			if text, err := FormatKeyFile(tt.mint, tt.keys...); !errors.As(err, &ce) {
				t.Errorf("FormatKeyFile = %q, %v", text, err)
			}
		})
	}
}

func TestKeyringLookups(t *testing.T) {
	k := testKeyring(t)
	if k.MintID() != 'A' || string(k.IDs()) != "AB" {
		t.Errorf("mint %q, ids %q", k.MintID(), k.IDs())
	}
	seen := make(map[string]bool)
	for _, id := range k.IDs() {
		trunk, ok1 := k.TrunkKey(id)
		store, ok2 := k.StoreKey(id)
		if !ok1 || !ok2 {
			t.Errorf("key %q: %v %v", id, ok1, ok2)
		}
		seen[string(trunk[:])] = true
		seen[string(store[:16])] = true
	}
	if len(seen) != 4 {
		t.Error("two derived keys are the same")
	}
	for _, ring := range []*Keyring{k, new(Keyring), nil} {
		for _, id := range []byte{0, 'C', 0xff} {
			trunk, ok1 := ring.TrunkKey(id)
			store, ok2 := ring.StoreKey(id)
			if ok1 || ok2 || trunk != [16]byte{} || store != [32]byte{} {
				t.Errorf("%v: key %q: %x %v, %x %v", ring, id, trunk, ok1, store, ok2)
			}
		}
	}
	if new(Keyring).MintID() != 0 || len(new(Keyring).IDs()) != 0 {
		t.Error("the zero keyring is not empty")
	}
	k.IDs()[0] = 'x'
	if string(k.IDs()) != "AB" {
		t.Error("IDs shares memory")
	}
}

func TestGenerateKey(t *testing.T) {
	a, err := GenerateKey('A')
	if err != nil || a.ID != 'A' {
		t.Fatal(a, err)
	}
	b, err := GenerateKey('A')
	if err != nil || a.Secret == b.Secret || a.Secret == [SecretLength]byte{} {
		t.Fatal("not random", err)
	}
	var ce *ConfigError
	for _, id := range []byte{0, ' ', '/', ':', '@', '[', '`', '{', 0x80} {
		if _, err := GenerateKey(id); !errors.As(err, &ce) {
			t.Errorf("id %q: %v", id, err)
		}
	}
	for i := range len(alphabet) {
		if _, err := GenerateKey(alphabet[i]); err != nil {
			t.Error(err)
		}
	}
}

// The three steps of a rotation, with a relay and a transceiver that have keyrings
// of their own: at no step does a ufrag fail that should not.
func TestRotation(t *testing.T) {
	a, b := testKey('A'), testKey('B')
	ring := func() *Keyring {
		k, err := NewKeyring('A', a)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	relayKeys, hostKeys := ring(), ring()
	relay, host := NewCodec(relayKeys), NewCodec(hostKeys)
	route := Route{KindDirectory, 1, 2, 3}
	mint := func(id byte) []byte {
		u, err := host.Encode(route)
		if err != nil || u[0] != id {
			t.Fatalf("minted %q, %v; want key %q", u, err, id)
		}
		return []byte(u)
	}
	routes := func(u []byte, want error) {
		t.Helper()
		r, err := relay.Decode(u)
		if !errors.Is(err, want) || want == nil && r != route {
			t.Fatalf("relay decodes %q as %v, %v; want %v", u, r, err, want)
		}
		p1, err1 := host.AppendPassword(nil, u)
		p2, err2 := relay.AppendPassword(nil, u)
		if !errors.Is(err2, want) || want == nil && (err1 != nil || !bytes.Equal(p1, p2)) {
			t.Fatalf("passwords %q %v and %q %v", p1, err1, p2, err2)
		}
	}
	replace := func(k *Keyring, mint byte, keys ...Key) {
		t.Helper()
		if err := k.Replace(mint, keys...); err != nil {
			t.Fatal(err)
		}
	}

	old := mint('A')
	routes(old, nil)
	replace(relayKeys, 'A', a, b)
	routes(old, nil)
	routes(mint('A'), nil)
	replace(hostKeys, 'B', a, b)
	routes(old, nil)
	routes(mint('B'), nil)
	replace(relayKeys, 'B', b)
	routes(old, ErrKeyID)
	routes(mint('B'), nil)
}

// A replace is one step: nobody sees the minting key of one set with the keys of
// another.
func TestReplaceIsAtomic(t *testing.T) {
	a, b := testKey('A'), testKey('B')
	ring, err := NewKeyring('A', a)
	if err != nil {
		t.Fatal(err)
	}
	both := NewCodec(testKeyring(t))
	codec := NewCodec(ring)
	route := Route{KindDirectory, 1, 2, 3}
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				u, err := codec.Encode(route)
				if err != nil {
					t.Errorf("Encode: %v", err)
					return
				}
				if r, err := both.Decode([]byte(u)); err != nil || r != route {
					t.Errorf("minted %q: %v, %v", u, r, err)
					return
				}
				// The key may be gone by now, which is an ordinary refusal.
				if r, err := codec.Decode([]byte(u)); err == nil && r != route || err != nil && err != ErrKeyID {
					t.Errorf("Decode(%q) = %v, %v", u, r, err)
					return
				}
			}
		})
	}
	for i := range 400 {
		var err error
		if i%2 == 0 {
			err = ring.Replace('B', b)
		} else {
			err = ring.Replace('A', a)
		}
		if err != nil {
			t.Error(err)
		}
	}
	close(done)
	wg.Wait()
}

// C26: secrets do not leak by printing or logging what holds them, at any level
// and with any verb.
func TestSecretsAreNotPrinted(t *testing.T) {
	key := testKey('A')
	ring, err := NewKeyring('A', key)
	if err != nil {
		t.Fatal(err)
	}
	codec := NewCodec(ring)
	minter := NewMinter(codec, Route{Kind: KindDirectory, Host: 1})
	ufrag, password, _, err := minter.Mint()
	if err != nil {
		t.Fatal(err)
	}

	var out bytes.Buffer
	holders := []any{
		key, &key, []Key{key}, map[string]Key{"k": key}, struct{ K Key }{key},
		ring, struct{ R *Keyring }{ring}, codec, struct{ C Codec }{codec}, NewPlain(ring), minter,
	}
	for _, v := range holders {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%c", "%U", "%08b"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		fmt.Fprintln(&out, v)
		for _, h := range []slog.Handler{
			slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}),
			slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}),
		} {
			slog.New(h).Debug("holder", "v", v)
		}
		if err := json.NewEncoder(&out).Encode(v); err != nil {
			t.Error(err)
		}
	}
	for _, v := range []any{key, ring} { // for handlers that look into values
		if r := slog.AnyValue(v).Resolve(); r.Kind() != slog.KindString {
			t.Errorf("%T is logged as %v", v, r.Kind())
		}
	}
	if !strings.Contains(out.String(), "key 'A'") || !strings.Contains(out.String(), "keyring A, mint A") {
		t.Error("the ids are not printed either")
	}
	secrets := map[string]string{"ufrag": ufrag, "password": password}
	trunk, _ := ring.TrunkKey('A')
	store, _ := ring.StoreKey('A')
	for name, b := range map[string][]byte{
		"secret": key.Secret[:], "trunk key": trunk[:], "store key": store[:],
		"AES key": refHKDF(key.Secret[:], labelBlock, 16), "password key": refHKDF(key.Secret[:], labelPassword, 32),
	} {
		b = b[:8] // a part is bad enough
		secrets[name+" raw"] = string(b)
		secrets[name+" hex"] = hex.EncodeToString(b)
		secrets[name+" HEX"] = strings.ToUpper(hex.EncodeToString(b))
		secrets[name+" base64"] = base64.StdEncoding.EncodeToString(b)[:10]
		secrets[name+" decimal"] = strings.Trim(fmt.Sprint(b), "[]")
		secrets[name+" JSON"] = strings.ReplaceAll(strings.Trim(fmt.Sprint(b), "[]"), " ", ",")
		secrets[name+" Go"] = strings.Trim(strings.TrimPrefix(fmt.Sprintf("%#v", b), "[]byte"), "{}")
		secrets[name+" bits"] = strings.Trim(fmt.Sprintf("%08b", b), "[]")
	}
	for name, s := range secrets {
		if strings.Contains(out.String(), s) {
			t.Errorf("the %s is printed", name)
		}
	}
}
