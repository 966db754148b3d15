package trunk

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
	"unicode"

	"github.com/usher-rtc/usher/ufrag"
)

var update = flag.Bool("update", false, "write testdata/vectors.json anew")

// vectors is testdata/vectors.json. Bytes are hexadecimal.
type vectors struct {
	About string `json:"about"`
	Keys  []struct {
		ID     string `json:"id"`
		Secret string `json:"secret"`
		Key    string `json:"trunkKey"`
	} `json:"keys"`
	Datagrams []vector `json:"datagrams"`
	Refused   []struct {
		Name  string `json:"name"`
		Bytes string `json:"bytes"`
		Why   string `json:"why"`
	} `json:"refused"`
}

type vector struct {
	Name   string `json:"name"`
	Header string `json:"header"`
	// Body says what follows the header, in words.
	Body []string `json:"body"`
	// Tagged is what the tag is computed over, with the tag zero.
	Tagged string `json:"tagged"`
	Tag    string `json:"tag"`
	Bytes  string `json:"bytes"`
}

// makeVectors makes all vectors from the code.
func makeVectors(t *testing.T) vectors {
	keys := keyring(t, 'A', 'A') // the first key of the vectors of package ufrag
	h := Header{Hops: DefaultHops, Epoch: 0x0123456789abcdef, Seq: 42}
	var v vectors
	v.About = "Frozen vectors of the usher trunk, version 1. Bytes are hexadecimal. Every refused datagram is refused by a keyring of all the keys, for the reason given."
	key, _ := keys.TrunkKey('A')
	s := secret(0)
	v.Keys = append(v.Keys, struct {
		ID     string `json:"id"`
		Secret string `json:"secret"`
		Key    string `json:"trunkKey"`
	}{"A", hex.EncodeToString(s[:]), hex.EncodeToString(key[:])})

	add := func(name string, datagram, tagged []byte, body ...string) {
		tagged = bytes.Clone(tagged)
		clear(tagged[tagAt:HeaderLen])
		v.Datagrams = append(v.Datagrams, vector{
			Name:   name,
			Header: "hops " + string('0'+rune(datagram[3])) + ", epoch 0123456789abcdef, sequence 42",
			Body:   body,
			Tagged: hex.EncodeToString(tagged), Tag: hex.EncodeToString(datagram[tagAt:HeaderLen]),
			Bytes: hex.EncodeToString(datagram),
		})
	}
	data := func(name string, frames []Frame, body ...string) []byte {
		d := build(t, keys, h, frames...)
		tagged := bytes.Clone(d[:HeaderLen])
		slowFrames(d[HeaderLen:], func(header []byte, _ Frame) { tagged = append(tagged, header...) })
		add(name, d, tagged, body...)
		return d
	}
	control := func(name string, d []byte, ok bool, body ...string) []byte {
		if !ok {
			t.Fatal(name)
		}
		add(name, d, d, body...)
		return d
	}

	v4 := Frame{TOS: 0xb8, Ingress: 1, Client: clientV4, Payload: []byte("hello")}
	r := route(t, "10.0.0.7:3478", 42)
	r.Cluster = 1 // the first route of the vectors of package ufrag
	small := data("one frame from an IPv4 client", []Frame{v4},
		"TOS b8, ingress 1, client 203.0.113.9:54321, payload 'hello'")
	data("one frame to an IPv6 client, validated, with two SSRCs",
		[]Frame{{Flags: ToClient | Validated, Ingress: 2, Client: clientV6, SSRCs: [4]uint32{0x11111111, 0x22222222}, NSSRC: 2, Payload: []byte("answer")}},
		"to client, validated, ingress 2, client [2001:db8::9]:54321, SSRCs 11111111 22222222, payload 'answer'")
	data("every optional field, from an edge relay",
		[]Frame{{Flags: TCP | Unverified, Ingress: 3, Client: clientV4, Route: r, Return: returnV4, SSRCs: [4]uint32{1}, NSSRC: 1, Payload: []byte("x")}},
		"TCP, unverified, ingress 3, client 203.0.113.9:54321, route to cluster 1 host 10.0.0.7:3478 session 42, return address 10.1.2.3:4000, SSRC 00000001, payload 'x'")
	data("a bundle of three, the second without payload",
		[]Frame{v4, {Ingress: 1, Client: clientV6, Return: returnV6}, {Ingress: 1, Client: clientV4, Payload: []byte("bye")}},
		"as in the first vector",
		"ingress 1, client [2001:db8::9]:54321, return address [fd00::1]:4000, no payload",
		"ingress 1, client 203.0.113.9:54321, payload 'bye'")

	hello := Hello{Nonce: 0x1112131415161718, Role: RoleRelay, Ingresses: []uint16{1, 2}}
	d, ok := hello.Append(nil, &h, keys)
	control("hello", d, ok, "nonce 1112131415161718, relay, ingresses 1 and 2")
	ack := HelloAck{Echo: 0x1112131415161718, Nonce: 0x2122232425262728, Role: RoleHost}
	d, ok = ack.Append(nil, &h, keys)
	control("hello-ack", d, ok, "echo 1112131415161718, nonce 2122232425262728, Host, no ingresses")
	announce := Announce{To: 0xfedcba9876543210, Token: 7, Flows: []Frame{
		{Ingress: 1, Client: clientV4, Route: r},
		{Flags: Validated, Ingress: 2, Client: clientV6, Route: r, SSRCs: [4]uint32{0x11111111}, NSSRC: 1},
	}}
	d, _, ok = announce.Append(nil, &h, keys, 0)
	control("announce", d, ok, "to epoch fedcba9876543210, token 7",
		"ingress 1, client 203.0.113.9:54321, route to cluster 1 host 10.0.0.7:3478 session 42",
		"validated, ingress 2, client [2001:db8::9]:54321, the same route, SSRC 11111111")
	announced := Announce{To: 0xfedcba9876543210, Token: 7, Reply: true}
	d, _, ok = announced.Append(nil, &h, keys, 0)
	control("announce, reply", d, ok, "to epoch fedcba9876543210, token 7, reply")
	keepalive := Keepalive{To: 0xfedcba9876543210, Token: 8}
	d, ok = keepalive.Append(nil, &h, keys)
	alive := control("keepalive", d, ok, "to epoch fedcba9876543210, token 8")
	goodbye := Goodbye{To: 0xfedcba9876543210, Token: 9, Reason: ReasonDraining}
	d, ok = goodbye.Append(nil, &h, keys)
	control("goodbye", d, ok, "to epoch fedcba9876543210, token 9, reason draining")
	question := Announce{To: 0xfedcba9876543210, Token: 10, Flows: []Frame{
		{Route: ufrag.Route{Kind: ufrag.KindDirectory}, Return: netip.MustParseAddrPort("10.1.2.3:4000")},
		{Route: ufrag.Route{Kind: ufrag.KindDirectory}, Return: netip.MustParseAddrPort("10.1.2.3:4000"), Ingress: 3},
	}}
	d, _, ok = question.Append(nil, &h, keys, 0)
	control("announce, question", d, ok, "to epoch fedcba9876543210, token 10",
		"return address 10.1.2.3:4000, no client, route to directory host 0 of cluster 0, session 0",
		"the same, ingress 3")

	refuse := func(name string, want Problem, d []byte) {
		if _, _, p := open(t, keys, d); p != want {
			t.Fatalf("%s: %v, want %v", name, p, want)
		}
		v.Refused = append(v.Refused, struct {
			Name  string `json:"name"`
			Bytes string `json:"bytes"`
			Why   string `json:"why"`
		}{name, hex.EncodeToString(d), want.String()})
	}
	change := func(d []byte, at int, b byte) []byte { d = bytes.Clone(d); d[at] = b; return d }
	refuse("23 bytes", ProblemShort, small[:HeaderLen-1])
	refuse("version 2", ProblemVersion, reseal(t, keys, change(small, 0, 2)))
	refuse("type 7", ProblemType, reseal(t, keys, change(small, 1, 7)))
	refuse("no hops left", ProblemHops, reseal(t, keys, change(small, 3, 0)))
	refuse("another key id", ProblemKey, change(small, 2, 'B'))
	refuse("one hop less, and the old tag", ProblemTag, change(small, 3, 3))
	refuse("another client port, and the old tag", ProblemTag, change(small, HeaderLen+11, 0))
	refuse("no frames", ProblemEmpty, reseal(t, keys, small[:HeaderLen]))
	refuse("a byte behind the last frame", ProblemFrame, reseal(t, keys, append(bytes.Clone(small), 0)))
	refuse("a payload longer than the datagram", ProblemFrame, reseal(t, keys, change(small, HeaderLen+1, 6)))
	refuse("another token, and the old tag", ProblemTag, change(alive, HeaderLen+11, 9))
	return v
}

