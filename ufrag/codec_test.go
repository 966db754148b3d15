package ufrag

import (
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/usher-rtc/usher/internal/race"
)

// edgeRoutes are the extremes of every field.
func edgeRoutes() []Route {
	var routes []Route
	for _, kind := range []Kind{KindIPv4, KindDirectory} {
		for _, cluster := range []uint16{0, 1, maxCluster} {
			for _, host := range []uint64{0, 1, 0xffff, 0x10000, 0x0a0000070d96, maxHost - 1, maxHost} {
				for _, session := range []uint32{0, 1, 1 << 31, 1<<32 - 1} {
					routes = append(routes, Route{kind, cluster, host, session})
				}
			}
		}
	}
	return routes
}

func randomRoute(r *rand.Rand) Route {
	return Route{
		Kind:    Kind(1 + r.IntN(2)),
		Cluster: uint16(r.IntN(maxCluster + 1)),
		Host:    r.Uint64() & maxHost,
		Session: r.Uint32(),
	}
}

// C19: a ufrag is never shorter (leading zeros lost) nor longer than browsers
// take, whatever the route, and comes back as the same route.
func TestRoundTripOfEveryRoute(t *testing.T) {
	keys := testKeyring(t)
	routes := edgeRoutes()
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		routes = append(routes, randomRoute(rng))
	}
	for _, c := range []struct {
		codec  Codec
		length int
	}{{NewCodec(keys), Length}, {NewPlain(keys), PlainLength}} {
		for _, r := range routes {
			u, err := c.codec.Encode(r)
			if err != nil {
				t.Fatalf("%T: Encode(%v): %v", c.codec, r, err)
			}
			if len(u) != c.length || len(u) < 4 || len(u) > 32 || !lettersAndDigits(u) {
				t.Fatalf("%T: Encode(%v) = %q", c.codec, r, u)
			}
			got, err := c.codec.Decode([]byte(u))
			if err != nil || got != r {
				t.Fatalf("%T: Decode(Encode(%v)) = %v, %v", c.codec, r, got, err)
			}
			pw, err := c.codec.AppendPassword(nil, []byte(u))
			if err != nil || len(pw) != PasswordLength {
				t.Fatalf("%T: password of %v = %q, %v", c.codec, r, pw, err)
			}
		}
	}
}

func lettersAndDigits(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) < 0
}

func TestEncodeAgainstReference(t *testing.T) {
	key := testKey('A')
	codec := NewCodec(testKeyring(t))
	for _, r := range edgeRoutes() {
		u, err := codec.Encode(r)
		if want := refSeal(key, refBlock(r)); err != nil || u != want {
			t.Fatalf("Encode(%v) = %q, %v; want %q", r, u, err, want)
		}
		pw, err := codec.AppendPassword([]byte("x"), []byte(u))
		if want := "x" + refPassword(key, u); err != nil || string(pw) != want {
			t.Fatalf("AppendPassword(%q) = %q, %v; want %q", u, pw, err, want)
		}
	}
}

func TestBase62Limits(t *testing.T) {
	for _, v := range [][2]uint64{{0, 0}, {0, 1}, {0, limb62 - 1}, {0, limb62}, {1, 0}, {1 << 63, 0}, {^uint64(0), 0}, {0, ^uint64(0)}, {^uint64(0), ^uint64(0)}} {
		var s [digits62]byte
		encode62(&s, v[0], v[1])
		hi, lo, err := decode62(&s)
		if err != nil || hi != v[0] || lo != v[1] {
			t.Errorf("%x: %s decodes to %x %x, %v", v, s[:], hi, lo, err)
		}
	}
	// Every pair of first digits, with the smallest rest, the largest, and one in
	// between: the overflow shows in another place each.
	limit := new(big.Int).Lsh(big.NewInt(1), 128)
	for i := range 62 * 62 {
		for _, rest := range []string{strings.Repeat("0", 20), "C" + strings.Repeat("0", 19), strings.Repeat("z", 20)} {
			text := string([]byte{alphabet[i/62], alphabet[i%62]}) + rest
			want := big.NewInt(int64(i))
			for _, c := range []byte(rest) {
				want.Add(want.Mul(want, big.NewInt(62)), big.NewInt(int64(strings.IndexByte(refAlphabet, c))))
			}
			hi, lo, err := decode62((*[digits62]byte)([]byte(text)))
			got := new(big.Int).SetUint64(hi)
			got.Add(got.Lsh(got, 64), new(big.Int).SetUint64(lo))
			if want.Cmp(limit) >= 0 && err != ErrRange || want.Cmp(limit) < 0 && (err != nil || got.Cmp(want) != 0) {
				t.Errorf("%s decodes to %d, %v; want %d", text, got, err, want)
			}
		}
	}
}

