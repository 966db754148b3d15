package bridgetest

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coder/websocket"
)

// Run tests a service that runs the application of docs/bridge.md (Echo).
func Run(t *testing.T, service Service) {
	if service.Handler != nil {
		server := httptest.NewServer(service.Handler)
		defer server.Close()
		defer server.CloseClientConnections()
		service.URL = server.URL
	}
	for _, tc := range []struct {
		name string
		test func(*testing.T, Service)
	}{
		{"audio comes back in order", audio},
		{"events come back as they are", events},
		{"the metadata arrives", metadata},
		{"a reconnection is told from a new session", resume},
		{"interrupt is answered", interrupts},
		{"mark is answered", marks},
		{"a ping is answered", ping},
		{"the service can end the session", hangup},
		{"the end of the session closes the connection", endOfSession},
		{"what a later version says is ignored", unknown},
		{"a burst is taken", burst},
		{"hostile: another protocol", otherProtocol},
		{"hostile: garbage", garbage},
		{"hostile: silence", silence},
		{"hostile: gone without a word", vanish},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.test(t, service) })
	}
}

// sound makes a payload that a service can take for audio: an Opus packet of
// 20 ms, or 20 ms of PCM.
func (s Service) sound(n uint32) []byte {
	var b []byte
	switch s.Codec {
	case "pcm16/16000":
		b = make([]byte, 640)
	case "pcm16/24000":
		b = make([]byte, 960)
	default:
		b = make([]byte, 60)
		b[0] = 0x78 // RFC 6716 section 3.1: CELT, full band, 20 ms, mono
	}
	binary.BigEndian.PutUint32(b[4:], n)
	return b
}

func audio(t *testing.T, s Service) {
	p := s.open(t, nil)
	const frames, ahead = 500, 20 // a service need not have room for more than a second
	next := uint32(0)
	var last uint64
	for n := uint32(0); n < frames+ahead; n++ {
		if n < frames {
			p.binary(1, uint64(n)*20000, s.sound(n))
		}
		if n < ahead {
			continue
		}
		m := p.hear()
		if m.text || m.kind() != 1 {
			t.Fatalf("message %d is %v, want audio", next, m)
		}
		if want := s.sound(next); !bytes.Equal(m.data[headerLen:], want) {
			t.Fatalf("frame %d came back as % x, want % x", next, m.data[headerLen:headerLen+8], want[:8])
		}
		at := binary.BigEndian.Uint64(m.data[8:])
		if at < last {
			t.Fatalf("frame %d goes back in time, from %d to %d us", next, last, at)
		}
		last = at
		next++
	}
}

func events(t *testing.T, s Service) {
	p := s.open(t, nil)
	long := bytes.Repeat([]byte("0123456789abcdef"), maxPayload/16)
	for _, tc := range []struct {
		name    string
		kind    byte
		payload []byte
	}{
		{"JSON", 2, []byte(`{"type":"response.create","n":1}`)},
		{"text that looks like the protocol's own", 2, []byte(`{"type":"end","reason":"no"}`)},
		{"text that is no JSON", 2, []byte("grüß Gott \u2028 \"")},
		{"empty text", 2, []byte{}},
		{"binary", 3, []byte{0, 1, 2, 0xff, 0xfe}},
		{"empty binary", 3, []byte{}},
		{"the longest text", 2, long},
		{"the longest binary", 3, long},
	} {
		p.binary(tc.kind, 0, tc.payload)
		kind, payload := p.event()
		if kind != tc.kind || !bytes.Equal(payload, tc.payload) {
			t.Fatalf("%s: %d bytes of kind %d came back as %d of kind %d", tc.name, len(tc.payload), tc.kind, len(payload), kind)
		}
	}
}

// session asks the application what it knows.
func (p *peer) session() (got Session) {
	p.t.Helper()
	p.binary(2, 0, []byte("!session"))
	_, payload := p.event()
	if err := json.Unmarshal(payload, &got); err != nil {
		p.t.Fatalf("%s: %v", payload, err)
	}
	return got
}

