package bridge

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"github.com/usher-rtc/usher/internal/opus"
	"github.com/usher-rtc/usher/transceiver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must come; it is no expectation
// of speed.
const patience = time.Minute

// opusFrame is an Opus packet of 20 ms that says its number.
func opusFrame(n byte) []byte { return []byte{0x78, n, 1, 2, 3} }

// fakeAudio is a session's audio whose loudspeaker plays when it is told to.
type fakeAudio struct {
	in chan transceiver.Frame

	mu              sync.Mutex
	queue           [][]byte
	played, dropped time.Duration
	overrun         uint64
	all             [][]byte // everything that was ever written
}

func newFakeAudio() *fakeAudio { return &fakeAudio{in: make(chan transceiver.Frame, 5000)} }

func (f *fakeAudio) Next(ctx context.Context) (transceiver.Frame, error) {
	select {
	case frame := <-f.in:
		if frame.Payload == nil {
			return frame, io.EOF
		}
		return frame, nil
	case <-ctx.Done():
		return transceiver.Frame{}, ctx.Err()
	}
}

// hear makes the client say a frame.
func (f *fakeAudio) hear(n int) {
	f.in <- transceiver.Frame{Payload: opusFrame(byte(n)), Time: time.Duration(n) * frameDuration, Duration: frameDuration}
}

func (f *fakeAudio) Write(_ context.Context, packet []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := append([]byte(nil), packet...)
	f.queue, f.all = append(f.queue, p), append(f.all, p)
	return nil
}

func length(packets [][]byte) (d time.Duration) {
	for _, p := range packets {
		one, _ := opus.Duration(p)
		d += one
	}
	return d
}

// play plays n packets of the queue.
func (f *fakeAudio) play(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n = min(n, len(f.queue))
	f.played += length(f.queue[:n])
	f.queue = f.queue[n:]
}

func (f *fakeAudio) Interrupt() transceiver.Interrupted {
	f.mu.Lock()
	defer f.mu.Unlock()
	cut := transceiver.Interrupted{Played: f.played, Dropped: length(f.queue)}
	f.dropped += cut.Dropped
	f.queue = nil
	return cut
}

func (f *fakeAudio) Stats() transceiver.AudioStats {
	f.mu.Lock()
	defer f.mu.Unlock()
	return transceiver.AudioStats{Played: f.played, Dropped: f.dropped, QueuedOut: length(f.queue), Overrun: f.overrun}
}

func (f *fakeAudio) packets() [][]byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([][]byte(nil), f.all...)
}

// fakeEvents is a client's data channel.
type fakeEvents struct{ in, out chan transceiver.Event }

func (f *fakeEvents) Next(ctx context.Context) (transceiver.Event, error) {
	select {
	case ev := <-f.in:
		return ev, nil
	case <-ctx.Done():
		return transceiver.Event{}, ctx.Err()
	}
}

func (f *fakeEvents) Send(ctx context.Context, ev transceiver.Event) error {
	select {
	case f.out <- ev:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// rig is a bridge between fakes and real connections.
type rig struct {
	t      testing.TB
	b      *Bridge
	audio  *fakeAudio
	events *fakeEvents

	cancel    context.CancelFunc // the session ends
	connected chan struct{}      // closed by client
	closed    chan struct{}      // the bridge has closed the session
	wg        sync.WaitGroup
	mu        sync.Mutex
	targets   []string // of the attempts to come; the last one stays
	changes   chan Change
}

func newRig(t testing.TB, cfg Config, targets ...string) *rig {
	t.Helper()
	r := &rig{
		t: t, audio: newFakeAudio(), closed: make(chan struct{}), connected: make(chan struct{}),
		events:  &fakeEvents{in: make(chan transceiver.Event, 100), out: make(chan transceiver.Event, 100)},
		targets: targets, changes: make(chan Change, 1000),
	}
	cfg.Select = func(context.Context, *transceiver.Session, int) (Target, error) { return Target{}, nil }
	own := cfg.OnState
	cfg.OnState = func(b *Bridge, c Change) {
		r.changes <- c
		if own != nil {
			own(b, c)
		}
	}
	cfg.Logger = slog.New(slog.DiscardHandler)
	cfg.HTTPClient = &http.Client{Transport: &http.Transport{}}
	if err := cfg.validate(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	var once sync.Once
	r.b = newBridge(cfg, sessionPort{
		id: "SESSION", ctx: ctx, connected: r.connected,
		run:    func(f func(context.Context)) { r.wg.Go(func() { f(ctx) }) },
		reason: func() string { return "client closed" },
		close:  func() { once.Do(func() { close(r.closed) }); cancel() },
		describe: func(m *start) {
			m.Session, m.Client, m.Ingress, m.Metadata = "SESSION", "192.0.2.1:5000", 3, json.RawMessage(`{"voice":"calm"}`)
			m.Route = RouteInfo{Cluster: 1, Host: "10.0.0.1:4000", Session: 7}
		},
	}, r.audio, r.events, func(context.Context, int) (Target, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		target := Target{URL: r.targets[0]}
		if len(r.targets) > 1 {
			r.targets = r.targets[1:]
		}
		return target, nil
	})
	r.b.begin()
	t.Cleanup(func() {
		cancel()
		r.wg.Wait()
	})
	return r
}

// begin connects the client.
func (r *rig) begin() *rig { close(r.connected); return r }

// state waits for a change to a state.
func (r *rig) state(want State) Change {
	r.t.Helper()
	limit := time.After(patience)
	for {
		select {
		case c := <-r.changes:
			if c.State == want {
				return c
			}
		case <-limit:
			r.t.Fatalf("the bridge is %v, never %v", r.b.State(), want)
		}
	}
}

func (r *rig) event() transceiver.Event {
	r.t.Helper()
	select {
	case ev := <-r.events.out:
		return ev
	case <-time.After(patience):
		r.t.Fatal("no event for the client")
		panic("unreachable")
	}
}

// eventually polls a condition that has no channel of its own.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting for %s", what)
		}
	}
}

