package ufrag

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// FuzzDecode compares Decode with the reference on any bytes.
func FuzzDecode(f *testing.F) {
	codec := NewCodec(testKeyring(f))
	keys := []Key{testKey('A'), testKey('B')}
	for _, r := range edgeRoutes() {
		u, err := codec.Encode(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(u))
	}
	for _, v := range makeVectors().Refused {
		f.Add([]byte(v.Ufrag))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		kept := bytes.Clone(in)
		got, err := codec.Decode(in)
		want, wantErr := refDecode(keys, string(in))
		if got != want || !errors.Is(err, wantErr) || !errors.Is(wantErr, err) {
			t.Fatalf("Decode(%q) = %v, %v; reference %v, %v", in, got, err, want, wantErr)
		}
		if !bytes.Equal(in, kept) {
			t.Fatalf("Decode changed its input: %q", in)
		}
		if err == nil {
			if again, err := codec.Encode(got); err != nil || in[0] == 'A' && again != string(in) {
				t.Fatalf("%q has another spelling: %q, %v", in, again, err)
			}
		}
	})
}

// FuzzBlock gets behind the cipher, where FuzzDecode does not come: it enciphers
// any block and compares what Decode makes of it.
func FuzzBlock(f *testing.F) {
	codec := NewCodec(testKeyring(f))
	keys := []Key{testKey('A'), testKey('B')}
	for _, r := range edgeRoutes() {
		f.Add(refBlock(r))
	}
	f.Add(bytes.Repeat([]byte{0xff}, 16))
	f.Fuzz(func(t *testing.T, in []byte) {
		block := make([]byte, 16)
		copy(block, in)
		for _, k := range keys {
			u := refSeal(k, block)
			got, err := codec.Decode([]byte(u))
			want, wantErr := refDecode(keys, u)
			if got != want || !errors.Is(err, wantErr) || !errors.Is(wantErr, err) {
				t.Fatalf("Decode(%q) of block %x = %v, %v; reference %v, %v", u, block, got, err, want, wantErr)
			}
		}
	})
}

// FuzzRoundTrip takes any fields, valid or not, through both codecs and the binary
// form.
func FuzzRoundTrip(f *testing.F) {
	keys := testKeyring(f)
	for _, r := range edgeRoutes() {
		f.Add(uint8(r.Kind), r.Cluster, r.Host, r.Session)
	}
	f.Add(uint8(0), uint16(0), uint64(0), uint32(0))
	f.Add(uint8(255), uint16(65535), ^uint64(0), ^uint32(0))
	f.Fuzz(func(t *testing.T, kind uint8, cluster uint16, host uint64, session uint32) {
		r := Route{Kind(kind), cluster, host, session}
		valid := (kind == 1 || kind == 2) && cluster < 4096 && host < 1<<48
		if r.IsValid() != valid {
			t.Fatalf("IsValid(%#v) = %v", r, r.IsValid())
		}
		for _, c := range []Codec{NewCodec(keys), NewPlain(keys)} {
			u, err := c.Encode(r)
			if !valid {
				if !errors.Is(err, ErrRoute) {
					t.Fatalf("%T: Encode(%#v) = %q, %v", c, r, u, err)
				}
				continue
			}
			if err != nil || !lettersAndDigits(u) {
				t.Fatalf("%T: Encode(%#v) = %q, %v", c, r, u, err)
			}
			if got, err := c.Decode([]byte(u)); err != nil || got != r {
				t.Fatalf("%T: %#v comes back as %#v, %v", c, r, got, err)
			}
		}
		if got, err := ParseRoute(r.AppendBinary(nil)); valid != (err == nil) || valid && got != r {
			t.Fatalf("%#v in binary comes back as %#v, %v", r, got, err)
		}
	})
}

// FuzzKeyFile: what parses makes a keyring and survives formatting; what does not
// parse says where, and shows nothing that could be a secret.
func FuzzKeyFile(f *testing.F) {
	text, err := FormatKeyFile('A', testKey('A'), testKey('B'))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(text[:len(text)/2])
	f.Add([]byte("A " + strings.Repeat("A", 43) + "= mint\r\n"))
	f.Add(bytes.ReplaceAll(text, []byte("B "), []byte("A ")))
	f.Add(bytes.ReplaceAll(text, []byte(" mint"), nil))
	f.Add([]byte("# nothing\n\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		mint, keys, err := ParseKeyFile(text)
		if err != nil {
			var fe *FileError
			if !errors.As(err, &fe) || fe.Line < 0 || fe.Line > bytes.Count(text, []byte("\n"))+1 {
				t.Fatalf("%q: %#v", text, err)
			}
			for _, word := range bytes.Fields(text) {
				if len(word) >= 16 && strings.Contains(err.Error(), string(word)) {
					t.Fatalf("%q: the error shows a secret: %v", text, err)
				}
			}
			return
		}
		if _, err := NewKeyring(mint, keys...); err != nil {
			t.Fatalf("%q parses but makes no keyring: %v", text, err)
		}
		out, err := FormatKeyFile(mint, keys...)
		if err != nil {
			t.Fatal(err)
		}
		mint2, keys2, err := ParseKeyFile(out)
		if err != nil || mint2 != mint || !reflect.DeepEqual(keys, keys2) {
			t.Fatalf("%q comes back as %q: %v", text, out, err)
		}
	})
}

// FuzzHostFile: what parses is usable, has one line for each host, and survives
// formatting.
func FuzzHostFile(f *testing.F) {
	f.Add([]byte("17 10.0.0.7:3478 # one\n\n18 [2001:db8::7]:3478\n"))
	f.Add([]byte("17 10.0.0.7:3478\n17 10.0.0.8:3478"))
	f.Add([]byte("281474976710656 10.0.0.7:3478"))
	f.Add([]byte("1 [::ffff:10.0.0.7]:1\r\n2 [fe80::1%lo]:1\r\n"))
	f.Add([]byte("1 0.0.0.0:1\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		table, err := ParseHostFile(text)
		if err != nil {
			var fe *FileError
			if !errors.As(err, &fe) || fe.Line < 1 || fe.Line > bytes.Count(text, []byte("\n"))+1 {
				t.Fatalf("%q: %#v", text, err)
			}
			return
		}
		used := 0
		for line := range bytes.Lines(text) {
			line, _, _ = bytes.Cut(line, []byte("#"))
			if len(bytes.TrimSpace(line)) != 0 {
				used++
			}
		}
		if used != len(table) {
			t.Fatalf("%q has %d lines but %d hosts", text, used, len(table))
		}
		var out bytes.Buffer
		for _, id := range slices.Sorted(maps.Keys(table)) {
			fmt.Fprintf(&out, "%d %s\n", id, table[id])
		}
		again, err := ParseHostFile(out.Bytes())
		if err != nil || !maps.Equal(table, again) {
			t.Fatalf("%q comes back as %q: %v", text, out.Bytes(), err)
		}
		if _, err := NewStatic(table); err != nil {
			t.Fatalf("%q parses but makes no resolver: %v", text, err)
		}
		for _, ap := range table {
			if ap.Addr().Is4In6() || ap.Addr() == netip.IPv4Unspecified() {
				t.Fatalf("%q gives %s", text, ap)
			}
		}
	})
}
