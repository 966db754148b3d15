package stun

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha1" // HMAC-SHA1 is what the protocol has
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"testing"

	pion "github.com/pion/stun/v3"
)

// slowParse is what Parse should say, written the long way round on top of
// another implementation's idea of the message: the sections of the package
// documentation, one after the other.
func slowParse(b []byte) (want Message, p Problem) {
	switch {
	case len(b) < 20:
		return want, ProblemShort
	case b[0] >= 0x40:
		return want, ProblemType
	case !bytes.Equal(b[4:8], []byte{0x21, 0x12, 0xa4, 0x42}):
		return want, ProblemCookie
	case b[3]%4 != 0:
		return want, ProblemLengthAlignment
	}
	m := &pion.Message{Raw: bytes.Clone(b)}
	if m.Decode() != nil {
		if int(b[2])<<8+int(b[3])+20 > len(b) {
			return want, ProblemLength
		}
		// An attribute that is wrong in itself may come before the one that
		// reaches beyond the message: either is a right answer.
		return want, ProblemAttributeBounds
	}
	want.Type = Type(m.Type.Value())
	want.TransactionID = m.TransactionID

	seen := map[uint16]bool{}
	at := 20
	protected := true
	for _, attr := range m.Attributes {
		typ := binary.BigEndian.Uint16(b[at:]) // pion maps an old type to a new one
		v := attr.Value
		end := at + 4 + (len(v)+3)/4*4
		first := !seen[typ]
		if protected {
			seen[typ] = true
		}
		bad := false
		switch {
		case typ == 0x8028:
			switch {
			case len(v) != 4:
				bad = true
			case end != 20+int(m.Length):
				return want, ProblemFingerprintNotLast
			case binary.BigEndian.Uint32(v) != pion.FingerprintValue(b[:at]):
				return want, ProblemFingerprint
			}
			want.HasFingerprint = true
		case !protected:
		case typ == 0x0008:
			bad = len(v) != 20
			want.HasIntegrity = true
			want.integrityAt = at
			protected = false
		case typ == 0x0025:
			want.UseCandidate = true
		case !first:
			if typ < 0x8000 && !known(typ) {
				want.unknownN++
			}
		case typ == 0x0006:
			if len(v) >= 509 {
				return want, ProblemUsernameTooLong
			}
			want.Username = append([]byte{}, v...)
		case typ == 0x0024:
			if bad = len(v) != 4; !bad {
				want.Priority, want.HasPriority = binary.BigEndian.Uint32(v), true
			}
		case typ == 0x8029 || typ == 0x802a:
			if bad = len(v) != 8; !bad {
				if !want.Controlled && !want.Controlling {
					want.TieBreaker = binary.BigEndian.Uint64(v)
				}
				want.Controlled = want.Controlled || typ == 0x8029
				want.Controlling = want.Controlling || typ == 0x802a
			}
		case typ == 0x0009:
			if bad = len(v) < 4 || v[2]&7 < 3 || v[2]&7 > 6 || v[3] >= 100; !bad {
				want.ErrorCode = int(v[2]&7)*100 + int(v[3])
			}
		case typ == 0x0020:
			var mapped pion.XORMappedAddress
			one := &pion.Message{TransactionID: m.TransactionID}
			one.Add(pion.AttrXORMappedAddress, v)
			// pion accepts bytes after the address, and a second byte of family.
			bad = len(v) != 8 && len(v) != 20 || mapped.GetFrom(one) != nil && v[0] == 0 ||
				v[1] != byte(len(v)/12)+1
			if !bad {
				v = bytes.Clone(v)
				for i := range v[4:] {
					v[4+i] ^= b[4+i]
				}
				ip, _ := netip.AddrFromSlice(v[4:])
				want.XORMapped = netip.AddrPortFrom(ip.Unmap(), binary.BigEndian.Uint16(v[2:])^0x2112)
			}
		case typ == 0xC070:
			want.DTLS = append([]byte{}, v...)
		case typ == 0xC071:
			want.DTLSAck = append([]byte{}, v...)
		case typ < 0x8000 && !known(typ):
			want.unknownN++
		}
		if bad {
			return want, ProblemAttributeSize
		}
		at = end
	}
	return want, OK
}

func known(typ uint16) bool {
	switch typ {
	case 0x0001, 0x0006, 0x0008, 0x0009, 0x000A, 0x0014, 0x0015, 0x0020, 0x0024, 0x0025:
		return true
	}
	return false
}

func compare(t *testing.T, b []byte) {
	t.Helper()
	before := bytes.Clone(b)
	var got Message
	p := Parse(b, &got)
	if !bytes.Equal(b, before) {
		t.Fatal("Parse writes to the datagram")
	}
	want, wantProblem := slowParse(b)
	if p != wantProblem {
		if wantProblem == ProblemAttributeBounds && p > ProblemAttributeBounds {
			return
		}
		t.Fatalf("%v, want %v", p, wantProblem)
	}
	if p != OK {
		return
	}
	if got.Type != want.Type || got.TransactionID != want.TransactionID ||
		(got.Username == nil) != (want.Username == nil) || !bytes.Equal(got.Username, want.Username) ||
		got.Priority != want.Priority || got.HasPriority != want.HasPriority || got.UseCandidate != want.UseCandidate ||
		got.Controlled != want.Controlled || got.Controlling != want.Controlling || got.TieBreaker != want.TieBreaker ||
		got.ErrorCode != want.ErrorCode || got.XORMapped != want.XORMapped ||
		(got.DTLS == nil) != (want.DTLS == nil) || !bytes.Equal(got.DTLS, want.DTLS) ||
		(got.DTLSAck == nil) != (want.DTLSAck == nil) || !bytes.Equal(got.DTLSAck, want.DTLSAck) ||
		got.HasFingerprint != want.HasFingerprint || got.HasIntegrity != want.HasIntegrity ||
		len(got.UnknownRequired()) != min(want.unknownN, maxUnknown) {
		t.Fatalf("got  %+v\nwant %+v", got, want)
	}
	if Classify(b) == ClassSTUN != (b[0] <= 3) {
		t.Fatal("Classify does not agree")
	}
	if !got.HasIntegrity {
		return
	}
	h := hmac.New(sha1.New, goldenPassword)
	size := want.integrityAt + 24 - 20
	h.Write([]byte{b[0], b[1], byte(size >> 8), byte(size)})
	h.Write(b[4:want.integrityAt])
	right := hmac.Equal(h.Sum(nil), b[want.integrityAt+4:want.integrityAt+24])
	if new(Authenticator).Check(&got, goldenPassword) != right {
		t.Fatalf("Check says %v", !right)
	}
}

