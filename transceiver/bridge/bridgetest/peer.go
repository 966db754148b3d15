package bridgetest

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// Service is a service under test.
type Service struct {
	// URL is its address: ws, wss, http or https.
	URL string
	// Handler is a service in Go, which is served for the test in place of URL.
	Handler http.Handler
	// Header goes with every request.
	Header http.Header
	// Codec is what it asks for; empty means opus.
	Codec string
}

// Session is what the application answers to the event !session.
type Session struct {
	Token      string          `json:"token"`
	Session    string          `json:"session"`
	Connection int             `json:"connection"`
	Client     string          `json:"client"`
	Metadata   json.RawMessage `json:"metadata"`
	After      string          `json:"after"`
}

// patience is how long a healthy service may take for anything.
const patience = 10 * time.Second

const (
	subprotocol = "usher.bridge.v1"
	headerLen   = 16
	maxPayload  = 65536
)

// peer is a transceiver's end of a connection.
type peer struct {
	t    testing.TB
	conn *websocket.Conn
	ctx  context.Context

	began uint64 // where the utterance begins in the service's time, for answer
}

// message is what a service said.
type message struct {
	text   bool
	data   []byte
	fields map[string]any // of a text message
	err    error
}

func (m message) kind() byte { return m.data[0] }

func (m message) String() string {
	switch {
	case m.err != nil:
		return m.err.Error()
	case m.text:
		return string(m.data)
	}
	return fmt.Sprintf("%d bytes: % x", len(m.data), m.data[:min(len(m.data), 24)])
}

// dial connects without a word.
func (s Service) dial(t testing.TB, protocols ...string) (*peer, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	t.Cleanup(cancel)
	conn, _, err := websocket.Dial(ctx, s.URL, &websocket.DialOptions{ //nolint:bodyclose // the package says that there is nothing to close
		HTTPHeader: s.Header, Subprotocols: protocols,
	})
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = conn.CloseNow() })
	conn.SetReadLimit(headerLen + maxPayload)
	return &peer{t: t, conn: conn, ctx: ctx}, nil
}

// open connects and gets the service ready.
func (s Service) open(t testing.TB, change func(start map[string]any)) *peer {
	t.Helper()
	p, err := s.dial(t, subprotocol)
	if err != nil {
		t.Fatalf("no connection: %v", err)
	}
	if got := p.conn.Subprotocol(); got != subprotocol {
		t.Fatalf("the subprotocol is %q, want %q", got, subprotocol)
	}
	start := map[string]any{
		"type": "start", "token": "NBSWY3DPEB3W64TMMQ", "session": "conformance", "connection": 1,
		"route":  map[string]any{"cluster": 3, "host": "192.0.2.7:4000", "session": 99},
		"client": "198.51.100.4:50123", "ingress": 1,
		"codecs": []string{"opus", "pcm16/16000", "pcm16/24000"}, "window_ms": 30000,
		"metadata": map[string]any{"voice": "calm"},
	}
	if change != nil {
		change(start)
	}
	p.say(start)
	m := p.hear()
	want := s.Codec
	if want == "" {
		want = "opus"
	}
	codec, _ := m.fields["codec"].(string)
	if codec == "" {
		codec = "opus" // the default
	}
	if m.fields["type"] != "ready" || codec != want {
		t.Fatalf("the answer to start is %v, want ready with codec %s", m, want)
	}
	return p
}

// say sends a text message.
func (p *peer) say(v any) {
	p.t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		p.t.Fatal(err)
	}
	p.write(websocket.MessageText, b)
}

func (p *peer) write(kind websocket.MessageType, b []byte) {
	p.t.Helper()
	if err := p.conn.Write(p.ctx, kind, b); err != nil {
		p.t.Fatalf("the service takes nothing more: %v", err)
	}
}

// frame makes a binary message by the page.
func frame(kind byte, micros uint64, payload []byte) []byte {
	b := make([]byte, headerLen, headerLen+len(payload))
	b[0] = kind
	if kind == 1 {
		b[1], b[2], b[3] = 1, 40, 40 // a level of -40 dBov, 20 ms
	}
	binary.BigEndian.PutUint64(b[8:], micros)
	return append(b, payload...)
}

func (p *peer) binary(kind byte, micros uint64, payload []byte) {
	p.t.Helper()
	p.write(websocket.MessageBinary, frame(kind, micros, payload))
}

// read returns the next message, or the error that ended the connection.
func (p *peer) read() message {
	kind, b, err := p.conn.Read(p.ctx)
	m := message{text: kind == websocket.MessageText, data: b, err: err}
	switch {
	case err != nil:
	case m.text:
		m.err = json.Unmarshal(b, &m.fields)
	case len(b) < headerLen:
		m.err = fmt.Errorf("a binary message of %d bytes has no header", len(b))
	}
	return m
}

// hear is read where an end is a failure.
func (p *peer) hear() message {
	p.t.Helper()
	m := p.read()
	if m.err != nil {
		p.t.Fatalf("the service ended it: %v", m.err)
	}
	return m
}

// event waits for an event of the client's channel, and answers for a
// transceiver meanwhile. Audio is passed over.
func (p *peer) event() (kind byte, payload []byte) {
	p.t.Helper()
	for {
		m := p.hear()
		if m.text {
			p.answer(m)
			continue
		}
		if m.kind() != 1 {
			return m.kind(), m.data[headerLen:]
		}
	}
}

// answer does what a transceiver does for interrupt and mark.
func (p *peer) answer(m message) {
	p.t.Helper()
	switch m.fields["type"] {
	case "interrupt":
		p.say(map[string]any{"type": "interrupted", "id": m.fields["id"], "played_ms": 120, "dropped_ms": 40, "position_ms": float64(p.began)/1000 + 120})
	case "mark":
		p.say(map[string]any{"type": "marked", "id": m.fields["id"], "interrupted": false})
	}
}

// ended waits for the end of the connection and returns the status code, -1
// for an end without a closing handshake.
func (p *peer) ended() websocket.StatusCode {
	p.t.Helper()
	for {
		m := p.read()
		if m.err == nil {
			continue
		}
		if errors.Is(m.err, context.DeadlineExceeded) {
			p.t.Fatal("the service leaves the connection open")
		}
		return websocket.CloseStatus(m.err)
	}
}