// C21, C23: whatever is wrong is an ordinary refusal with its own reason; there is
// no match by prefix and no second try with another key.
func TestRefusals(t *testing.T) {
	keys := testKeyring(t)
	codec, plain := NewCodec(keys), NewPlain(keys)
	r := Route{KindDirectory, 3, 17, 42}
	good, err := codec.Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	shown, err := plain.Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	block := func(f func(b []byte)) string {
		b := refBlock(r)
		f(b)
		return refSeal(testKey('A'), b)
	}
	for _, tt := range []struct {
		name  string
		codec Codec
		ufrag string
		want  error
	}{
		{"empty", codec, "", ErrLength},
		{"first 4", codec, good[:4], ErrLength},
		{"first 8", codec, good[:8], ErrLength},
		{"first 16", codec, good[:16], ErrLength},
		{"all but one", codec, good[:Length-1], ErrLength},
		{"one more", codec, good + "0", ErrLength},
		{"much more", codec, strings.Repeat(good, 20), ErrLength},
		{"key id 0", codec, "0" + good[1:], ErrKeyID},
		{"key id never issued", codec, "z" + good[1:], ErrKeyID},
		{"key id zero byte", codec, "\x00" + good[1:], ErrKeyID},
		{"key id no letter", codec, "-" + good[1:], ErrKeyID},
		{"key id above ASCII", codec, "\xff" + good[1:], ErrKeyID},
		{"other key", codec, "B" + good[1:], ErrCheck},
		{"first digit", codec, "A/" + good[2:], ErrAlphabet},
		{"second digit", codec, good[:2] + "-" + good[3:], ErrAlphabet},
		{"middle digit", codec, good[:12] + ":" + good[13:], ErrAlphabet},
		{"last digit", codec, good[:Length-1] + "\xc3", ErrAlphabet},
		{"2^128", codec, "A7n42DGM5Tflk9n8mt7Fhc8", ErrRange},
		{"largest digits", codec, "A" + strings.Repeat("z", 22), ErrRange},
		{"2^128-1", codec, "A7n42DGM5Tflk9n8mt7Fhc7", ErrCheck},
		{"zero", codec, "A" + strings.Repeat("0", 22), ErrCheck},
		{"check 1", codec, block(func(b []byte) { b[15] = 1 }), ErrCheck},
		{"check top bit", codec, block(func(b []byte) { b[12] = 0x80 }), ErrCheck},
		{"kind 0", codec, block(func(b []byte) { b[0] &= 0x0f }), ErrKind},
		{"kind 3", codec, block(func(b []byte) { b[0] = 0x30 }), ErrKind},
		{"kind 15", codec, block(func(b []byte) { b[0] |= 0xf0 }), ErrKind},
		{"plain ufrag", codec, shown, ErrLength},

		{"plain: block ufrag", plain, good, ErrLength},
		{"plain: truncated", plain, shown[:PlainLength-1], ErrLength},
		{"plain: key id", plain, "z" + shown[1:], ErrKeyID},
		{"plain: upper case", plain, shown[:PlainLength-2] + "2A", ErrAlphabet},
		{"plain: not hexadecimal", plain, shown[:PlainLength-1] + "g", ErrAlphabet},
		{"plain: kind", plain, "A0" + shown[2:], ErrKind},
		{"plain: not made by NewPlain", new(Plain), shown, ErrKeyID},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.codec.Decode([]byte(tt.ufrag))
			if !errors.Is(err, tt.want) || got != (Route{}) {
				t.Errorf("Decode(%q) = %v, %v; want %v", tt.ufrag, got, err, tt.want)
			}
		})
	}
	if got, err := codec.Decode([]byte(good)); err != nil || got != r {
		t.Errorf("the good one: %v, %v", got, err)
	}
}

