package stun

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"strings"
	"testing"
)

// TestEveryPrefixIsRefused is for parsers that subtract the header from a
// shorter datagram.
func TestEveryPrefixIsRefused(t *testing.T) {
	b := goldenMessage()
	var m Message
	for n := range b {
		want := ProblemLength
		if n < HeaderLen {
			want = ProblemShort
		}
		if p := Parse(b[:n:n], &m); p != want {
			t.Errorf("%d bytes: %v, want %v", n, p, want)
		}
	}
}

func TestLengthField(t *testing.T) {
	b := goldenMessage()
	length := binary.BigEndian.Uint16(b[2:])
	for _, test := range []struct {
		delta int
		want  Problem
	}{
		{-1, ProblemLengthAlignment},
		{-2, ProblemLengthAlignment},
		{-3, ProblemLengthAlignment},
		{-4, ProblemAttributeBounds}, // cuts the FINGERPRINT
		{1, ProblemLengthAlignment},
		{2, ProblemLengthAlignment},
		{3, ProblemLengthAlignment},
		{4, ProblemLength},
		{0, OK},
	} {
		c := bytes.Clone(b)
		binary.BigEndian.PutUint16(c[2:], uint16(int(length)+test.delta))
		if p := Parse(c, new(Message)); p != test.want {
			t.Errorf("length %+d: %v, want %v", test.delta, p, test.want)
		}
	}
}

func TestBytesBehindTheMessageAreIgnored(t *testing.T) {
	for n := 1; n <= 4; n++ {
		b := append(goldenMessage(), bytes.Repeat([]byte{0xff}, n)...)
		m := mustParse(t, b)
		if len(m.Raw) != len(b)-n || !m.HasFingerprint || !new(Authenticator).Check(m, goldenPassword) {
			t.Errorf("%d bytes change the message", n)
		}
	}
}

func TestHeaderRefusals(t *testing.T) {
	for _, test := range []struct {
		at   int
		flip byte
		want Problem
	}{
		{0, 0x40, ProblemType},
		{0, 0x80, ProblemType},
		{4, 0x01, ProblemCookie},
		{7, 0x80, ProblemCookie},
	} {
		b := goldenMessage()
		b[test.at] ^= test.flip
		if p := Parse(b, new(Message)); p != test.want {
			t.Errorf("byte %d: %v, want %v", test.at, p, test.want)
		}
	}
}

func TestMessagesWithoutUsername(t *testing.T) {
	for _, test := range []struct {
		message string
		typ     Type
		method  uint16
	}{
		{"000100002112a4420102030405060708090a0b0c", BindingRequest, MethodBinding},
		{"001100082112a4420102030405060708090a0b0c802800044862c2c6", BindingIndication, MethodBinding},
		{"010100142112a4420102030405060708090a0b0c002000080001a147e112a643802800045089d898", BindingSuccess, MethodBinding},
		{"020000202112a4420102030405060708090a0b0c00080014be6b95d5b28c906d229f1fa10bc4fe0ad44451e080280004cf6d26e2", 0x200, 0x80},
	} {
		m := mustParse(t, unhex(t, test.message))
		if m.Username != nil || m.Type != test.typ || m.Type.Method() != test.method {
			t.Errorf("%s: %+v", test.message, m)
		}
		if _, _, ok := m.SplitUsername(); ok {
			t.Errorf("%s: split a missing username", test.message)
		}
	}
}

func TestTypeBits(t *testing.T) {
	for method := range uint16(1 << 12) {
		for class, is := range map[uint16]func(Type) bool{
			0: Type.IsRequest, 1: Type.IsIndication, 2: Type.IsSuccess, 3: Type.IsError,
		} {
			// RFC 8489 section 5, figure 3.
			typ := Type(method&0xF | method&0x70<<1 | method&0xF80<<2 | class&1<<4 | class&2<<7)
			if typ.Method() != method {
				t.Fatalf("%#x: method %#x, want %#x", typ, typ.Method(), method)
			}
			n := 0
			for _, f := range []bool{typ.IsRequest(), typ.IsIndication(), typ.IsSuccess(), typ.IsError()} {
				if f {
					n++
				}
			}
			if !is(typ) || n != 1 {
				t.Fatalf("%#x: class %d not recognised", typ, class)
			}
		}
	}
}

