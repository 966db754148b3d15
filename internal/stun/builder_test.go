package stun

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	pion "github.com/pion/stun/v3"
)

func pionDecode(t testing.TB, b []byte) *pion.Message {
	t.Helper()
	m := &pion.Message{Raw: bytes.Clone(b)}
	if err := m.Decode(); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestBuilderAgreesWithPion(t *testing.T) {
	var a Authenticator
	for _, addr := range []string{"192.0.2.1:32853", "[2001:db8::1]:9", "[::ffff:192.0.2.1]:1", "0.0.0.0:0"} {
		want := netip.MustParseAddrPort(addr)
		var b Builder
		b.Reset(nil, BindingError, goldenID)
		b.AddXORMappedAddress(want)
		b.AddErrorCode(487, "Role Conflict")
		b.AddUnknownAttributes([]uint16{0x7001, 0x7002, 0x7003})
		b.AddIntegrity(&a, goldenPassword)
		b.AddFingerprint()

		m := pionDecode(t, b.Bytes())
		var mapped pion.XORMappedAddress
		if err := mapped.GetFrom(m); err != nil {
			t.Fatal(err)
		}
		got, _ := netip.AddrFromSlice(mapped.IP)
		if got.Unmap() != want.Addr().Unmap() || mapped.Port != int(want.Port()) {
			t.Errorf("%s: pion reads %v", addr, mapped)
		}
		var code pion.ErrorCodeAttribute
		if err := code.GetFrom(m); err != nil || code.Code != 487 || string(code.Reason) != "Role Conflict" {
			t.Errorf("error code: %v, %v", code, err)
		}
		var unknown pion.UnknownAttributes
		if err := unknown.GetFrom(m); err != nil || len(unknown) != 3 || unknown[2] != 0x7003 {
			t.Errorf("unknown attributes: %v, %v", unknown, err)
		}
		if err := pion.Fingerprint.Check(m); err != nil {
			t.Error(err)
		}
		if err := pion.MessageIntegrity(goldenPassword).Check(m); err != nil {
			t.Error(err)
		}
		ours := mustParse(t, b.Bytes())
		if ours.XORMapped.Addr() != want.Addr().Unmap() || ours.XORMapped.Port() != want.Port() || ours.ErrorCode != 487 {
			t.Errorf("%+v", ours)
		}
	}
}

func TestIntegrityWithLongPasswords(t *testing.T) {
	var a Authenticator
	for _, n := range []int{0, 1, 63, 64, 65, 256} {
		password := []byte(strings.Repeat("p", n))
		var b Builder
		b.Reset(nil, BindingRequest, goldenID)
		b.AddIntegrity(&a, password)
		if err := pion.MessageIntegrity(password).Check(pionDecode(t, b.Bytes())); err != nil {
			t.Errorf("%d characters: %v", n, err)
		}
		if m := mustParse(t, b.Bytes()); !a.Check(m, password) || a.Check(m, append(password, 'x')) {
			t.Errorf("%d characters: Check is wrong", n)
		}
	}
}

func TestCheckWithoutIntegrity(t *testing.T) {
	if new(Authenticator).Check(mustParse(t, raw(BindingRequest)), nil) {
		t.Error("a message without integrity passes")
	}
}

func TestEveryProtectedBitCounts(t *testing.T) {
	var b Builder
	var a Authenticator
	b.Reset(nil, BindingRequest, goldenID)
	b.AddUsername("abcde", "fgh") // 9 bytes: padding counts too
	b.AddIntegrity(&a, goldenPassword)
	good := b.Bytes()
	for bit := range len(good) * 8 {
		c := bytes.Clone(good)
		c[bit/8] ^= 1 << (bit % 8)
		var m Message
		if Parse(c, &m) == OK && a.Check(&m, goldenPassword) {
			t.Errorf("bit %d may be flipped", bit)
		}
	}
}

func TestBuilderAppends(t *testing.T) {
	prefix := []byte("what was there before")
	out := check(prefix, new(Authenticator), "abcd", "efgh", nil)
	if !bytes.HasPrefix(out, prefix) || !bytes.Equal(out[len(prefix):], goldenMessage()) {
		t.Errorf("%x", out)
	}
}

// TestBuilderPadsWithZeros: the buffer of a caller is full of old packets.
func TestBuilderPadsWithZeros(t *testing.T) {
	old := bytes.Repeat([]byte{0xee}, 2048)
	for n := range 200 {
		var b Builder
		b.Reset(old[:0], BindingRequest, goldenID)
		b.AddRaw(0x8022, bytes.Repeat([]byte{1}, n))
		b.AddUnknownAttributes([]uint16{1})
		b.AddErrorCode(400, "")
		want := raw(BindingRequest, attribute(0x8022, bytes.Repeat([]byte{1}, n)...),
			attribute(AttrUnknownAttributes, 0, 1), attribute(AttrErrorCode, 0, 0, 4, 0))
		if !bytes.Equal(b.Bytes(), want) {
			t.Fatalf("%d bytes:\n%x\n%x", n, b.Bytes(), want)
		}
	}
}

func TestBuilderRefusesWhatNoMessageCanCarry(t *testing.T) {
	for name, spoil := range map[string]func(*Builder){
		"a long username":    func(b *Builder) { b.AddUsername(strings.Repeat("x", 256), strings.Repeat("y", 256)) },
		"no address":         func(b *Builder) { b.AddXORMappedAddress(netip.AddrPort{}) },
		"error code 299":     func(b *Builder) { b.AddErrorCode(299, "") },
		"error code 700":     func(b *Builder) { b.AddErrorCode(700, "") },
		"a value too long":   func(b *Builder) { b.AddRaw(0x8022, make([]byte, 65536)) },
		"a message too long": func(b *Builder) { b.AddRaw(0x8022, make([]byte, 40000)); b.AddRaw(0x8022, make([]byte, 40000)) },
	} {
		var b Builder
		b.Reset(nil, BindingRequest, goldenID)
		spoil(&b)
		b.AddPriority(1)
		b.AddFingerprint()
		if b.Bytes() != nil {
			t.Errorf("%s: built a message", name)
		}
		b.Reset(nil, BindingRequest, goldenID)
		if b.Bytes() == nil {
			t.Errorf("%s: Reset does not help", name)
		}
	}
	var b Builder
	b.Reset(nil, BindingRequest, goldenID)
	b.AddRaw(0x8022, make([]byte, maxLength-4))
	if m := mustParse(t, b.Bytes()); len(m.Raw) != HeaderLen+maxLength {
		t.Error("the longest message is refused")
	}
}
