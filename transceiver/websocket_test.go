package transceiver

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/pion/webrtc/v4"
)

// wsClient is the client's side of a WebSocket: a client of docs/signalling.md.
type wsClient struct {
	t    *testing.T
	conn *websocket.Conn
	got  chan message
	end  chan error // why it ended
}

func dial(t *testing.T, url string) *wsClient {
	t.Helper()
	conn, _, err := websocket.Dial(patient(t), strings.Replace(url, "http", "ws", 1), &websocket.DialOptions{Subprotocols: []string{subprotocol}}) //nolint:bodyclose // Dial says: never needed
	if err != nil {
		t.Fatal(err)
	}
	conn.SetReadLimit(1 << 20)
	k := &wsClient{t: t, conn: conn, got: make(chan message, 100), end: make(chan error, 1)}
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			_, b, err := conn.Read(context.Background())
			if err != nil {
				k.end <- err
				return
			}
			var m message
			if err := json.Unmarshal(b, &m); err != nil {
				t.Errorf("%s: %v", b, err)
			}
			k.got <- m
		}
	})
	t.Cleanup(func() {
		_ = conn.CloseNow()
		reader.Wait()
	})
	return k
}

func (k *wsClient) send(m message) {
	k.t.Helper()
	k.raw(string(m.encode()))
}

func (k *wsClient) raw(text string) {
	k.t.Helper()
	if err := k.conn.Write(patient(k.t), websocket.MessageText, []byte(text)); err != nil {
		k.t.Fatal(err)
	}
}

func (k *wsClient) receive(kind string) message {
	k.t.Helper()
	var m message
	select {
	case m = <-k.got:
	case err := <-k.end:
		select {
		case m = <-k.got: // it came before the end
			k.end <- err
		default:
			k.t.Fatalf("the connection ended before %s: %v", kind, err)
		}
	case <-time.After(patience):
		k.t.Fatalf("timed out waiting for %s", kind)
	}
	if m.Type != kind {
		k.t.Fatalf("got %s, want %s", m.encode(), kind)
	}
	return m
}

// closed waits for the end of the connection and returns its code and reason.
func (k *wsClient) closed() (websocket.StatusCode, string) {
	k.t.Helper()
	select {
	case err := <-k.end:
		var ce websocket.CloseError
		if errors.As(err, &ce) {
			return ce.Code, ce.Reason
		}
		return -1, err.Error()
	case <-time.After(patience):
		k.t.Fatal("timed out waiting for the end of the connection")
		return 0, ""
	}
}

// callOver makes a call over a new WebSocket.
func (c *client) callOver(url string, host *Host) (*wsClient, *Session, message) {
	c.t.Helper()
	k := dial(c.t.(*testing.T), url)
	k.send(message{Type: typeOffer, ID: 1, SDP: c.offer(nil), Session: json.RawMessage(`{"model":"m"}`)})
	m := k.receive(typeAnswer)
	if m.ID != 1 {
		c.t.Errorf("the answer is to %d", m.ID)
	}
	c.answer(m.SDP)
	name, _, _ := splitLocation(must(http.NewRequest("GET", m.Location, nil)).URL)
	host.mu.Lock()
	defer host.mu.Unlock()
	return k, host.resources[name], m
}