// raw builds a message of attributes that the builder would refuse.
func raw(typ Type, attributes ...[]byte) []byte {
	var b Builder
	b.Reset(nil, typ, goldenID)
	out := append(b.Bytes(), bytes.Join(attributes, nil)...)
	binary.BigEndian.PutUint16(out[2:], uint16(len(out)-HeaderLen))
	return out
}

func attribute(typ uint16, value ...byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, typ)
	b = binary.BigEndian.AppendUint16(b, uint16(len(value)))
	b = append(b, value...)
	return append(b, make([]byte, -len(value)&3)...)
}

func TestUsernameLengths(t *testing.T) {
	for _, n := range []int{9, 35, 128, 289, 508, 509, 512, 513, 763, 1200, 60000} {
		name := append([]byte("abcd:"), bytes.Repeat([]byte{'x'}, n-5)...)
		var m Message
		p := Parse(raw(BindingRequest, attribute(AttrUsername, name...)), &m)
		if n <= 508 && (p != OK || !bytes.Equal(m.Username, name)) {
			t.Errorf("%d bytes: %v", n, p)
		}
		if n > 508 && p != ProblemUsernameTooLong {
			t.Errorf("%d bytes: %v, want %v", n, p, ProblemUsernameTooLong)
		}
	}
}

func TestSplitUsername(t *testing.T) {
	for _, test := range []struct {
		username, local, remote string
		ok                      bool
	}{
		{"abcd:efgh", "abcd", "efgh", true},
		{"abcd:ef:gh", "abcd", "ef:gh", true},
		{"a::", "a", ":", true},
		{"abcd", "", "", false},
		{"abcd:", "", "", false},
		{":efgh", "", "", false},
		{":", "", "", false},
		{"", "", "", false},
	} {
		m := mustParse(t, raw(BindingRequest, attribute(AttrUsername, []byte(test.username)...)))
		if m.Username == nil {
			t.Errorf("%q: looks absent", test.username)
		}
		local, remote, ok := m.SplitUsername()
		if string(local) != test.local || string(remote) != test.remote || ok != test.ok {
			t.Errorf("%q: %q, %q, %v", test.username, local, remote, ok)
		}
	}
}

// TestFirstAttributeCounts: another one of the same type must not take over
// what the first said, nor can it make the message invalid.
func TestFirstAttributeCounts(t *testing.T) {
	m := mustParse(t, raw(BindingRequest,
		attribute(AttrUsername, []byte("abcd:efgh")...), attribute(AttrUsername, []byte("evil:evil")...),
		attribute(AttrUsername, bytes.Repeat([]byte{'x'}, 600)...),
		attribute(AttrPriority, 0, 0, 0, 1), attribute(AttrPriority, 0, 0, 0, 2), attribute(AttrPriority, 1),
		attribute(AttrICEControlled, 0, 0, 0, 0, 0, 0, 0, 1), attribute(AttrICEControlling, 0, 0, 0, 0, 0, 0, 0, 2),
		attribute(AttrICEControlled, 3),
		attribute(AttrXORMappedAddress, 0, 1, 0x21, 0x13, 0x21, 0x12, 0xa4, 0x43), attribute(AttrXORMappedAddress, 9),
		attribute(AttrErrorCode, 0, 0, 4, 87), attribute(AttrErrorCode, 0, 0, 4, 0), attribute(AttrErrorCode),
		attribute(AttrDTLSInSTUN, 1), attribute(AttrDTLSInSTUN, 2),
		attribute(AttrDTLSInSTUNAck), attribute(AttrDTLSInSTUNAck, 2),
	))
	if string(m.Username) != "abcd:efgh" || m.Priority != 1 || m.TieBreaker != 1 || !m.Controlled || !m.Controlling ||
		m.XORMapped != netip.MustParseAddrPort("0.0.0.1:1") || m.ErrorCode != 487 ||
		!bytes.Equal(m.DTLS, []byte{1}) || m.DTLSAck == nil || len(m.DTLSAck) != 0 {
		t.Errorf("%+v", m)
	}
}