// script is a service made of raw messages. It is handed each connection
// after the WebSocket handshake; the connection is dropped when it returns.
type script struct {
	*httptest.Server
	conns chan *rawService
}

type rawService struct {
	t    testing.TB
	conn *websocket.Conn
	done chan struct{}
}

func newScript(t testing.TB, protocols ...string) *script {
	if protocols == nil {
		protocols = []string{Subprotocol}
	}
	s := &script{conns: make(chan *rawService, 100)}
	var wg sync.WaitGroup
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		wg.Add(1)
		defer wg.Done()
		conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: protocols})
		if err != nil {
			return
		}
		conn.SetReadLimit(MaxMessage)
		raw := &rawService{t: t, conn: conn, done: make(chan struct{})}
		s.conns <- raw
		<-raw.done
		_ = conn.CloseNow()
	}))
	t.Cleanup(func() {
		for {
			select {
			case raw := <-s.conns:
				raw.close()
				continue
			default:
			}
			break
		}
		s.Close()
		wg.Wait()
	})
	return s
}

// accept returns the next connection.
func (s *script) accept(t testing.TB) *rawService {
	t.Helper()
	select {
	case raw := <-s.conns:
		t.Cleanup(raw.close)
		return raw
	case <-time.After(patience):
		t.Fatal("the bridge does not connect")
		panic("unreachable")
	}
}

// ready accepts a connection and gets it ready.
func (s *script) ready(t testing.TB, codec string) (*rawService, start) {
	t.Helper()
	raw := s.accept(t)
	var m start
	raw.text(&m)
	raw.say(ready{Type: typeReady, Codec: codec})
	return raw, m
}

// close drops the connection without a word.
func (s *rawService) close() {
	select {
	case <-s.done:
	default:
		close(s.done)
	}
}

func (s *rawService) say(v any) {
	s.t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.conn.Write(context.Background(), websocket.MessageText, b); err != nil {
		s.t.Fatal(err)
	}
}

func (s *rawService) binary(h Header, payload []byte) {
	s.t.Helper()
	if err := s.conn.Write(context.Background(), websocket.MessageBinary, append(h.Append(nil), payload...)); err != nil {
		s.t.Fatal(err)
	}
}

// audio sends n frames that follow each other from a time on.
func (s *rawService) audio(from time.Duration, n int) {
	s.t.Helper()
	for i := range n {
		s.binary(Header{Kind: KindAudio, Time: from + time.Duration(i)*frameDuration}, opusFrame(byte(i)))
	}
}

func (s *rawService) read() (websocket.MessageType, []byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return s.conn.Read(ctx)
}

// text reads on to the next text message, of the type that v has set, if any.
func (s *rawService) text(v any) {
	s.t.Helper()
	want := typeOf(s.t, v)
	for {
		kind, b, err := s.read()
		if err != nil {
			s.t.Fatalf("waiting for %q: %v", want, err)
		}
		var e envelope
		if kind != websocket.MessageText || json.Unmarshal(b, &e) != nil || (want != "" && e.Type != want) {
			continue
		}
		if err := json.Unmarshal(b, v); err != nil {
			s.t.Fatal(err)
		}
		return
	}
}

func typeOf(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var e envelope
	if err := json.Unmarshal(b, &e); err != nil {
		t.Fatal(err)
	}
	return e.Type
}

// frame reads on to the next binary message.
func (s *rawService) frame() (h Header, payload []byte) {
	s.t.Helper()
	for {
		kind, b, err := s.read()
		if err != nil {
			s.t.Fatal(err)
		}
		if kind != websocket.MessageBinary {
			continue
		}
		payload, ok := h.Parse(b)
		if !ok {
			s.t.Fatalf("a bad binary message % x", b)
		}
		return h, payload
	}
}

// ended reads on to the end of the connection.
func (s *rawService) ended() error {
	for {
		if _, _, err := s.read(); err != nil {
			return err
		}
	}
}