// A whole call over one WebSocket: made, changed by both sides, moved, ended.
func TestWebSocketCarriesACall(t *testing.T) {
	host, relay := setup(t, withEcho)
	other := newStubRelay(t, relay.keys, 2)
	other.host.Store(host.Addr())
	events := make(chan string, 10)
	server := serve(t, host, SignallingConfig{
		OnEvent: func(_ *Session, e json.RawMessage) { events <- string(e) },
	})
	c := newClient(t, nil)
	ch, got := c.channel(), c.packets()
	k, s, m := c.callOver(server.URL+"/whip", host)
	if string(s.Metadata()) != `{"model":"m"}` || m.Location != s.Location("/whip") {
		t.Errorf("metadata %s, location %s", s.Metadata(), m.Location)
	}
	ch.echo(t, "before")
	ctx, first, result := patient(t), s.Ufrag(), make(chan error, 1)

	// The Host adds a track.
	speak(t, s)
	go func() { result <- s.Negotiate(ctx) }()
	m = k.receive(typeOffer)
	k.send(message{Type: typeAnswer, ID: m.ID, SDP: c.answerTo(m.SDP)})
	if err := receive(t, "the result", result); err != nil {
		t.Fatal(err)
	}
	wait(t, "audio on the new track", got)
	if s.Ufrag() != first {
		t.Error("the ufrag changed without a restart")
	}

	// The Host moves the client.
	go func() { result <- s.RestartICE(ctx, Ingress{2, other.addr()}) }()
	m = k.receive(typeOffer)
	k.send(message{Type: typeAnswer, ID: m.ID, SDP: c.answerTo(m.SDP)})
	if err := receive(t, "the result", result); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the move", func() bool { st := s.Stats(); return st.Ingress == 2 && st.Validated })

	// The client renegotiates, trickles, restarts.
	k.send(message{Type: typeOffer, ID: 2, SDP: c.offer(nil)})
	c.answer(k.receive(typeAnswer).SDP)
	k.raw(`{"type":"candidate","candidate":{"candidate":""}}`)
	second := s.Ufrag()
	k.send(message{Type: typeOffer, ID: 3, SDP: c.offer(&webrtc.OfferOptions{ICERestart: true})})
	if m = k.receive(typeAnswer); m.ID != 3 || s.Ufrag() == second {
		t.Errorf("restart: id %d, ufrag %s", m.ID, s.Ufrag())
	}
	c.answer(m.SDP)
	ch.echo(t, "after")

	// Events, both ways.
	k.raw(`{"type":"event","event":{"n":1}}`)
	if e := receive(t, "the event", events); e != `{"n":1}` {
		t.Errorf("event %s", e)
	}
	if err := s.Notify(map[string]int{"n": 2}); err != nil {
		t.Fatal(err)
	}
	if m = k.receive(typeEvent); string(m.Event) != `{"n":2}` {
		t.Errorf("event %s", m.Event)
	}
	if err := s.Notify(func() {}); err == nil {
		t.Error("a function was sent as JSON")
	}
	if host.Stats().Sockets != 1 {
		t.Errorf("%d sockets", host.Stats().Sockets)
	}

	s.CloseWithReason("the shop\nis closed")
	if m = k.receive(typeEnd); m.Reason != "closed by the server" || m.Detail != "the shop is closed" {
		t.Errorf("end: %s", m.encode())
	}
	if code, reason := k.closed(); code != websocket.StatusNormalClosure || reason != "closed by the server" {
		t.Errorf("closed with %v %q", code, reason)
	}
	eventually(t, "no socket to be left", func() bool { return host.Stats().Sockets == 0 })
}

// The Host's and the client's offer cross: the client's goes first, and the
// Host's is made again.
func TestWebSocketGlare(t *testing.T) {
	host, _ := setup(t, withEcho)
	server := serve(t, host, SignallingConfig{})
	c := newClient(t, nil)
	ch := c.channel()
	k, s, _ := c.callOver(server.URL+"/whip", host)
	ch.echo(t, "before")
	ctx, result := patient(t), make(chan error, 1)

	mine := c.offer(nil)
	speak(t, s)
	go func() { result <- s.Negotiate(ctx) }()
	void := k.receive(typeOffer)
	k.send(message{Type: typeOffer, ID: 2, SDP: mine}) // as if sent before
	m := k.receive(typeAnswer)
	c.answer(m.SDP)
	m = k.receive(typeOffer)
	if m.ID == void.ID {
		t.Error("the void offer is sent again under its old id")
	}
	answer := c.answerTo(m.SDP)
	k.send(message{Type: typeAnswer, ID: void.ID, SDP: answer})
	if m := k.receive(typeError); m.ID != void.ID || m.Problem.Type != problemBase+"no-offer" {
		t.Errorf("an answer to the void offer: %s", m.encode())
	}
	k.send(message{Type: typeAnswer, ID: m.ID, SDP: answer})
	if err := receive(t, "the result", result); err != nil {
		t.Fatal(err)
	}

	// The client's own restart is as good as the one that the Host wants.
	mine = c.offer(&webrtc.OfferOptions{ICERestart: true})
	go func() { result <- s.RestartICE(ctx, host.Ingresses()...) }()
	k.receive(typeOffer)
	k.send(message{Type: typeOffer, ID: 3, SDP: mine})
	c.answer(k.receive(typeAnswer).SDP)
	if err := receive(t, "the result", result); err != nil {
		t.Fatal(err)
	}
	ch.echo(t, "after")

	// So it is with an offer of the client's that cannot be answered.
	go func() { result <- s.Negotiate(ctx) }()
	void = k.receive(typeOffer)
	k.send(message{Type: typeOffer, ID: 4, SDP: "v=1"})
	if m := k.receive(typeError); m.ID != 4 {
		t.Errorf("%s", m.encode())
	}
	if m = k.receive(typeOffer); m.ID == void.ID {
		t.Error("the void offer is sent again under its old id")
	}
	k.send(message{Type: typeAnswer, ID: m.ID, SDP: c.answerTo(m.SDP)})
	if err := receive(t, "the result", result); err != nil {
		t.Fatal(err)
	}

	// A client may say that it cannot.
	go func() { result <- s.RestartICE(ctx) }()
	m = k.receive(typeOffer)
	k.send(message{Type: typeRefuse, ID: m.ID, Reason: "no\nway"})
	if err := receive(t, "the result", result); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "no way") {
		t.Errorf("refused: %v", err)
	}
	// A bad answer is told to both sides.
	go func() { result <- s.RestartICE(ctx) }()
	m = k.receive(typeOffer)
	k.send(message{Type: typeAnswer, ID: m.ID, SDP: "v=1"})
	if err := receive(t, "the result", result); !errors.Is(err, ErrNotSDP) {
		t.Errorf("a bad answer: %v", err)
	}
	if m := k.receive(typeError); m.Problem.Type != problemBase+"bad-offer" {
		t.Errorf("%s", m.encode())
	}
	ch.echo(t, "at last")
}