func metadata(t *testing.T, s Service) {
	got := s.open(t, nil).session()
	if got.Token != "NBSWY3DPEB3W64TMMQ" || got.Session != "conformance" || got.Connection != 1 ||
		got.Client != "198.51.100.4:50123" || got.After != "" {
		t.Errorf("the service knows %+v", got)
	}
	var m struct{ Voice string }
	if err := json.Unmarshal(got.Metadata, &m); err != nil || m.Voice != "calm" {
		t.Errorf("metadata %s, %v", got.Metadata, err)
	}
	// A client may send none.
	p := s.open(t, func(start map[string]any) { delete(start, "metadata") })
	if got := p.session(); len(got.Metadata) > 0 && string(got.Metadata) != "null" {
		t.Errorf("metadata %s out of nowhere", got.Metadata)
	}
}

func resume(t *testing.T, s Service) {
	p := s.open(t, func(start map[string]any) {
		start["connection"] = 2
		start["resume"] = map[string]any{"after": "connection lost", "queued_ms": 340, "position_ms": 1200}
	})
	p.say(map[string]any{"type": "missed", "reason": "reconnecting", "frames": 12, "ms": 240, "unconfirmed_frames": 3, "unconfirmed_events": 0})
	if got := p.session(); got.Connection != 2 || got.After != "connection lost" {
		t.Errorf("the service knows %+v", got)
	}
}

func interrupts(t *testing.T, s Service) {
	p := s.open(t, nil)
	for range 3 { // each has an id of its own
		for n := range uint32(8) { // 160 ms, of which answer plays 120
			p.binary(1, uint64(n)*20000, s.sound(n))
			m := p.hear()
			if m.text || m.kind() != 1 {
				t.Fatalf("%v, want audio", m)
			}
			if n == 0 {
				p.began = binary.BigEndian.Uint64(m.data[8:])
			}
		}
		p.binary(2, 0, []byte("!interrupt"))
		if _, payload := p.event(); string(payload) != "interrupted 120 40" {
			t.Fatalf("got %q", payload)
		}
	}
}

func marks(t *testing.T, s Service) {
	p := s.open(t, nil)
	for range 3 {
		p.binary(2, 0, []byte("!mark"))
		if _, payload := p.event(); string(payload) != "marked" {
			t.Fatalf("got %q", payload)
		}
	}
}

func ping(t *testing.T, s Service) {
	p := s.open(t, nil)
	read := make(chan message, 1)
	go func() { read <- p.read() }() // pongs are seen while reading
	for range 3 {
		if err := p.conn.Ping(p.ctx); err != nil {
			t.Fatalf("no pong: %v", err)
		}
	}
	p.binary(3, 0, []byte("x"))
	if m := <-read; m.err != nil {
		t.Error(m)
	}
}

func hangup(t *testing.T, s Service) {
	p := s.open(t, nil)
	p.binary(2, 0, []byte("!hangup"))
	for {
		m := p.hear()
		if m.text && m.fields["type"] == "end" {
			if m.fields["reason"] != "asked" {
				t.Errorf("reason %v", m.fields["reason"])
			}
			return
		}
	}
}

func endOfSession(t *testing.T, s Service) {
	p := s.open(t, nil)
	p.say(map[string]any{"type": "end", "reason": "client closed"})
	if code := p.ended(); code != websocket.StatusNormalClosure && code != websocket.StatusNoStatusRcvd {
		t.Errorf("closed with status %d, want 1000", code)
	}
}

func unknown(t *testing.T, s Service) {
	p := s.open(t, func(start map[string]any) { start["later"] = []int{1} })
	p.say(map[string]any{"type": "later", "id": "not a number", "type2": nil})
	p.say(map[string]any{"type": "marked", "id": 1 << 40})
	p.say(map[string]any{"type": "playback", "taken_ms": 0, "queued_ms": 0, "position_ms": 0, "later": 1})
	p.binary(200, 5, []byte("later"))
	b := frame(1, 0, s.sound(1))
	b[1] |= 0xf8 // flags of a later version
	p.write(websocket.MessageBinary, b)
	if m := p.hear(); m.text || m.kind() != 1 {
		t.Errorf("%v, want the audio back", m)
	}
}

