package bridge

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// closeLimit bounds the closing handshake, so that a peer that does not answer
// holds nothing up.
const closeLimit = time.Second

// initialBuffer is what a socket starts to read with. Opus fits; events and PCM
// make it grow.
const initialBuffer = 2 << 10

// socket is a WebSocket connection that neither allocates for a message nor
// takes a context for each one: a context costs an allocation, and whoever
// wants an end of a read or a write closes the socket.
type socket struct {
	conn *websocket.Conn
	raw  io.Closer // the connection below, which ends everything at once

	in []byte // the newest message

	mu  sync.Mutex
	out []byte // scratch for header and payload, so that a frame is one write
}

func newSocket(conn *websocket.Conn, raw io.Closer) *socket {
	conn.SetReadLimit(MaxMessage)
	return &socket{conn: conn, raw: raw, in: make([]byte, initialBuffer)}
}

// read returns the next message. It is valid until the next read.
func (s *socket) read() (text bool, message []byte, err error) {
	kind, r, err := s.conn.Reader(context.Background())
	if err != nil {
		return false, nil, err
	}
	n := 0
	for {
		if n == len(s.in) {
			s.in = append(s.in, make([]byte, min(len(s.in), MaxMessage+1-n))...)
		}
		m, err := r.Read(s.in[n:])
		n += m
		switch {
		case errors.Is(err, io.EOF):
			return kind == websocket.MessageText, s.in[:n], nil
		case err != nil:
			return false, nil, err
		}
	}
}

// writeFrame sends a binary message. It blocks as long as the peer does not
// read, until the socket is closed.
func (s *socket) writeFrame(h *Header, payload []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out = append(h.Append(s.out[:0]), payload...)
	return s.conn.Write(context.Background(), websocket.MessageBinary, s.out)
}

// writeJSON sends a text message.
func (s *socket) writeJSON(v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // it would make six bytes of some characters, and no page reads this
	if err := e.Encode(v); err != nil {
		return err
	}
	return s.conn.Write(context.Background(), websocket.MessageText, bytes.TrimRight(b.Bytes(), "\n"))
}

// close ends the connection with a status code (RFC 6455 section 7.4). It
// takes at most closeLimit.
func (s *socket) close(code websocket.StatusCode, reason string) {
	limit := time.AfterFunc(closeLimit, func() { _ = s.raw.Close() })
	defer limit.Stop()
	_ = s.conn.Close(code, reason) // whatever is wrong with it, it is closed
}

// capture is an http.RoundTripper that keeps hold of the connection.
type capture struct {
	http.RoundTripper
	raw io.Closer
}

// RoundTrip implements http.RoundTripper.
func (c *capture) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := c.RoundTripper.RoundTrip(r)
	if err == nil && resp.StatusCode == http.StatusSwitchingProtocols {
		c.raw = resp.Body
	}
	return resp, err
}

// dial makes a connection to a service.
func dial(ctx context.Context, client *http.Client, target Target, onPong func()) (*socket, error) {
	through := *client
	c := &capture{RoundTripper: client.Transport}
	if c.RoundTripper == nil {
		c.RoundTripper = http.DefaultTransport
	}
	through.Transport = c
	conn, _, err := websocket.Dial(ctx, target.URL, &websocket.DialOptions{ //nolint:bodyclose // the package says that there is nothing to close
		HTTPClient:     &through,
		HTTPHeader:     target.Header,
		Subprotocols:   []string{Subprotocol},
		OnPongReceived: func(context.Context, []byte) { onPong() },
	})
	if err != nil {
		return nil, err
	}
	s := newSocket(conn, c.raw)
	if conn.Subprotocol() != Subprotocol {
		s.close(websocket.StatusProtocolError, "this is "+Subprotocol)
		return nil, ErrVersion
	}
	return s, nil
}

// keeper is an http.ResponseWriter that keeps hold of the connection.
type keeper struct {
	http.ResponseWriter
	raw net.Conn
}

// Hijack implements http.Hijacker.
func (k *keeper) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(k.ResponseWriter).Hijack()
	k.raw = conn
	return conn, rw, err
}

// accept takes a connection from a transceiver. It has answered the request
// when it returns an error.
func accept(w http.ResponseWriter, r *http.Request, origins []string, onPing func()) (*socket, error) {
	k := &keeper{ResponseWriter: w}
	conn, err := websocket.Accept(k, r, &websocket.AcceptOptions{
		Subprotocols:   []string{Subprotocol},
		OriginPatterns: origins,
		OnPingReceived: func(context.Context, []byte) bool { onPing(); return true },
	})
	if err != nil {
		return nil, err
	}
	s := newSocket(conn, k.raw)
	if conn.Subprotocol() != Subprotocol {
		s.close(websocket.StatusProtocolError, "this is "+Subprotocol)
		return nil, ErrVersion
	}
	return s, nil
}