// TestNothingAfterIntegrityCounts: what no password protects must not decide.
func TestNothingAfterIntegrityCounts(t *testing.T) {
	var b Builder
	var a Authenticator
	b.Reset(nil, BindingRequest, goldenID)
	b.AddPriority(1)
	b.AddIntegrity(&a, goldenPassword)
	b.AddUsername("evil", "evil")
	b.AddUseCandidate()
	b.AddControlling(7)
	b.AddXORMappedAddress(netip.MustParseAddrPort("192.0.2.1:1"))
	b.AddErrorCode(487, "")
	b.AddRaw(AttrDTLSInSTUN, []byte{1})
	b.AddRaw(AttrDTLSInSTUNAck, []byte{1})
	b.AddRaw(0x7fff, nil)
	b.AddRaw(AttrMessageIntegrity, []byte{1}) // malformed, and it does not matter
	b.AddFingerprint()
	m := mustParse(t, b.Bytes())
	if m.Username != nil || m.UseCandidate || m.Controlling || m.TieBreaker != 0 || m.XORMapped.IsValid() ||
		m.ErrorCode != 0 || m.DTLS != nil || m.DTLSAck != nil || len(m.UnknownRequired()) != 0 {
		t.Errorf("%+v", m)
	}
	if !m.HasFingerprint || m.Priority != 1 || !a.Check(m, goldenPassword) {
		t.Errorf("integrity or fingerprint lost: %+v", m)
	}
}

func TestFingerprint(t *testing.T) {
	build := func(f func(*Builder)) []byte {
		var b Builder
		b.Reset(nil, BindingRequest, goldenID)
		b.AddUsername("abcd", "efgh")
		f(&b)
		return b.Bytes()
	}
	for _, test := range []struct {
		name    string
		message []byte
		want    Problem
	}{
		{"right", build((*Builder).AddFingerprint), OK},
		{"absent", build(func(*Builder) {}), OK},
		{"wrong", build(func(b *Builder) { b.AddFingerprint(); b.buf[len(b.buf)-1] ^= 1 }), ProblemFingerprint},
		{"not last", build(func(b *Builder) { b.AddFingerprint(); b.AddPriority(1) }), ProblemFingerprintNotLast},
		{"twice", build(func(b *Builder) { b.AddFingerprint(); b.AddFingerprint() }), ProblemFingerprintNotLast},
		{"length 3", build(func(b *Builder) { b.AddRaw(AttrFingerprint, []byte{1, 2, 3}) }), ProblemAttributeSize},
	} {
		var m Message
		p := Parse(test.message, &m)
		if p != test.want {
			t.Errorf("%s: %v, want %v", test.name, p, test.want)
		}
		if p == OK && m.HasFingerprint != (test.name == "right") {
			t.Errorf("%s: HasFingerprint %v", test.name, m.HasFingerprint)
		}
	}
}

func TestAttributeSizes(t *testing.T) {
	for _, test := range []struct {
		name string
		attr []byte
		want Problem
	}{
		{"priority 3", attribute(AttrPriority, 1, 2, 3), ProblemAttributeSize},
		{"controlled 4", attribute(AttrICEControlled, 1, 2, 3, 4), ProblemAttributeSize},
		{"controlling 9", attribute(AttrICEControlling, make([]byte, 9)...), ProblemAttributeSize},
		{"integrity 32", attribute(AttrMessageIntegrity, make([]byte, 32)...), ProblemAttributeSize},
		{"error code 3", attribute(AttrErrorCode, 0, 0, 4), ProblemAttributeSize},
		{"error code 200", attribute(AttrErrorCode, 0, 0, 2, 0), ProblemAttributeSize},
		{"error code 700", attribute(AttrErrorCode, 0, 0, 7, 0), ProblemAttributeSize},
		{"error code 4 and 100", attribute(AttrErrorCode, 0, 0, 4, 100), ProblemAttributeSize},
		{"mapped 3", attribute(AttrXORMappedAddress, 0, 1, 0), ProblemAttributeSize},
		{"mapped, IPv4 in 20", attribute(AttrXORMappedAddress, append([]byte{0, 1}, make([]byte, 18)...)...), ProblemAttributeSize},
		{"mapped, IPv6 in 8", attribute(AttrXORMappedAddress, 0, 2, 0, 0, 0, 0, 0, 0), ProblemAttributeSize},
		{"mapped, no family", attribute(AttrXORMappedAddress, 0, 3, 0, 0, 0, 0, 0, 0), ProblemAttributeSize},
		{"use-candidate 4", attribute(AttrUseCandidate, 0, 0, 0, 0), OK},
		{"beyond the message", []byte{0x80, 0x22, 0, 5, 1, 2, 3, 4}, ProblemAttributeBounds},
		{"65,535 bytes", []byte{0x80, 0x22, 0xff, 0xff}, ProblemAttributeBounds},
	} {
		if p := Parse(raw(BindingRequest, test.attr), new(Message)); p != test.want {
			t.Errorf("%s: %v, want %v", test.name, p, test.want)
		}
	}
}

