package ufrag

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"reflect"
	"strings"
	"testing"
)

// The vectors are frozen: fleets mint with one version and route with another. The
// flag is for additions; a change of what is there already is a new wire format.
var updateVectors = flag.Bool("update-vectors", false, "write testdata/vectors.json")

const vectorsFile = "testdata/vectors.json"

type vectors struct {
	About   string          `json:"about"`
	Keys    []keyVector     `json:"keys"`
	Ufrags  []ufragVector   `json:"ufrags"`
	Refused []refusedVector `json:"refused"`
}

type keyVector struct {
	ID          string `json:"id"`
	Secret      string `json:"secret"`
	AESKey      string `json:"aesKey"`
	PasswordKey string `json:"passwordKey"`
	StoreKey    string `json:"storeKey"`
	TrunkKey    string `json:"trunkKey"`
}

type ufragVector struct {
	Name     string `json:"name"`
	Key      string `json:"key"`
	Kind     Kind   `json:"kind"`
	Cluster  uint16 `json:"cluster"`
	Host     string `json:"host"` // 48 bits, hexadecimal
	Session  uint32 `json:"session"`
	Route    string `json:"route"` // binary form
	Block    string `json:"block"` // before encryption
	Ufrag    string `json:"ufrag"`
	Password string `json:"password"`
	Plain    string `json:"plain"` // from the codec for debugging
}

type refusedVector struct {
	Name  string `json:"name"`
	Ufrag string `json:"ufrag"`
	Error string `json:"error"`
}

var errorNames = map[string]error{
	"length": ErrLength, "key id": ErrKeyID, "alphabet": ErrAlphabet,
	"range": ErrRange, "check": ErrCheck, "kind": ErrKind,
}

// makeVectors writes the vectors down by the reference, not by the package.
func makeVectors() vectors {
	v := vectors{About: "Frozen vectors of the usher ufrag format, version 1. Bytes are hexadecimal. " +
		"Every refused ufrag is refused by a keyring of all the keys, for the reason given."}
	keys := []Key{{ID: 'A'}, {ID: '0'}, {ID: 'z'}}
	for i := range SecretLength {
		keys[0].Secret[i] = byte(i)
		keys[1].Secret[i] = 0xff
		keys[2].Secret[i] = byte(7*i + 3)
	}
	for _, k := range keys {
		s := k.Secret[:]
		v.Keys = append(v.Keys, keyVector{
			ID: string(k.ID), Secret: hex.EncodeToString(s),
			AESKey:      hex.EncodeToString(refHKDF(s, "usher v1 ufrag block", 16)),
			PasswordKey: hex.EncodeToString(refHKDF(s, "usher v1 ice password", 32)),
			StoreKey:    hex.EncodeToString(refHKDF(s, "usher v1 store mac", 32)),
			TrunkKey:    hex.EncodeToString(refHKDF(s, "usher v1 trunk tag", 16)),
		})
	}
	add := func(name string, k Key, r Route) string {
		block := refBlock(r)
		u := refSeal(k, block)
		v.Ufrags = append(v.Ufrags, ufragVector{
			Name: name, Key: string(k.ID), Kind: r.Kind, Cluster: r.Cluster,
			Host: hex.EncodeToString(block[2:8]), Session: r.Session,
			Route: hex.EncodeToString(block[:12]), Block: hex.EncodeToString(block),
			Ufrag: u, Password: refPassword(k, u),
			Plain: string(k.ID) + hex.EncodeToString(block[:12]),
		})
		return u
	}
	good := add("IPv4 host 10.0.0.7:3478", keys[0], Route{KindIPv4, 1, 0x0a0000070d96, 42})
	add("the next session of the same host", keys[0], Route{KindIPv4, 1, 0x0a0000070d96, 43})
	add("IPv4 host, all fields at their largest", keys[0], Route{KindIPv4, maxCluster, maxHost, 1<<32 - 1})
	add("IPv4 host, all fields zero", keys[0], Route{Kind: KindIPv4})
	add("directory host 17", keys[0], Route{KindDirectory, 3, 17, 1000})
	add("directory host, all fields at their largest", keys[1], Route{KindDirectory, maxCluster, maxHost, 1<<32 - 1})
	add("directory host, all fields zero", keys[1], Route{Kind: KindDirectory})
	add("another key", keys[2], Route{KindIPv4, 1, 0x0a0000070d96, 42})

	refuse := func(name, ufrag, err string) { v.Refused = append(v.Refused, refusedVector{name, ufrag, err}) }
	block := func(i int, b byte) string {
		plain := refBlock(Route{KindDirectory, 3, 17, 1000})
		plain[i] = b
		return refSeal(keys[0], plain)
	}
	refuse("empty", "", "length")
	refuse("the first 4 characters", good[:4], "length")
	refuse("the last character missing", good[:22], "length")
	refuse("a character too many", good+"0", "length")
	refuse("a key id that is not in the keyring", "B"+good[1:], "key id")
	refuse("a key id that is not a letter or digit", "+"+good[1:], "key id")
	refuse("a character outside the alphabet first", "A/"+good[2:], "alphabet")
	refuse("a character outside the alphabet last", good[:22]+"=", "alphabet")
	refuse("2^128", "A7n42DGM5Tflk9n8mt7Fhc8", "range")
	refuse("62^22-1", "A"+strings.Repeat("z", 22), "range")
	refuse("2^128-1, a block like any other", "A7n42DGM5Tflk9n8mt7Fhc7", "check")
	refuse("the zero block", "A"+strings.Repeat("0", 22), "check")
	refuse("made with another key", "z"+good[1:], "check")
	refuse("lowest check bit set", block(15, 1), "check")
	refuse("highest check bit set", block(12, 0x80), "check")
	refuse("kind 0", block(0, 0x00), "kind")
	refuse("kind 3", block(0, 0x30), "kind")
	refuse("kind 15", block(0, 0xf0), "kind")
	return v
}

