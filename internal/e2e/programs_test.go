package e2e

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestErrorsAreOneLine checks what a user sees after the usual mistakes: one
// line on stderr that names the thing, and exit status 1.
func TestErrorsAreOneLine(t *testing.T) {
	ctx := testContext(t, time.Minute, "ufragctl", "relayd", "transceiverd", "quickstart", "signalproxy")
	keys, _ := keyFile(t, ctx)
	badKeys := filepath.Join(t.TempDir(), "bad.txt")
	if err := os.WriteFile(badKeys, []byte("A tooshort mint\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	udp, err := new(net.ListenConfig).ListenPacket(ctx, "udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = udp.Close() }()
	tcp, err := new(net.ListenConfig).Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tcp.Close() }()
	takenUDP, takenTCP := udp.LocalAddr().String(), tcp.Addr().String()

	relayd := []string{"-listen", "127.0.0.1:0", "-trunk", "127.0.0.1:0", "-http", "127.0.0.1:0", "-keys", keys, "-allow-upstream", "127.0.0.1"}
	transceiverd := []string{"-trunk", "127.0.0.1:0", "-http", "127.0.0.1:0", "-ingress", "127.0.0.1:3478", "-keys", keys, "-allow-relay", "127.0.0.1"}
	quickstart := []string{"-http", "127.0.0.1:0", "-relay", "127.0.0.1:0"}
	signalproxy := []string{"-http", "127.0.0.1:0", "-keys", keys, "-transceiver", "127.0.0.1:9000=http://127.0.0.1:8080"}
	with := func(args []string, more ...string) []string { return append(append([]string(nil), args...), more...) }
	without := func(args []string, flag string) []string {
		for i, a := range args {
			if a == flag {
				return append(append([]string(nil), args[:i]...), args[i+2:]...)
			}
		}
		t.Fatalf("no %s in %q", flag, args)
		return nil
	}
	for _, tt := range []struct {
		name    string
		program string
		args    []string
		want    string // part of the line
	}{
		{"taken ingress", "relayd", with(without(relayd, "-listen"), "-listen", takenUDP), takenUDP},
		{"taken trunk", "relayd", with(relayd, "-trunk", takenUDP, "-workers", "1"), takenUDP},
		{"taken page", "relayd", with(relayd, "-http", takenTCP), takenTCP},
		{"missing key file", "relayd", with(relayd, "-keys", "/nonexistent/keys"), "/nonexistent/keys"},
		{"bad key file", "relayd", with(relayd, "-keys", badKeys), badKeys + ":1"},
		{"no key file", "relayd", without(relayd, "-keys"), "-keys is required"},
		{"bad prefix", "relayd", with(relayd, "-allow-upstream", "10.0.0.0/33"), "10.0.0.0/33"},
		{"no prefix", "relayd", without(relayd, "-allow-upstream"), "-allow-upstream: required"},
		{"no ingress", "relayd", without(relayd, "-listen"), "-listen is required"},
		{"same ingress id", "relayd", with(relayd, "-listen", "id=1,addr=127.0.0.1:0"), "-listen: 1 is also the id"},
		{"cluster", "relayd", with(relayd, "-cluster", "4096"), "4096"},
		{"unknown flag", "relayd", with(relayd, "-nonsense"), "-nonsense"},
		{"argument", "relayd", with(relayd, "surplus"), "surplus"},
		{"taken trunk", "transceiverd", with(transceiverd, "-trunk", takenUDP), takenUDP},
		{"taken page", "transceiverd", with(transceiverd, "-http", takenTCP), takenTCP},
		{"missing key file", "transceiverd", with(transceiverd, "-keys", "/nonexistent/keys"), "/nonexistent/keys"},
		{"bad prefix", "transceiverd", with(transceiverd, "-allow-relay", "relay.example"), "relay.example"},
		{"bad ingress", "transceiverd", with(transceiverd, "-ingress", "id=0,advertise=127.0.0.1:1"), "ingress id"},
		{"no ingress", "transceiverd", without(transceiverd, "-ingress"), "-ingress: required"},
		{"taken ingress", "quickstart", with(quickstart, "-relay", takenUDP), takenUDP},
		{"taken page", "quickstart", with(quickstart, "-http", takenTCP), takenTCP},
		{"number", "quickstart", with(quickstart, "-transceivers", "0"), "-transceivers"},
		{"taken page", "signalproxy", with(signalproxy, "-http", takenTCP), takenTCP},
		{"no key file", "signalproxy", without(signalproxy, "-keys"), "-keys is required"},
		{"no transceiver", "signalproxy", without(signalproxy, "-transceiver"), "-transceiver is required"},
		{"bad transceiver", "signalproxy", with(signalproxy, "-transceiver", "http://127.0.0.1:8080"), "trunk address"},
		{"interval", "signalproxy", with(signalproxy, "-check", "0s"), "-check"},
		{"nothing to do", "ufragctl", nil, "keygen, mint or decode"},
		{"unknown command", "ufragctl", []string{"encode"}, "encode"},
		{"missing key file", "ufragctl", []string{"decode", "-keys", "/nonexistent/keys", "x"}, "/nonexistent/keys"},
		{"no ufrag", "ufragctl", []string{"decode", "-keys", keys}, "ufrag"},
		{"short ufrag", "ufragctl", []string{"decode", "-keys", keys, "short"}, "length"},
		{"host without port", "ufragctl", []string{"mint", "-keys", keys, "-host", "10.0.0.1"}, "10.0.0.1"},
		{"no host", "ufragctl", []string{"mint", "-keys", keys}, "-host"},
		{"key id", "ufragctl", []string{"keygen", "-id", "AB"}, "AB"},
	} {
		t.Run(tt.program+" "+tt.name, func(t *testing.T) {
			status, stdout, stderr := runToEnd(t, ctx, "", tt.program, tt.args...)
			if status != 1 {
				t.Errorf("exit status %d, want 1", status)
			}
			lines := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
			if len(lines) != 1 || !strings.HasPrefix(stderr, tt.program+": ") || !strings.Contains(stderr, tt.want) {
				t.Errorf("stderr is to be one line with %q:\n%s", tt.want, stderr)
			}
			if stdout != "" {
				t.Errorf("stdout is not empty: %s", stdout)
			}
		})
	}
}