// A socket that breaks is no end: the call goes on, a new socket joins it, and
// the offer that had no answer comes again.
func TestWebSocketJoinsItsCall(t *testing.T) {
	host, _ := setup(t, withEcho)
	server := serve(t, host, SignallingConfig{})
	c := newClient(t, nil)
	ch := c.channel()
	k, s, m := c.callOver(server.URL+"/whip", host)
	at := server.URL + m.Location
	ch.echo(t, "before")
	ctx, result := patient(t), make(chan error, 1)
	go func() { result <- s.RestartICE(ctx) }()
	lost := k.receive(typeOffer)
	answer := c.answerTo(lost.SDP) // and the connection breaks
	_ = k.conn.CloseNow()
	k = dial(t, at)
	again := k.receive(typeOffer)
	if again.ID != lost.ID || again.SDP != lost.SDP {
		t.Errorf("another offer: %d, %d", lost.ID, again.ID)
	}
	k.send(message{Type: typeAnswer, ID: again.ID, SDP: answer})
	if err := receive(t, "the result", result); err != nil {
		t.Fatal(err)
	}
	ch.echo(t, "after")

	newer := dial(t, at)
	if code, _ := k.closed(); code != statusReplaced {
		t.Errorf("the older socket was closed with %v", code)
	}
	newer.send(message{Type: typeEnd, Reason: "bye"})
	if m := newer.receive(typeEnd); m.Reason != "client closed" || m.Detail != "" {
		t.Errorf("%s", m.encode())
	}
	wait(t, "the end", s.Done())
	if !strings.HasSuffix(s.Err().Error(), "client closed: bye") {
		t.Errorf("ended: %v", s.Err())
	}
}

func TestWebSocketRefuses(t *testing.T) {
	host, _ := setup(t, func(c *Config) { c.MaxOfferBytes = 8 << 10; c.OnSession = echoSession })
	server := serve(t, host, SignallingConfig{Limit: RateLimit{PerSecond: 0.001, Burst: 30}})
	url := server.URL + "/whip"
	upgrade := []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="}
	for name, c := range map[string]struct {
		url     string
		headers []string
		status  int
	}{
		"no subprotocol":  {url, append([]string{"Sec-WebSocket-Version", "13"}, upgrade...), 400},
		"old version":     {url, append([]string{"Sec-WebSocket-Version", "8", "Sec-WebSocket-Protocol", subprotocol}, upgrade...), 426},
		"no key":          {url, append([]string{"Sec-WebSocket-Version", "13", "Sec-WebSocket-Protocol", subprotocol}, upgrade[:4]...), 400},
		"no such call":    {url + "/abcdefghijklmnopqrstuvw-TOKEN", nil, 405},
		"foreign origin":  {url, append([]string{"Origin", "https://evil.example"}, upgrade...), 403},
		"not a WebSocket": {url, nil, 405},
	} {
		t.Run(name, func(t *testing.T) {
			res := do(t, "GET", c.url, "", "", c.headers...)
			if res.StatusCode != c.status {
				t.Errorf("%d %s", res.StatusCode, res.body)
			}
			checkProblem(t, res)
		})
	}
	k := dial(t, url)
	for name, c := range map[string]struct{ text, kind string }{
		"not JSON":      {"hello", "bad-message"},
		"unknown type":  {`{"type":"hello","id":7}`, "unknown-message"},
		"no call yet":   {`{"type":"answer","id":7,"sdp":"v=0"}`, "no-call"},
		"bad offer":     {`{"type":"offer","id":7,"sdp":"hello"}`, "bad-offer"},
		"long offer":    {`{"type":"offer","id":7,"sdp":"v=0` + strings.Repeat("x", 9000) + `"}`, "too-large"},
		"metadata, bad": {`{"type":"offer","id":7,"sdp":"v=0","session":{]}`, "bad-message"},
	} {
		t.Run(name, func(t *testing.T) {
			k.raw(c.text)
			if m := k.receive(typeError); m.Problem.Type != problemBase+c.kind || m.Problem.Detail == "" || m.ID != 7 && c.kind != "bad-message" {
				t.Errorf("%s", m.encode())
			}
		})
	}
	c := newClient(t, nil)
	c.channel()
	k.send(message{Type: typeOffer, ID: 8, SDP: c.offer(nil)})
	k.receive(typeAnswer)
	k.raw(`{"type":"event","event":1}`)
	if m := k.receive(typeError); m.Problem.Type != problemBase+"no-events" {
		t.Errorf("%s", m.encode())
	}
	for limited := false; !limited; {
		k.raw(`{"type":"offer","id":9,"sdp":"v=1"}`)
		m := k.receive(typeError)
		limited = m.Problem.Status == 429 && m.Problem.RetryAfter > 0
		if !limited && m.Problem.Status != 400 {
			t.Fatalf("%s", m.encode())
		}
	}
	if len(host.Sessions()) != 1 {
		t.Errorf("%d sessions", len(host.Sessions()))
	}
	// It is closed while the message is still being written.
	_ = k.conn.Write(patient(t), websocket.MessageText, []byte(strings.Repeat("x", 100<<10)))
	if code, _ := k.closed(); code != websocket.StatusMessageTooBig {
		t.Errorf("a message that is too long closes with %v", code)
	}
}

