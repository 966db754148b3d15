package flowtable

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/usher-rtc/usher/ufrag"
)

// The vectors are frozen: relays of different versions share a store. The flag is
// for additions; a change of what is there already is a new version.
var updateVectors = flag.Bool("update-vectors", false, "write testdata/vectors.json")

const vectorsFile = "testdata/vectors.json"

type valueVectors struct {
	About    string          `json:"about"`
	Keys     []keyVector     `json:"keys"`
	Values   []valueVector   `json:"values"`
	Refused  []refusedVector `json:"refused"`
	OpenedAt int64           `json:"openedAt"`
}

type keyVector struct {
	ID     string `json:"id"`
	Secret string `json:"secret"`
}

type valueVector struct {
	Name    string `json:"name"`
	Key     string `json:"key"`
	Ingress uint16 `json:"ingress"`
	Client  string `json:"client"`
	Text    string `json:"text"`
	Expires int64  `json:"expires"`
	Route   string `json:"route"`
	MACed   string `json:"maced"`
	Value   string `json:"value"`
}

type refusedVector struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	Why   string `json:"why"`
}

var vectorKeys = func() []ufrag.Key {
	keys := []ufrag.Key{{ID: 'A'}, {ID: 'z'}}
	for i := range ufrag.SecretLength {
		keys[0].Secret[i] = byte(i)
		keys[1].Secret[i] = byte(7*i + 3)
	}
	return keys
}()

const vectorTime = 1_800_000_000