// TestUfragctl checks that what mint makes is what decode reads, in each of the
// forms in which a ufrag is met.
func TestUfragctl(t *testing.T) {
	ctx := testContext(t, time.Minute, "ufragctl")
	keys, codec := keyFile(t, ctx)
	status, out, problem := runToEnd(t, ctx, "", "ufragctl", "mint", "-keys", keys, "-cluster", "12", "-host", "10.1.2.3:9000")
	if status != 0 {
		t.Fatalf("mint: status %d: %s", status, problem)
	}
	minted := fields(out)
	route, err := codec.Decode([]byte(minted["ufrag"]))
	if err != nil {
		t.Fatal(err)
	}
	if host, ok := route.AddrPort(); !ok || host.String() != "10.1.2.3:9000" || route.Cluster != 12 {
		t.Errorf("minted %v", route)
	}
	password, err := codec.AppendPassword(nil, []byte(minted["ufrag"]))
	if err != nil || string(password) != minted["password"] {
		t.Errorf("password %q, want %q (%v)", minted["password"], password, err)
	}
	sdp := "v=0\r\nm=audio 9 UDP/TLS/RTP/SAVPF 111\r\na=ice-ufrag:" + minted["ufrag"] + "\r\na=ice-pwd:x\r\n" +
		"m=application 9 UDP/DTLS/SCTP webrtc-datachannel\r\na=ice-ufrag:" + minted["ufrag"] + "\r\n"
	for _, tt := range []struct{ name, stdin, arg string }{
		{"ufrag", "", minted["ufrag"]},
		{"username", "", minted["ufrag"] + ":abcd"},
		{"sdp", sdp, "-"},
	} {
		status, out, problem := runToEnd(t, ctx, tt.stdin, "ufragctl", "decode", "-keys", keys, tt.arg)
		if status != 0 {
			t.Errorf("decode %s: status %d: %s", tt.name, status, problem)
			continue
		}
		got := fields(out)
		if got["cluster"] != "12" || got["host"] != "10.1.2.3:9000" || got["session"] != minted["session"] || got["key id"] != "A" {
			t.Errorf("decode %s: %v", tt.name, got)
		}
		if n := strings.Count(out, "cluster"); n != 1 {
			t.Errorf("decode %s: %d routes, want one:\n%s", tt.name, n, out)
		}
	}
}

// fields reads lines of a name, two or more spaces, and a value.
func fields(out string) map[string]string {
	all := make(map[string]string)
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "  ")
		all[name] = strings.TrimSpace(value)
	}
	return all
}