// A client whose answers to pings stop coming is gone; one that does not read
// loses its socket, and neither loses its call.
func TestWebSocketNoticesADeadClient(t *testing.T) {
	host, _ := setup(t, withEcho)
	server := serve(t, host, SignallingConfig{KeepAlive: time.Second})
	c := newClient(t, nil)
	ch := c.channel()
	k, s, m := c.callOver(server.URL+"/whip", host)
	ch.echo(t, "before")
	_ = k.conn.CloseNow()
	eventually(t, "the socket to go", func() bool { return host.Stats().Sockets == 0 })

	// This one reads nothing, not even pings.
	raw, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	_, _ = io.WriteString(raw, "GET "+m.Location+" HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: "+subprotocol+"\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReader(raw), nil) //nolint:bodyclose // an upgraded connection has none
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(res, err)
	}
	eventually(t, "the silent socket to go", func() bool { return host.Stats().Sockets == 0 })
	ch.echo(t, "after")
	if s.Err() != nil {
		t.Error(s.Err())
	}
}

func TestWebSocketClientThatDoesNotRead(t *testing.T) {
	host, _ := setup(t, withEcho)
	server := serve(t, host, SignallingConfig{})
	c := newClient(t, nil)
	c.channel()
	_, s, m := c.callOver(server.URL+"/whip", host)
	raw, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	_, _ = io.WriteString(raw, "GET "+m.Location+" HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: "+subprotocol+"\r\n\r\n")
	eventually(t, "the second socket", func() bool { return host.Stats().Sockets == 1 })
	big := strings.Repeat("x", 64<<10)
	for n := 0; s.Notify(big) == nil; n++ {
		if n == 100_000 {
			t.Fatal("events are taken without end for a client that does not read")
		}
	}
	eventually(t, "the socket to go", func() bool { return host.Stats().Sockets == 0 })
	if s.Err() != nil {
		t.Error(s.Err())
	}
}

// A Host that closes ends sockets without a call as well.
func TestWebSocketEndsWithTheHost(t *testing.T) {
	host, _ := setup(t, nil)
	server := serve(t, host, SignallingConfig{})
	k := dial(t, server.URL+"/whip")
	eventually(t, "the socket", func() bool { return host.Stats().Sockets == 1 })
	if err := host.Close(); err != nil {
		t.Fatal(err)
	}
	if code, _ := k.closed(); code != websocket.StatusGoingAway {
		t.Errorf("closed with %v", code)
	}
	if n := host.Stats().Sockets; n != 0 {
		t.Errorf("%d sockets after Close", n)
	}
	res := do(t, "GET", server.URL+"/whip", "", "", "Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13",
		"Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol", subprotocol)
	if res.StatusCode != 503 || checkProblem(t, res).RetryAfter == 0 {
		t.Errorf("after Close: %d %s", res.StatusCode, res.body)
	}
}