func vectorRing(t *testing.T, mint byte) *ufrag.Keyring {
	t.Helper()
	ring, err := ufrag.NewKeyring(mint, vectorKeys...)
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

// makeVectors writes the vectors down by the text of docs/wire.md, not by Seal.
func makeVectors(t *testing.T) valueVectors {
	v := valueVectors{
		About: "Frozen vectors of the values in flow stores, version 1. Bytes are hexadecimal, times Unix seconds. " +
			"The refused are found under the key of the first value, at openedAt.",
		OpenedAt: vectorTime,
	}
	for _, k := range vectorKeys {
		v.Keys = append(v.Keys, keyVector{string(k.ID), hex.EncodeToString(k.Secret[:])})
	}
	unhex := func(s string) []byte {
		b, err := hex.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	// seal returns what the MAC is over, and the value.
	seal := func(key byte, client16, port, ingress, expires, route string) (string, string) {
		secret, _ := vectorRing(t, key).StoreKey(key)
		head := append([]byte{1, key}, unhex(expires+route)...)
		maced := append(unhex(client16+port+ingress), head...)
		m := hmac.New(sha256.New, secret[:])
		m.Write(maced)
		return hex.EncodeToString(maced), hex.EncodeToString(append(head, m.Sum(nil)[:16]...))
	}
	const (
		client4 = "00000000000000000000ffffcb007109" // 203.0.113.9
		client6 = "20010db8000000000000000000000009"
		expires = "6b49d458" // vectorTime + 600
		route   = "10010a0000070d960000002a"
	)
	add := func(name string, key byte, ingress uint16, client, text, client16, port, in, route string) string {
		maced, value := seal(key, client16, port, in, expires, route)
		v.Values = append(v.Values, valueVector{
			Name: name, Key: string(key), Ingress: ingress, Client: client, Text: text,
			Expires: vectorTime + 600, Route: route, MACed: maced, Value: value,
		})
		return value
	}
	good := add("an IPv4 client", 'A', 7, "203.0.113.9:54321", "7/203.0.113.9:54321", client4, "d431", "0007", route)
	add("an IPv6 client, another key and a directory host", 'z', 65535, "[2001:db8::9]:1", "65535/[2001:db8::9]:1", client6, "0001", "ffff", "2003000000000011000003e8")

	other := func(client16, port, ingress, expires, route string) string {
		_, value := seal('A', client16, port, ingress, expires, route)
		return value
	}
	refuse := func(name, value, why string) { v.Refused = append(v.Refused, refusedVector{name, value, why}) }
	refuse("cut by a byte", good[:len(good)-2], "wrong length")
	refuse("a byte too many", good+"00", "wrong length")
	refuse("version 2", "02"+good[2:], "unknown version")
	refuse("text", hex.EncodeToString([]byte("10.0.0.7:3478")), "unknown version")
	refuse("a key that is not in the keyring", good[:2]+"42"+good[4:], "unknown key")
	refuse("another key's id", good[:2]+"7a"+good[4:], "wrong mac")
	refuse("a bit of the expiry", good[:4]+"7"+good[5:], "wrong mac")
	refuse("a bit of the session", strings.Replace(good, "0000002a", "0000002b", 1), "wrong mac")
	refuse("a bit of the tag", good[:len(good)-1]+flip(good[len(good)-1]), "wrong mac")
	refuse("the value of another port", other(client4, "d432", "0007", expires, route), "wrong mac")
	refuse("the value of another ingress", other(client4, "d431", "0008", expires, route), "wrong mac")
	refuse("the value of another address", other(client6, "d431", "0007", expires, route), "wrong mac")
	refuse("expired 61 seconds ago", other(client4, "d431", "0007", "6b49d1c3", route), "expired")
	refuse("a route of kind 3", other(client4, "d431", "0007", expires, "3"+route[1:]), "invalid route")
	return v
}

func flip(hexDigit byte) string {
	if hexDigit == '0' {
		return "1"
	}
	return "0"
}

func TestValueVectors(t *testing.T) {
	if *updateVectors {
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if err := enc.Encode(makeVectors(t)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(vectorsFile, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	v := readVectors(t)
	if !reflect.DeepEqual(v, makeVectors(t)) {
		t.Error("the text makes other vectors than the frozen ones")
	}
	now := time.Unix(v.OpenedAt, 0)
	for _, vec := range v.Values {
		k := Key{Client: netip.MustParseAddrPort(vec.Client), Ingress: vec.Ingress}
		if got := k.String(); got != vec.Text {
			t.Errorf("%s: key %q, want %q", vec.Name, got, vec.Text)
		}
		binary, _ := hex.DecodeString(vec.Route)
		route, err := ufrag.ParseRoute(binary)
		if err != nil {
			t.Fatal(err)
		}
		want := Value{Route: route, Expires: time.Unix(vec.Expires, 0)}
		ring := vectorRing(t, vec.Key[0])
		got, err := want.Seal([]byte("x"), k, ring)
		if err != nil || hex.EncodeToString(got) != "78"+vec.Value {
			t.Errorf("%s: sealed %x, %v; want %s after the x", vec.Name, got, err, vec.Value)
		}
		raw, _ := hex.DecodeString(vec.Value)
		if len(raw) != ValueLen {
			t.Errorf("%s: %d bytes", vec.Name, len(raw))
		}
		if v, why := OpenValue(raw, k, ring, now); why != Accepted || v != want {
			t.Errorf("%s: opened %+v, %v", vec.Name, v, why)
		}
		if _, why := OpenValue(raw, k, ring, want.Expires.Add(ClockSlack)); why != Accepted {
			t.Errorf("%s: within the slack: %v", vec.Name, why)
		}
		// The mapped form of a client is the same client.
		mapped := Key{Client: netip.AddrPortFrom(netip.AddrFrom16(k.Client.Addr().As16()), k.Client.Port()), Ingress: k.Ingress}
		if _, why := OpenValue(raw, mapped, ring, now); why != Accepted {
			t.Errorf("%s: mapped: %v", vec.Name, why)
		}
	}
	first := Key{Client: netip.MustParseAddrPort(v.Values[0].Client), Ingress: v.Values[0].Ingress}
	for _, vec := range v.Refused {
		raw, err := hex.DecodeString(vec.Value)
		if err != nil {
			t.Fatal(err)
		}
		if got, why := OpenValue(raw, first, vectorRing(t, 'A'), now); why.String() != vec.Why || got != (Value{}) {
			t.Errorf("%s: %+v, %q, want %q", vec.Name, got, why, vec.Why)
		}
	}
}

func readVectors(t *testing.T) (v valueVectors) {
	t.Helper()
	text, err := os.ReadFile(vectorsFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestThePageHoldsTheValueVectors: docs/wire.md is what others implement from.
func TestThePageHoldsTheValueVectors(t *testing.T) {
	squeeze := func(s string) string {
		return strings.Map(func(r rune) rune {
			if unicode.IsSpace(r) {
				return -1
			}
			return r
		}, s)
	}
	page, err := os.ReadFile("../docs/wire.md")
	if err != nil {
		t.Fatal(err)
	}
	text := squeeze(string(page))
	v := readVectors(t)
	for _, vec := range v.Values {
		for _, s := range []string{vec.Text, vec.Route, vec.MACed, vec.Value} {
			if !strings.Contains(text, squeeze(s)) {
				t.Errorf("%s: the page lacks %s", vec.Name, s)
			}
		}
	}
	for _, vec := range v.Refused {
		if !strings.Contains(text, squeeze(vec.Value)) || !strings.Contains(text, squeeze("`"+vec.Why+"`")) {
			t.Errorf("%s: the page lacks %s or `%s`", vec.Name, vec.Value, vec.Why)
		}
	}
}

func TestValuesNeedRouteAndKey(t *testing.T) {
	k := Key{Client: netip.MustParseAddrPort("203.0.113.9:54321"), Ingress: 7}
	route := ufrag.Route{Kind: ufrag.KindDirectory, Host: 1}
	if b, err := (Value{}).Seal([]byte("x"), k, vectorRing(t, 'A')); err != ErrNoRoute || string(b) != "x" {
		t.Errorf("no route: %q, %v", b, err)
	}
	if b, err := (Value{Route: route}).Seal([]byte("x"), k, new(ufrag.Keyring)); err != ErrNoKey || string(b) != "x" {
		t.Errorf("no key: %q, %v", b, err)
	}
	// Times that do not fit are clipped, not wrapped.
	for at, want := range map[time.Time]time.Time{
		time.Unix(-5, 0):    time.Unix(0, 0),
		time.Unix(1<<40, 0): time.Unix(1<<32-1, 0),
	} {
		b, err := Value{Route: route, Expires: at}.Seal(nil, k, vectorRing(t, 'A'))
		if err != nil {
			t.Fatal(err)
		}
		if v, why := OpenValue(b, k, vectorRing(t, 'A'), time.Unix(0, 0)); why != Accepted || !v.Expires.Equal(want) {
			t.Errorf("%v: %v, %v", at, v.Expires, why)
		}
	}
}

func TestEveryRefusalHasAName(t *testing.T) {
	seen := map[string]bool{}
	for r := range NumRefusals {
		if s := r.String(); s == "" || seen[s] {
			t.Errorf("refusal %d is called %q", r, s)
		} else {
			seen[s] = true
		}
	}
	if NumRefusals.String() != "invalid refusal" {
		t.Error("a number beyond has a name")
	}
}

// Whatever is in the store: no panic, and nothing is believed but what was sealed
// under this key.
func FuzzOpenValue(f *testing.F) {
	ring, err := ufrag.NewKeyring('A', vectorKeys...)
	if err != nil {
		f.Fatal(err)
	}
	k := Key{Client: netip.MustParseAddrPort("203.0.113.9:54321"), Ingress: 7}
	now := time.Unix(vectorTime, 0)
	good, err := Value{Route: ufrag.Route{Kind: ufrag.KindDirectory, Host: 9}, Expires: now}.Seal(nil, k, ring)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(nil))
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add(make([]byte, 1<<20))
	f.Fuzz(func(t *testing.T, b []byte) {
		v, why := OpenValue(b, k, ring, now)
		if (why == Accepted) != bytes.Equal(b, good) {
			t.Errorf("%x: %v", b, why)
		}
		if why != Accepted && v != (Value{}) {
			t.Errorf("%x: refused, and yet %+v", b, v)
		}
	})
}

// BenchmarkOpenValue is what a flow from the store costs, outside of the packet path.
func BenchmarkOpenValue(b *testing.B) {
	ring, err := ufrag.NewKeyring('A', vectorKeys...)
	if err != nil {
		b.Fatal(err)
	}
	k := Key{Client: netip.MustParseAddrPort("203.0.113.9:54321"), Ingress: 7}
	now := time.Unix(vectorTime, 0)
	good, err := Value{Route: ufrag.Route{Kind: ufrag.KindDirectory, Host: 9}, Expires: now}.Seal(nil, k, ring)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, why := OpenValue(good, k, ring, now); why != Accepted {
			b.Fatal(why)
		}
	}
}
