package stun

import (
	"net/netip"
	"testing"
)

func TestNothingAllocates(t *testing.T) {
	var (
		a    Authenticator
		b    Builder
		m    Message
		buf  = make([]byte, 0, 1500)
		addr = netip.MustParseAddrPort("[2001:db8::1]:3478")
		long = make([]byte, 100) // a password longer than a block of SHA-1
		junk = unhex(t, "80600001 00000002 aabbccdd 00")
	)
	packet := check(nil, &a, "abcd", "efgh", func(b *Builder) { b.AddRaw(0x7000, nil) })
	types := []uint16{1, 2}
	for name, f := range map[string]func(){
		"Parse": func() {
			if Parse(packet, &m) != OK {
				t.Error("refused")
			}
			m.SplitUsername()
			m.UnknownRequired()
		},
		"Parse of a truncated packet": func() { Parse(packet[:30], &m) },
		"Check": func() {
			if Parse(packet, &m) != OK || !a.Check(&m, goldenPassword) || a.Check(&m, long) {
				t.Error("wrong")
			}
		},
		"Builder": func() {
			b.Reset(buf, BindingSuccess, goldenID)
			b.AddUsername("abcd", "efgh")
			b.AddPriority(1)
			b.AddControlled(2)
			b.AddControlling(3)
			b.AddUseCandidate()
			b.AddXORMappedAddress(addr)
			b.AddErrorCode(487, "Role Conflict")
			b.AddUnknownAttributes(types)
			b.AddRaw(AttrDTLSInSTUN, long)
			b.AddIntegrity(&a, goldenPassword)
			b.AddFingerprint()
			if b.Bytes() == nil {
				t.Error("spoilt")
			}
		},
		"Classify and SSRC": func() {
			if Classify(junk) != ClassRTP {
				t.Error("wrong")
			}
			SSRC(junk)
		},
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkParse(b *testing.B) {
	packet := goldenMessage()
	var m Message
	b.ReportAllocs()
	for b.Loop() {
		if Parse(packet, &m) != OK {
			b.Fatal("refused")
		}
	}
	perPacket(b)
}

func BenchmarkParseAndCheck(b *testing.B) {
	packet := goldenMessage()
	var m Message
	var a Authenticator
	b.ReportAllocs()
	for b.Loop() {
		if Parse(packet, &m) != OK || !a.Check(&m, goldenPassword) {
			b.Fatal("refused")
		}
	}
	perPacket(b)
}

func BenchmarkBuildSuccess(b *testing.B) {
	buf := make([]byte, 0, 256)
	addr := netip.MustParseAddrPort("192.0.2.1:3478")
	var w Builder
	var a Authenticator
	b.ReportAllocs()
	for b.Loop() {
		w.Reset(buf, BindingSuccess, goldenID)
		w.AddXORMappedAddress(addr)
		w.AddIntegrity(&a, goldenPassword)
		w.AddFingerprint()
		if w.Bytes() == nil {
			b.Fatal("spoilt")
		}
	}
	perPacket(b)
}

func BenchmarkClassify(b *testing.B) {
	packet := unhex(b, "80600001 00000002 aabbccdd 00")
	b.ReportAllocs()
	for b.Loop() {
		if Classify(packet) != ClassRTP {
			b.Fatal("wrong")
		}
	}
	perPacket(b)
}

// perPacket reports an operation, which is one packet, the way that all
// benchmarks of this module do.
func perPacket(b *testing.B) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N), "ns/packet")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "packets/s")
}