func TestVectors(t *testing.T) {
	want := makeVectors(t)
	const path = "testdata/vectors.json"
	if *update {
		out, err := json.MarshalIndent(want, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, append(out, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got vectors
	if err := json.Unmarshal(file, &got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Error("the code makes other vectors than the frozen ones: this changes the wire")
	}

	// The frozen bytes, read by themselves.
	keys := keyring(t, 'A', 'A')
	for _, v := range got.Datagrams {
		d := unhex(t, v.Bytes)
		if _, _, p := open(t, keys, d); p != OK {
			t.Errorf("%s: %v", v.Name, p)
		}
		if tagged := unhex(t, v.Tagged); !Seal(tagged, keys) || hex.EncodeToString(tagged[tagAt:HeaderLen]) != v.Tag {
			t.Errorf("%s: tag %x", v.Name, tagged[tagAt:HeaderLen])
		}
	}
	for _, v := range got.Refused {
		if _, _, p := open(t, keys, unhex(t, v.Bytes)); p.String() != v.Why {
			t.Errorf("%s: %v, want %s", v.Name, p, v.Why)
		}
	}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestThePageHoldsTheVectors: docs/wire.md is what others implement from.
func TestThePageHoldsTheVectors(t *testing.T) {
	page, err := os.ReadFile("../../docs/wire.md")
	if err != nil {
		t.Fatal(err)
	}
	squeeze := func(s string) string {
		return strings.Map(func(r rune) rune {
			if unicode.IsSpace(r) {
				return -1
			}
			return r
		}, s)
	}
	text := squeeze(string(page))
	for _, path := range []string{"testdata/vectors.json", "../../ufrag/testdata/vectors.json"} {
		file, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var v map[string]any
		if err := json.Unmarshal(file, &v); err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, part := range []string{"keys", "ufrags", "datagrams", "refused"} {
			list, _ := v[part].([]any)
			for _, item := range list {
				for field, value := range item.(map[string]any) {
					switch field {
					case "id", "secret", "aesKey", "passwordKey", "storeKey", "trunkKey", // keys
						"route", "block", "ufrag", "password", "plain", // ufrags
						"tag", "bytes": // datagrams
						n++
						if !strings.Contains(text, squeeze(value.(string))) {
							t.Errorf("%s: %s: the page lacks %s %q", path, part, field, value)
						}
					}
				}
			}
		}
		if n == 0 {
			t.Errorf("%s: nothing looked for", path)
		}
	}
}
