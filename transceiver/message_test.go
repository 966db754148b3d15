package transceiver

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestParseMessage(t *testing.T) {
	for name, c := range map[string]struct {
		binary bool
		text   string
		kind   string // of the problem, empty for none
	}{
		"offer":             {false, `{"type":"offer","id":1,"sdp":"v=0"}`, ""},
		"newer client":      {false, `{"type":"offer","id":1,"sdp":"v=0","later":{"x":[1]}}`, ""},
		"answer":            {false, `{"type":"answer","id":9007199254740991,"sdp":"v=0"}`, ""},
		"end":               {false, `{"type":"end"}`, ""},
		"candidate":         {false, `{"type":"candidate","candidate":"candidate:1 1 udp 1 10.0.0.1 5 typ host"}`, ""},
		"event":             {false, `{"type":"event","event":null}`, ""},
		"event of nothing":  {false, `{"type":"event"}`, "bad-message"},
		"binary":            {true, `{"type":"end"}`, "bad-message"},
		"not JSON":          {false, `offer`, "bad-message"},
		"not an object":     {false, `[1]`, "bad-message"},
		"not UTF-8":         {false, "{\"type\":\"\xff\"}", "bad-message"},
		"no type":           {false, `{}`, "bad-message"},
		"unknown":           {false, `{"type":"hello"}`, "unknown-message"},
		"not for the Host":  {false, `{"type":"draining"}`, "unknown-message"},
		"offer without id":  {false, `{"type":"offer","sdp":"v=0"}`, "bad-message"},
		"negative id":       {false, `{"type":"offer","id":-1,"sdp":"v=0"}`, "bad-message"},
		"id of another":     {false, `{"type":"offer","id":9007199254740992,"sdp":"v=0"}`, "bad-message"},
		"offer without sdp": {false, `{"type":"offer","id":1}`, "bad-message"},
		"refuse without id": {false, `{"type":"refuse"}`, "bad-message"},
		"long type":         {false, `{"type":"` + strings.Repeat("x", 5000) + `"}`, "unknown-message"},
	} {
		t.Run(name, func(t *testing.T) {
			_, p := parseMessage(!c.binary, []byte(c.text))
			switch {
			case p == nil && c.kind != "":
				t.Error("taken")
			case p != nil && p.Type != problemBase+c.kind:
				t.Errorf("%+v", p)
			case p != nil && (p.Status != 400 || p.Detail == "" || len(p.Detail) > 300):
				t.Errorf("%+v", p)
			}
		})
	}
}

// Whatever comes, the answer is a message that parses, and what was taken is
// complete and comes out as it went in.
func FuzzParseMessage(f *testing.F) {
	for _, s := range []string{`{"type":"offer","id":1,"sdp":"v=0","session":{"a":1}}`, `{"type":"event","event":[1,"x"]}`, `{"type":"end","reason":"\u0000"}`, `{`, `{"type":1}`} {
		f.Add(true, []byte(s))
	}
	f.Fuzz(func(t *testing.T, text bool, b []byte) {
		m, p := parseMessage(text, b)
		if p != nil {
			out := (&message{Type: typeError, ID: min(m.ID, maxID), Problem: p}).encode()
			if !json.Valid(out) || len(out) > 3000 {
				t.Fatalf("the error message: %s", out)
			}
			return
		}
		if !text || !json.Valid(b) {
			t.Fatalf("%q was taken", b)
		}
		if needs := m.Type == typeOffer || m.Type == typeAnswer; needs && (m.ID == 0 || m.SDP == "") || m.Type == typeEvent && m.Event == nil {
			t.Fatalf("%q was taken", b)
		}
		again, p := parseMessage(true, m.encode())
		if p != nil || again.Type != m.Type || again.ID != m.ID || again.SDP != m.SDP || again.Reason != m.Reason {
			t.Fatalf("%+v became %+v (%+v)", m, again, p)
		}
	})
}

// A fragment is taken exactly when a naive reading finds credentials in it.
func FuzzParseFragment(f *testing.F) {
	f.Add("a=ice-ufrag:Ab+/\r\na=ice-pwd:0123456789abcdefghijkl\r\nm=audio 9 UDP/TLS/RTP/SAVPF 0\r\na=mid:0\r\n")
	f.Add("m=audio 9 RTP/AVP 0\na=ice-ufrag: abcd\na=ice-pwd:0123456789abcdefghijkl ")
	f.Fuzz(func(t *testing.T, body string) {
		gotUfrag, gotPassword, err := parseFragment(body)
		first := func(key string) string {
			for _, line := range strings.Split(body, "\n") {
				line = strings.TrimRight(line, "\r")
				if strings.HasPrefix(line, key) && strings.TrimSpace(line[len(key):]) != "" {
					return strings.TrimSpace(line[len(key):])
				}
			}
			return ""
		}
		u, p := first("a=ice-ufrag:"), first("a=ice-pwd:")
		good := iceString(u, 4) && iceString(p, 22)
		if good != (err == nil) || good && (gotUfrag != u || gotPassword != p) {
			t.Fatalf("%q: %q %q %v, want %q %q", body, gotUfrag, gotPassword, err, u, p)
		}
	})
}

// Every kind of problem that the code can answer with is described under its
// name, since its type is the address of that description.
func TestProblemsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../docs/signalling.md")
	if err != nil {
		t.Fatal(err)
	}
	sources, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, name := range sources {
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`newProblem\([^,]+, "([a-z-]+)"`).FindAllSubmatch(source, -1) {
			names[string(m[1])] = true
		}
	}
	if len(names) < 15 {
		t.Fatalf("found only %v", names)
	}
	for name := range names {
		if !strings.Contains(string(page), "\n### "+name+"\n") {
			t.Errorf("%s is not in docs/signalling.md", name)
		}
	}
	for r := ReasonNone + 1; r < reasonCount; r++ {
		if !strings.Contains(strings.ReplaceAll(string(page), "\n", " "), "`"+r.String()+"`") {
			t.Errorf("the reason %q is not in docs/signalling.md", r)
		}
	}
}