// FuzzParse throws bytes at the parser, as they are and with what makes most of
// them be refused early put right.
func FuzzParse(f *testing.F) {
	f.Add(goldenMessage())
	f.Add(check(nil, new(Authenticator), "abcd", "efgh", func(b *Builder) {
		b.AddRaw(AttrDTLSInSTUN, make([]byte, 900))
		b.AddRaw(AttrDTLSInSTUNAck, make([]byte, 16))
		b.AddErrorCode(487, "Role Conflict")
		b.AddXORMappedAddress(netip.MustParseAddrPort("[2001:db8::1]:1"))
		b.AddUnknownAttributes([]uint16{1, 2})
		b.AddControlled(1)
	}))
	f.Add(append(goldenMessage(), 1, 2, 3))
	for _, b := range browserCaptures(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		compare(t, b)
		if len(b) < HeaderLen {
			return
		}
		c := bytes.Clone(b[:min(len(b), 65535)&^3])
		c[0] &= 3
		binary.BigEndian.PutUint16(c[2:], uint16(len(c)-HeaderLen))
		binary.BigEndian.PutUint32(c[4:], Cookie)
		compare(t, c)
		// With a right FINGERPRINT behind it.
		if len(c) <= 60000 {
			c = append(c, 0x80, 0x28, 0, 4, 0, 0, 0, 0)
			binary.BigEndian.PutUint16(c[2:], uint16(len(c)-HeaderLen))
			at := len(c) - 8
			binary.BigEndian.PutUint32(c[at+4:], crc32.ChecksumIEEE(c[:at])^fingerprintXOR)
			compare(t, c)
		}
	})
}

// FuzzBuild lets the bytes choose attributes, and expects that both parsers
// read back what was built.
func FuzzBuild(f *testing.F) {
	f.Add([]byte("\x00\x05abcde\x01\x02ab\x02\x03abc\x03\x08abcdefgh\x04\x00\x05\x07abcdefg\x06\x04abcd\x07\x00\x08\x00"), true)
	f.Fuzz(func(t *testing.T, program []byte, fingerprint bool) {
		var a Authenticator
		var b Builder
		b.Reset(nil, BindingSuccess, goldenID)
		for len(program) >= 2 {
			op, n := program[0]%9, int(program[1])
			n = min(n, len(program)-2)
			arg := program[2 : 2+n]
			program = program[2+n:]
			word := make([]byte, 18)
			copy(word, arg)
			switch op {
			case 0:
				b.AddUsername(string(arg), string(arg))
			case 1:
				b.AddPriority(binary.BigEndian.Uint32(word))
			case 2:
				b.AddUseCandidate()
			case 3:
				b.AddControlled(binary.BigEndian.Uint64(word))
			case 4:
				b.AddControlling(binary.BigEndian.Uint64(word))
			case 5:
				ip, _ := netip.AddrFromSlice(word[2 : 6+12*(n%2)])
				b.AddXORMappedAddress(netip.AddrPortFrom(ip, binary.BigEndian.Uint16(word)))
			case 6:
				b.AddErrorCode(300+int(word[0])%400, string(arg))
			case 7:
				b.AddUnknownAttributes([]uint16{uint16(n), 7})
			case 8:
				b.AddRaw(0xC070|uint16(n&1), arg)
			}
		}
		b.AddIntegrity(&a, goldenPassword)
		if fingerprint {
			b.AddFingerprint()
		}
		out := b.Bytes()
		if out == nil {
			return // a username of more than 508 bytes, or too many attributes
		}
		compare(t, out)
		m := mustParse(t, out)
		if !a.Check(m, goldenPassword) || m.HasFingerprint != fingerprint {
			t.Fatalf("%+v", m)
		}
		p := pionDecode(t, out)
		if err := pion.MessageIntegrity(goldenPassword).Check(p); err != nil {
			t.Fatal(err)
		}
		if fingerprint {
			if err := pion.Fingerprint.Check(p); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// FuzzPackets: telling packets apart never panics and agrees with itself.
func FuzzPackets(f *testing.F) {
	f.Add(goldenMessage())
	f.Add([]byte{0x80, 0xc8, 0, 6, 1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, b []byte) {
		class := Classify(b)
		if _, ok := SSRC(b); ok && class != ClassRTP {
			t.Fatalf("SSRC in %v", class)
		}
		if class == ClassRTP && len(b) >= 12 {
			if _, ok := SSRC(b); !ok {
				t.Fatal("no SSRC in RTP")
			}
		}
	})
}