func TestEncodeRefusals(t *testing.T) {
	keys := testKeyring(t)
	for _, r := range []Route{
		{},
		{Kind: 3, Host: 1},
		{Kind: 16 + KindIPv4, Host: 1},
		{Kind: KindIPv4, Cluster: maxCluster + 1},
		{Kind: KindDirectory, Host: maxHost + 1},
	} {
		for _, c := range []Codec{NewCodec(keys), NewPlain(keys)} {
			if u, err := c.Encode(r); !errors.Is(err, ErrRoute) {
				t.Errorf("%T: Encode(%#v) = %q, %v", c, r, u, err)
			}
		}
	}
	ok := Route{Kind: KindDirectory}
	for _, c := range []Codec{NewCodec(nil), NewCodec(new(Keyring)), NewPlain(nil), new(Plain)} {
		if u, err := c.Encode(ok); !errors.Is(err, ErrKeyID) {
			t.Errorf("%T without keys: %q, %v", c, u, err)
		}
		if pw, err := c.AppendPassword(nil, make([]byte, Length)); err == nil {
			t.Errorf("%T without keys: password %q", c, pw)
		}
	}
}

func TestPasswordRefusals(t *testing.T) {
	keys := testKeyring(t)
	for _, tt := range []struct {
		codec Codec
		ufrag string
		want  error
	}{
		{NewCodec(keys), "", ErrLength},
		{NewCodec(keys), strings.Repeat("A", Length-1), ErrLength},
		{NewCodec(keys), strings.Repeat("A", Length+1), ErrLength},
		{NewCodec(keys), strings.Repeat("C", Length), ErrKeyID},
		{NewPlain(keys), strings.Repeat("A", Length), ErrLength},
		{NewPlain(keys), strings.Repeat("C", PlainLength), ErrKeyID},
	} {
		dst, err := tt.codec.AppendPassword([]byte("kept"), []byte(tt.ufrag))
		if !errors.Is(err, tt.want) || string(dst) != "kept" {
			t.Errorf("%T: AppendPassword(%q) = %q, %v; want %v", tt.codec, tt.ufrag, dst, err, tt.want)
		}
	}
}

// Decode and AppendPassword run for packets from strangers.
func TestDecodeDoesNotAllocate(t *testing.T) {
	race.NoAllocs(t)
	keys := testKeyring(t)
	var codec Codec = NewCodec(keys)
	text, err := codec.Encode(Route{KindDirectory, 3, 17, 42})
	if err != nil {
		t.Fatal(err)
	}
	good := []byte(text)
	bad := append([]byte("B"), good[1:]...)
	dst := make([]byte, 0, PasswordLength)
	for name, f := range map[string]func(){
		"good":      func() { _, _ = codec.Decode(good) },
		"bad":       func() { _, _ = codec.Decode(bad) },
		"short":     func() { _, _ = codec.Decode(good[:4]) },
		"password":  func() { _, _ = codec.AppendPassword(dst, good) },
		"trunk key": func() { _, _ = keys.TrunkKey('A') },
		"store key": func() { _, _ = keys.StoreKey('A') },
	} {
		if n := testing.AllocsPerRun(1000, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	codec := NewCodec(testKeyring(t))
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 0))
			for range 500 {
				r := randomRoute(rng)
				u, err := codec.Encode(r)
				if err != nil {
					t.Error(err)
					return
				}
				if got, err := codec.Decode([]byte(u)); err != nil || got != r {
					t.Errorf("Decode(Encode(%v)) = %v, %v", r, got, err)
					return
				}
				pw, err := codec.AppendPassword(nil, []byte(u))
				if want := refPassword(testKey('A'), u); err != nil || string(pw) != want {
					t.Errorf("password %q, %v; want %q", pw, err, want)
					return
				}
			}
		})
	}
	wg.Wait()
}

// C26: what a log may show of a ufrag.
func TestShort(t *testing.T) {
	for in, want := range map[string]string{
		"A7n42DGM5Tflk9n8mt7Fhc7":  "A7n42D…",
		"abcdefghijkl":             "abcdef…",
		"abcd":                     "ab…",
		"x":                        "…",
		"":                         "…",
		"a\nb\x1b[31m\xffabcdefgh": "a?b?[3…",
	} {
		if got := Short(in); got != want {
			t.Errorf("Short(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestKindString(t *testing.T) {
	if got := fmt.Sprint(KindIPv4, KindDirectory, Kind(9)); got != "ipv4 directory kind(9)" {
		t.Error(got)
	}
}
