package stun

import (
	"bufio"
	"encoding/base64"
	"encoding/hex"
	"net/netip"
	"os"
	"strings"
	"testing"
)

// golden is what the builder must produce for goldenMessage.
const golden = "000100482112a4420102030405060708090a0b0c" +
	"00060009616263643a65666768000000" + "002400046e0001ff" + "802a00080011223344556677" + "00250000" +
	"0008001455f2a391102497de895c6e77ebe2a5c3fe3d2d95" + "80280004409fb021"

var (
	goldenID       = TransactionID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	goldenPassword = []byte(strings.Repeat("a", 22))
)

// check builds a connectivity check the way browsers do.
func check(dst []byte, a *Authenticator, local, remote string, extra func(*Builder)) []byte {
	var b Builder
	b.Reset(dst, BindingRequest, goldenID)
	b.AddUsername(local, remote)
	b.AddPriority(0x6e0001ff)
	b.AddControlling(0x0011223344556677)
	b.AddUseCandidate()
	if extra != nil {
		extra(&b)
	}
	b.AddIntegrity(a, goldenPassword)
	b.AddFingerprint()
	return b.Bytes()
}

func goldenMessage() []byte { return check(nil, new(Authenticator), "abcd", "efgh", nil) }

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func mustParse(t testing.TB, b []byte) *Message {
	t.Helper()
	m := new(Message)
	if p := Parse(b, m); p != OK {
		t.Fatalf("Parse: %v", p)
	}
	return m
}

func TestGoldenVector(t *testing.T) {
	b := goldenMessage()
	if got := hex.EncodeToString(b); got != golden {
		t.Fatalf("got  %s\nwant %s", got, golden)
	}
	m := mustParse(t, b)
	local, remote, ok := m.SplitUsername()
	if !ok || string(local) != "abcd" || string(remote) != "efgh" {
		t.Errorf("username %q", m.Username)
	}
	if m.Type != BindingRequest || m.TransactionID != goldenID || m.Priority != 0x6e0001ff || !m.HasPriority ||
		!m.Controlling || m.Controlled || m.TieBreaker != 0x0011223344556677 || !m.UseCandidate ||
		!m.HasFingerprint || !m.HasIntegrity || len(m.UnknownRequired()) != 0 {
		t.Errorf("%+v", m)
	}
	var a Authenticator
	if !a.Check(m, goldenPassword) {
		t.Error("integrity refused")
	}
	if a.Check(m, goldenPassword[1:]) {
		t.Error("integrity accepted with another password")
	}
}

// TestRFC5769 has the vectors of RFC 5769 sections 2.1 to 2.4.
func TestRFC5769(t *testing.T) {
	const password = "VOkJxbRl1RmTxUk/WvJxBt"
	id := TransactionID(unhex(t, "b7e7a701bc34d686fa87dfae"))
	tests := []struct {
		name, message string
		key           []byte
		want          func(*Message) bool
	}{
		{
			"request",
			"000100582112a442b7e7a701bc34d686fa87dfae" +
				"802200105354554e207465737420636c69656e74" + "002400046e0001ff" + "80290008932ff9b151263b36" +
				"000600096576746a3a68367659202020" + "000800149aeaa70cbfd8cb56781ef2b5b2d3f249c1b571a2" + "80280004e57a3bcf",
			[]byte(password),
			func(m *Message) bool {
				return m.Type == BindingRequest && m.Controlled && m.TieBreaker == 0x932ff9b151263b36 &&
					string(m.Username) == "evtj:h6vY" && m.Priority == 0x6e0001ff && m.HasFingerprint
			},
		},
		{
			"IPv4 response",
			"0101003c2112a442b7e7a701bc34d686fa87dfae" +
				"8022000b7465737420766563746f7220" + "002000080001a147e112a643" +
				"000800142b91f599fd9e90c38c7489f92af9ba53f06be7d7" + "80280004c07d4c96",
			[]byte(password),
			func(m *Message) bool {
				return m.Type == BindingSuccess && m.XORMapped == netip.MustParseAddrPort("192.0.2.1:32853") && m.HasFingerprint
			},
		},
		{
			"IPv6 response",
			"010100482112a442b7e7a701bc34d686fa87dfae" +
				"8022000b7465737420766563746f7220" + "002000140002a1470113a9faa5d3f179bc25f4b5bed2b9d9" +
				"00080014a382954e4be67bf11784c97c8292c275bfe3ed41" + "80280004c8fb0b4c",
			[]byte(password),
			func(m *Message) bool {
				return m.XORMapped == netip.MustParseAddrPort("[2001:db8:1234:5678:11:2233:4455:6677]:32853") && m.HasFingerprint
			},
		},
		{
			"request with long-term authentication",
			"000100602112a44278ad3433c6ad72c029da412e" +
				"00060012e3839ee38388e383aae38383e382afe382b90000" +
				"0015001c662f2f3439396b39353464364f4c33346f4c394653547679363473410014000b6578616d706c652e6f726700" +
				"00080014f67024656dd64a3e02b8e0712e85c9a28ca89666",
			// MD5 of username ":" realm ":" SASLprep(password) "TheMatrIX".
			unhex(t, "e8ca7ad59d5eb0518e312911d2dab2a9"),
			func(m *Message) bool {
				return string(m.Username) == "マトリックス" && !m.HasFingerprint && len(m.UnknownRequired()) == 0
			},
		},
	}
	var a Authenticator
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := mustParse(t, unhex(t, test.message))
			if test.name != "request with long-term authentication" && m.TransactionID != id {
				t.Errorf("transaction id %x", m.TransactionID)
			}
			if !test.want(m) {
				t.Errorf("%+v", m)
			}
			if !a.Check(m, test.key) {
				t.Error("integrity refused")
			}
		})
	}
}

func browserCaptures(t testing.TB) [][]byte {
	t.Helper()
	f, err := os.Open("testdata/browsers.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all [][]byte
	for s := bufio.NewScanner(f); s.Scan(); {
		if strings.HasPrefix(s.Text(), "#") {
			continue
		}
		b, err := base64.StdEncoding.DecodeString(s.Text())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b)
	}
	if len(all) == 0 {
		t.Fatal("no captures")
	}
	return all
}

func TestBrowserCapturesParse(t *testing.T) {
	for _, b := range browserCaptures(t) {
		if m := mustParse(t, b); m.Type != BindingRequest {
			t.Errorf("type %#x of %x", m.Type, b)
		}
	}
}