func TestVectors(t *testing.T) {
	if *updateVectors {
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if err := enc.Encode(makeVectors()); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(vectorsFile, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(vectorsFile)
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(v, makeVectors()) {
		t.Error("the reference makes other vectors than the frozen ones")
	}

	var keys []Key
	for _, kv := range v.Keys {
		k := Key{ID: kv.ID[0]}
		if n, err := hex.Decode(k.Secret[:], []byte(kv.Secret)); err != nil || n != SecretLength {
			t.Fatal(n, err)
		}
		keys = append(keys, k)
	}
	ring, err := NewKeyring(keys[0].ID, keys...)
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range v.Keys {
		store, ok1 := ring.StoreKey(kv.ID[0])
		trunk, ok2 := ring.TrunkKey(kv.ID[0])
		if !ok1 || !ok2 || hex.EncodeToString(store[:]) != kv.StoreKey || hex.EncodeToString(trunk[:]) != kv.TrunkKey {
			t.Errorf("key %s: store %x %v, trunk %x %v", kv.ID, store, ok1, trunk, ok2)
		}
	}
	codec := NewCodec(ring)
	for _, uv := range v.Ufrags {
		if err := ring.Replace(uv.Key[0], keys...); err != nil {
			t.Fatal(err)
		}
		binary, err := hex.DecodeString(uv.Route)
		if err != nil {
			t.Fatal(err)
		}
		r, err := ParseRoute(binary)
		if err != nil || r.Kind != uv.Kind || r.Cluster != uv.Cluster || r.Session != uv.Session {
			t.Errorf("%s: route %#v, %v", uv.Name, r, err)
		}
		if u, err := codec.Encode(r); err != nil || u != uv.Ufrag {
			t.Errorf("%s: Encode = %q, %v; want %q", uv.Name, u, err, uv.Ufrag)
		}
		if got, err := codec.Decode([]byte(uv.Ufrag)); err != nil || got != r {
			t.Errorf("%s: Decode = %v, %v; want %v", uv.Name, got, err, r)
		}
		if pw, err := codec.AppendPassword(nil, []byte(uv.Ufrag)); err != nil || string(pw) != uv.Password {
			t.Errorf("%s: password %q, %v; want %q", uv.Name, pw, err, uv.Password)
		}
		if u, err := NewPlain(ring).Encode(r); err != nil || u != uv.Plain {
			t.Errorf("%s: plain %q, %v; want %q", uv.Name, u, err, uv.Plain)
		}
	}
	for _, rv := range v.Refused {
		want, known := errorNames[rv.Error]
		if got, err := codec.Decode([]byte(rv.Ufrag)); !known || !errors.Is(err, want) {
			t.Errorf("%s: Decode(%q) = %v, %v; want %q", rv.Name, rv.Ufrag, got, err, rv.Error)
		}
	}
}