func TestUnknownAttributesAreListedUpToABound(t *testing.T) {
	var attrs [][]byte
	for typ := uint16(0x7000); typ < 0x7000+2*maxUnknown; typ++ {
		attrs = append(attrs, attribute(typ))
	}
	m := mustParse(t, raw(BindingRequest, append(attrs, attribute(0x8022), attribute(0x802F))...))
	got := m.UnknownRequired()
	if len(got) != maxUnknown || got[0] != 0x7000 || got[maxUnknown-1] != 0x7000+maxUnknown-1 {
		t.Errorf("%#x", got)
	}
}

// TestDTLSInSTUN is Chromium's trial: checks of 1,000 bytes and more.
func TestDTLSInSTUN(t *testing.T) {
	payload, ack := bytes.Repeat([]byte{0x16}, 900), bytes.Repeat([]byte{0xac}, 16)
	var a Authenticator
	b := check(nil, &a, "abcd", "efgh", func(b *Builder) {
		b.AddRaw(AttrDTLSInSTUN, payload)
		b.AddRaw(AttrDTLSInSTUNAck, ack)
	})
	m := mustParse(t, b)
	if !bytes.Equal(m.DTLS, payload) || !bytes.Equal(m.DTLSAck, ack) || !a.Check(m, goldenPassword) || !m.HasFingerprint {
		t.Errorf("%+v", m)
	}
}

func TestAReusedMessageKeepsNothing(t *testing.T) {
	m := mustParse(t, check(nil, new(Authenticator), "abcd", "efgh", func(b *Builder) {
		b.AddErrorCode(487, "")
		b.AddRaw(0x7000, nil)
		b.AddRaw(AttrDTLSInSTUN, nil)
		b.AddXORMappedAddress(netip.MustParseAddrPort("192.0.2.1:1"))
	}))
	if p := Parse(raw(BindingRequest), m); p != OK {
		t.Fatal(p)
	}
	if m.Username != nil || m.HasPriority || m.UseCandidate || m.Controlling || m.ErrorCode != 0 || m.DTLS != nil ||
		m.XORMapped.IsValid() || m.HasFingerprint || m.HasIntegrity || len(m.UnknownRequired()) != 0 {
		t.Errorf("%+v", m)
	}
}

func TestProblemNames(t *testing.T) {
	seen := map[string]bool{}
	for p := range NumProblems {
		if s := p.String(); s == "" || s == "unknown" || seen[s] {
			t.Errorf("problem %d is called %q", p, s)
		} else {
			seen[s] = true
		}
	}
	if NumProblems.String() != "unknown" {
		t.Error("a name beyond the last problem")
	}
}

func TestFingerprintOverLongMessageWithBytesBehind(t *testing.T) {
	var b Builder
	b.Reset(nil, BindingRequest, goldenID)
	b.AddRaw(0x8022, []byte(strings.Repeat("x", 1000)))
	b.AddFingerprint()
	out := b.Bytes()
	want := crc32.ChecksumIEEE(out[:len(out)-8]) ^ 0x5354554e
	if got := binary.BigEndian.Uint32(out[len(out)-4:]); got != want {
		t.Errorf("%#x, want %#x", got, want)
	}
	mustParse(t, append(out, 1, 2, 3))
}
