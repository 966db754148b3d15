package ufrag

import (
	"net/netip"
	"testing"
)

func benchCodec(b *testing.B) (Codec, []byte) {
	b.Helper()
	codec := NewCodec(testKeyring(b))
	r, err := IPv4Route(1, netip.MustParseAddrPort("10.0.0.7:3478"), 42)
	if err != nil {
		b.Fatal(err)
	}
	u, err := codec.Encode(r)
	if err != nil {
		b.Fatal(err)
	}
	return codec, []byte(u)
}

// each reports an operation as the time for one of what: a relay decodes once for
// each STUN check, a transceiver mints once for each session.
func each(b *testing.B, what string) {
	b.Helper()
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N), "ns/"+what)
	b.ReportMetric(0, "ns/op")
}

// BenchmarkDecode is what a relay pays for the route of every STUN check.
func BenchmarkDecode(b *testing.B) {
	codec, u := benchCodec(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := codec.Decode(u); err != nil {
			b.Fatal(err)
		}
	}
	each(b, "packet")
}

// BenchmarkDecodeParallel decodes on all processors, as workers do: nothing is shared.
func BenchmarkDecodeParallel(b *testing.B) {
	codec, u := benchCodec(b)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := codec.Decode(u); err != nil {
				b.Fatal(err)
			}
		}
	})
	each(b, "packet")
}

// BenchmarkDecodeGuess is what a stranger's guess costs: the whole decryption.
func BenchmarkDecodeGuess(b *testing.B) {
	codec, u := benchCodec(b)
	u[Length-1] ^= 1 // still a letter or digit for the route above
	b.ReportAllocs()
	for b.Loop() {
		if _, err := codec.Decode(u); err != ErrCheck {
			b.Fatal(err)
		}
	}
	each(b, "packet")
}

// BenchmarkPassword is what a relay pays in addition for a check that makes a flow.
func BenchmarkPassword(b *testing.B) {
	codec, u := benchCodec(b)
	buf := make([]byte, 0, PasswordLength)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := codec.AppendPassword(buf, u); err != nil {
			b.Fatal(err)
		}
	}
	each(b, "packet")
}

// BenchmarkMint is what a transceiver pays for a session's credentials.
func BenchmarkMint(b *testing.B) {
	codec, _ := benchCodec(b)
	m := NewMinter(codec, Route{Kind: KindDirectory, Host: 1})
	b.ReportAllocs()
	for b.Loop() {
		_, _, r, err := m.Mint()
		if err != nil {
			b.Fatal(err)
		}
		m.Release(r.Session)
	}
	each(b, "session")
}

// BenchmarkResolve is what a relay pays in addition to find the address, with a table
// of Hosts before the embedded address, and an allow-list.
func BenchmarkResolve(b *testing.B) {
	ap := netip.MustParseAddrPort("10.0.0.7:3478")
	static, err := NewStatic(map[uint64]netip.AddrPort{17: ap})
	if err != nil {
		b.Fatal(err)
	}
	chain := Allow([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Chain{static, EmbeddedIPv4{}})
	r, err := IPv4Route(1, ap, 42)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := chain.Resolve(r); !ok {
			b.Fatal("not resolved")
		}
	}
	each(b, "packet")
}