// burst sends more than a service is likely to have room for and only then
// reads. Everything may be slow; nothing may break.
func burst(t *testing.T, s Service) {
	p := s.open(t, nil)
	const n = 2000
	errs := make(chan error, 1)
	go func() {
		for i := range uint32(n) {
			err := p.conn.Write(p.ctx, websocket.MessageBinary, frame(2, 0, []byte(`{"type":"burst"}`)))
			if err == nil && i%4 == 0 {
				err = p.conn.Write(p.ctx, websocket.MessageBinary, frame(1, uint64(i)*5000, s.sound(i)))
			}
			if err != nil {
				errs <- err
				return
			}
		}
		errs <- nil
	}()
	for got := 0; got < n; {
		m := p.hear()
		if !m.text && m.kind() == 2 {
			got++
		}
	}
	if err := <-errs; err != nil {
		t.Error(err)
	}
}

// alive makes sure that the service still takes sessions.
func alive(t *testing.T, s Service) {
	t.Helper()
	p := s.open(t, nil)
	p.binary(2, 0, []byte("still there?"))
	if _, payload := p.event(); string(payload) != "still there?" {
		t.Errorf("got %q", payload)
	}
}

func otherProtocol(t *testing.T, s Service) {
	for _, protocols := range [][]string{nil, {"usher.bridge.v0"}, {"usher.bridge.v999", "graphql-ws"}} {
		p, err := s.dial(t, protocols...)
		if err != nil {
			continue // refused at once: good
		}
		if got := p.conn.Subprotocol(); got != "" {
			t.Errorf("the service agrees to %q", got)
		}
		p.ended()
	}
	// A version that the service does not know, before one that it does.
	p, err := s.dial(t, "usher.bridge.v999", subprotocol)
	if err != nil {
		t.Fatal(err)
	}
	if got := p.conn.Subprotocol(); got != subprotocol {
		t.Errorf("of two versions the service took %q", got)
	}
	alive(t, s)
}

func garbage(t *testing.T, s Service) {
	started := func(t *testing.T) *peer { return s.open(t, nil) }
	fresh := func(t *testing.T) *peer {
		p, err := s.dial(t, subprotocol)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	text, bin := websocket.MessageText, websocket.MessageBinary
	for _, tc := range []struct {
		name string
		open func(*testing.T) *peer
		kind websocket.MessageType
		data string
	}{
		{"no JSON", started, text, "{"},
		{"JSON that is no object", started, text, "[1,2]"},
		{"a type that is no string", started, text, `{"type":7}`},
		{"an empty text", started, text, ""},
		{"a binary message without a header", started, bin, "\x01\x00\x00"},
		{"an empty binary message", started, bin, ""},
		{"a message that is too long", started, bin, "\x03" + strings.Repeat("\x00", headerLen+maxPayload)},
		{"no start", fresh, text, `{"type":"end","reason":"x"}`},
		{"audio before start", fresh, bin, string(frame(1, 0, s.sound(0)))},
		{"no JSON for start", fresh, text, "\xff\xfe"},
		{"start without codecs", fresh, text, `{"type":"start","token":"x","session":"x","connection":1}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := tc.open(t)
			switch err := p.conn.Write(p.ctx, tc.kind, []byte(tc.data)); {
			case err == nil:
				p.ended() // by the service
			case len(tc.data) <= maxPayload:
				t.Fatal(err)
			default: // it has ended before all of it was written
			}
			alive(t, s)
		})
	}
}

func silence(t *testing.T, s Service) {
	if _, err := s.dial(t, subprotocol); err != nil { // says nothing more
		t.Fatal(err)
	}
	s.open(t, nil) // has said all that it had to say
	alive(t, s)
}

func vanish(t *testing.T, s Service) {
	p := s.open(t, nil)
	p.binary(1, 0, s.sound(0))
	_ = p.conn.CloseNow()
	alive(t, s)
}