// A drain tells its clients how long they have, and in the end why they had to
// go, by whatever way there is to them.
func TestDrainSaysWhy(t *testing.T) {
	host, _ := setup(t, nil)
	server := serve(t, host, SignallingConfig{})
	overSocket := newClient(t, nil)
	ch := overSocket.channel()
	k, s1, _ := overSocket.callOver(server.URL+"/whip", host)
	overEvents := newEventClient(t, "oai-events")
	s2, _ := overEvents.events(host, EventsConfig{})
	overNothing := newClient(t, nil)
	overNothing.channel()
	s3 := overNothing.call(host, AcceptOptions{})
	wait(t, "the channel", ch.open)
	wait(t, "the channel", overEvents.open)
	for _, s := range []*Session{s1, s2, s3} {
		wait(t, "DTLS", s.Connected())
	}
	dtls := make(chan struct{})
	overNothing.pc.SCTP().Transport().OnStateChange(func(st webrtc.DTLSTransportState) {
		if st == webrtc.DTLSTransportStateClosed {
			close(dtls)
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	shut := make(chan error, 1)
	go func() { shut <- host.Shutdown(ctx) }()
	const most = int(patience / time.Second)
	if m := k.receive(typeDraining); m.Seconds < most/2 || m.Seconds > most {
		t.Errorf("%s, want about %d seconds", m.encode(), most)
	}
	cancel()
	if m := k.receive(typeEnd); m.Reason != "drained" {
		t.Errorf("%s", m.encode())
	}
	if m := overEvents.receive(); !m.IsString || string(m.Data) != `{"type":"usher.end","reason":"drained"}` {
		t.Errorf("%s", m.Data)
	}
	wait(t, "DTLS to be closed", dtls)
	if err := receive(t, "Shutdown", shut); !errors.Is(err, context.Canceled) {
		t.Errorf("Shutdown: %v", err)
	}
	if n := host.Stats().Ended[ReasonDrained]; n != 3 {
		t.Errorf("%d sessions drained", n)
	}
}

// A connection without a call ends after its time, whatever is sent over it:
// there are not many places.
func TestWebSocketWithoutAnOfferEnds(t *testing.T) {
	host, _ := setup(t, nil)
	h, err := NewHandler(host, SignallingConfig{})
	if err != nil {
		t.Fatal(err)
	}
	h.(*signalling).firstOffer = 200 * time.Millisecond
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	k := dial(t, server.URL)
	busy := time.NewTicker(20 * time.Millisecond)
	defer busy.Stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if code, reason := k.closed(); code != websocket.StatusPolicyViolation || reason != "no offer came" {
			t.Errorf("ended with %d %q", code, reason)
		}
	}()
	for {
		select {
		case <-ended:
			eventually(t, "the place to be free", func() bool { return host.Stats().Sockets == 0 })
			return
		case <-busy.C:
			_ = k.conn.Write(patient(t), websocket.MessageText, []byte(`{"type":"candidate"}`)) // it may have ended
		}
	}
}

// A panic of the application's leaves no connection behind that the server has
// let go of.
func TestWebSocketPanicClosesTheConnection(t *testing.T) {
	host, _ := setup(t, func(c *Config) { c.SelectIngresses = func(*http.Request) []Ingress { panic("boom") } })
	h, err := NewHandler(host, SignallingConfig{})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Start()
	t.Cleanup(server.Close)
	k := dial(t, server.URL)
	k.send(message{Type: typeOffer, ID: 1, SDP: browserOffer()})
	if code, reason := k.closed(); code != -1 {
		t.Errorf("ended with %d %q", code, reason)
	}
	eventually(t, "the place to be free", func() bool { return host.Stats().Sockets == 0 })
}

// A callback that does not return keeps neither the session nor the Host from
// its end for long.
func TestCloseDespiteABlockedOnEvent(t *testing.T) {
	t.Parallel() // it takes teardownLimit
	host, _ := setup(t, nil)
	entered, release := make(chan struct{}), make(chan struct{})
	server := serve(t, host, SignallingConfig{OnEvent: func(*Session, json.RawMessage) {
		close(entered)
		<-release
	}})
	t.Cleanup(func() { close(release) }) // before the server is closed, which waits for it
	c := newClient(t, nil)
	c.channel()
	k, _, _ := c.callOver(server.URL+"/whip", host)
	k.raw(`{"type":"event","event":1}`)
	wait(t, "the event", entered)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if err := host.Close(); err != nil {
			t.Error(err)
		}
	}()
	wait(t, "Close", closed)
}
