package bridge

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/usher-rtc/usher/transceiver"
)

// serve runs a service in Go and returns its address.
func serve(t testing.TB, cfg HandlerConfig) string {
	t.Helper()
	cfg.Logger = slog.New(slog.DiscardHandler)
	h, err := NewHandler(cfg)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL
}

// calls makes a service hand its calls to the test, which ends each with an
// error of its choice.
func calls(t testing.TB, cfg HandlerConfig) (url string, next func() (*Call, chan<- error)) {
	t.Helper()
	type made struct {
		call *Call
		end  chan error
	}
	ch := make(chan made, 10)
	cfg.Serve = func(ctx context.Context, c *Call) error {
		m := made{c, make(chan error, 1)}
		ch <- m
		select {
		case err := <-m.end:
			return err
		case <-ctx.Done():
			return c.failure()
		}
	}
	return serve(t, cfg), func() (*Call, chan<- error) {
		t.Helper()
		select {
		case m := <-ch:
			return m.call, m.end
		case <-time.After(patience):
			t.Fatal("no call")
			panic("unreachable")
		}
	}
}

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func TestCallKnowsTheSession(t *testing.T) {
	url, next := calls(t, HandlerConfig{})
	newRig(t, Config{}, url).begin()
	c, _ := next()
	if c.Session() != "SESSION" || len(c.Token()) != 26 || c.Connection() != 1 || c.Resume() != nil || c.Rate() != 0 ||
		c.Client().String() != "192.0.2.1:5000" || string(c.Metadata()) != `{"voice":"calm"}` || c.Route().Session != 7 {
		t.Errorf("%+v", c.start)
	}
}

func TestCallAudio(t *testing.T) {
	url, next := calls(t, HandlerConfig{})
	r := newRig(t, Config{Window: time.Second}, url).begin()
	c, _ := next()
	ctx := within(t)
	r.audio.in <- transceiver.Frame{
		Payload: opusFrame(1), Time: time.Second, Duration: frameDuration, Lost: 3, Level: 20, Voice: true, HasLevel: true,
	}
	f, err := c.Next(ctx)
	if err != nil || string(f.Payload) != string(opusFrame(1)) || f.Time != time.Second || f.Duration != frameDuration ||
		f.Lost != 3 || f.Level != 20 || !f.Voice || !f.HasLevel {
		t.Errorf("%+v %v", f, err)
	}
	u := c.Say()
	for range 50 { // fills the window
		if err := u.Write(ctx, opusFrame(2)); err != nil {
			t.Fatal(err)
		}
	}
	full, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if err := u.Write(full, opusFrame(3)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("beyond the window: %v", err)
	}
	r.audio.play(10)
	if err := u.Write(ctx, opusFrame(3)); err != nil { // the transceiver says that there is room
		t.Error(err)
	}
	// Stop ends a Write that waits.
	eventually(t, "51 packets", func() bool { return len(r.audio.packets()) == 51 })
	blocked := make(chan error, 1)
	go func() {
		var err error
		for err == nil {
			err = u.Write(ctx, opusFrame(4))
		}
		blocked <- err
	}()
	eventually(t, "the window to be full again", func() bool { return len(r.audio.packets()) == 60 })
	cut, err := u.Stop(ctx)
	if err != nil || cut.Played != 200*time.Millisecond || cut.Dropped != time.Second {
		t.Errorf("%+v %v", cut, err)
	}
	if err := receive(t, "the blocked call", blocked); !errors.Is(err, transceiver.ErrInterrupted) {
		t.Errorf("%v", err)
	}
	// And then there is room again, also for a wait.
	u = c.Say()
	if err := u.Write(ctx, opusFrame(5)); err != nil {
		t.Error(err)
	}
	eventually(t, "the last packet", func() bool { return len(r.audio.packets()) == 61 })
	r.audio.play(1)
	if played, err := u.Wait(ctx); err != nil || played != frameDuration {
		t.Error(played, err)
	}
	for _, bad := range [][]byte{nil, {0x7b}, make([]byte, 2000)} {
		if err := u.Write(ctx, bad); !errors.Is(err, transceiver.ErrFrame) {
			t.Errorf("%d bytes: %v", len(bad), err)
		}
	}
}

func TestCallEvents(t *testing.T) {
	url, next := calls(t, HandlerConfig{})
	r := newRig(t, Config{}, url).begin()
	c, _ := next()
	ctx := within(t)
	r.events.in <- transceiver.Event{Text: true, Data: []byte("hi")}
	if ev, err := c.Events().Next(ctx); err != nil || !ev.Text || string(ev.Data) != "hi" {
		t.Errorf("%+v %v", ev, err)
	}
	if err := c.Events().SendJSON(ctx, map[string]int{"n": 1}); err != nil {
		t.Error(err)
	}
	if ev := r.event(); !ev.Text || string(ev.Data) != `{"n":1}` {
		t.Errorf("%+v", ev)
	}
	if err := c.Events().Send(ctx, transceiver.Event{Data: make([]byte, MaxPayload+1)}); !errors.Is(err, transceiver.ErrEventTooLarge) {
		t.Errorf("%v", err)
	}
}

// A service that reads no events is not held up by them.
func TestCallThatWantsNoEvents(t *testing.T) {
	url, next := calls(t, HandlerConfig{})
	r := newRig(t, Config{}, url).begin()
	c, _ := next()
	for range maxWaitingEvents + 10 {
		r.events.in <- transceiver.Event{Text: true, Data: []byte("hi")}
	}
	r.audio.hear(1)
	eventually(t, "the events to pass", func() bool { return r.b.Stats().EventsToService == maxWaitingEvents+10 })
	if _, err := c.Next(within(t)); err != nil {
		t.Error(err)
	}
}

func TestSlowCallLosesTheOldest(t *testing.T) {
	url, next := calls(t, HandlerConfig{ReceiveQueue: 5})
	r := newRig(t, Config{}, url).begin()
	c, _ := next()
	for n := range 12 {
		r.audio.hear(n)
	}
	r.events.in <- transceiver.Event{Data: []byte("after")} // in order behind the audio?
	eventually(t, "all to be sent", func() bool { return r.b.Stats().FramesToService == 12 })
	ctx := within(t)
	if _, err := c.Say().Wait(ctx); err != nil { // everything sent before has been read
		t.Fatal(err)
	}
	for i, want := range []byte{7, 8, 9, 10, 11} {
		f, err := c.Next(ctx)
		if err != nil || f.Payload[1] != want || (i == 0) != (f.Lost == 7) {
			t.Errorf("frame %d: %+v %v", want, f, err)
		}
	}
}

func TestHowACallEnds(t *testing.T) {
	quiet := Config{}
	t.Run("nil hangs up", func(t *testing.T) {
		url, next := calls(t, HandlerConfig{})
		r := newRig(t, quiet, url).begin()
		_, end := next()
		end <- nil
		var ended *EndError
		if c := r.state(StateEnded); !errors.As(c.Err, &ended) || ended.Reason != "finished" {
			t.Errorf("%v", c.Err)
		}
	})
	t.Run("Hangup", func(t *testing.T) {
		url, next := calls(t, HandlerConfig{})
		r := newRig(t, quiet, url).begin()
		c, _ := next()
		if err := c.Hangup("busy"); err != nil {
			t.Error(err)
		}
		var own *EndError
		if err := c.Say().Write(within(t), opusFrame(1)); !errors.As(err, &own) || own.Reason != "busy" {
			t.Errorf("after Hangup: %v", err)
		}
		var ended *EndError
		if c := r.state(StateEnded); !errors.As(c.Err, &ended) || ended.Reason != "busy" {
			t.Errorf("%v", c.Err)
		}
	})
	for name, failure := range map[string]error{"an error": errors.New("x"), "a restart": ErrRestart} {
		t.Run(name+" moves on", func(t *testing.T) {
			url, next := calls(t, HandlerConfig{})
			r := newRig(t, quiet, url).begin()
			_, end := next()
			end <- failure
			c, _ := next()
			if c.Connection() != 2 || c.Resume() == nil {
				t.Errorf("%+v", c.start)
			}
			r.state(StateReconnecting)
		})
	}
	t.Run("a panic moves on", func(t *testing.T) {
		first := true
		again := make(chan *Call, 1)
		url := serve(t, HandlerConfig{Serve: func(ctx context.Context, c *Call) error {
			if first {
				first = false
				panic("x")
			}
			again <- c
			<-ctx.Done()
			return nil
		}})
		newRig(t, quiet, url).begin()
		if c := receive(t, "the second connection", again); c.Connection() != 2 {
			t.Errorf("%+v", c.start)
		}
	})
	t.Run("the session's end", func(t *testing.T) {
		url, next := calls(t, HandlerConfig{})
		r := newRig(t, quiet, url).begin()
		c, _ := next()
		r.state(StateReady)
		r.cancel()
		var ended *EndError
		if _, err := c.Next(within(t)); !errors.As(err, &ended) || ended.Reason != "client closed" || !errors.Is(err, net.ErrClosed) {
			t.Errorf("%v", err)
		}
		_, waited := c.Say().Wait(within(t))
		for _, err := range []error{c.Say().Write(within(t), opusFrame(1)), waited, c.Hangup("x")} {
			if !errors.As(err, &ended) {
				t.Errorf("%v", err)
			}
		}
	})
}

func TestMissedIsTold(t *testing.T) {
	url, next := calls(t, HandlerConfig{})
	r := newRig(t, Config{}, url).begin()
	_, end := next()
	r.state(StateReady)
	r.audio.mu.Lock()
	r.audio.overrun = 3
	r.audio.mu.Unlock()
	end <- errors.New("x")
	c, _ := next()
	got := make(chan Missed, 10)
	c.OnMissed(func(m Missed) { got <- m })
	r.state(StateReady)
	// The first one may have come before OnMissed was called.
	r.audio.mu.Lock()
	r.audio.overrun = 5
	r.audio.mu.Unlock()
	r.audio.in <- transceiver.Frame{Payload: opusFrame(1), Duration: frameDuration, Lost: 2}
	for {
		select {
		case m := <-got:
			if m.Reason != missedNotReading {
				continue
			}
			if m.Frames != 2 || m.MS != 40 {
				t.Errorf("%+v", m)
			}
		case <-time.After(patience):
			t.Error("nothing was told")
		}
		return
	}
}

func TestDroppedIsTold(t *testing.T) {
	url, next := calls(t, HandlerConfig{})
	r := newRig(t, Config{}, url).begin()
	c, _ := next()
	got := make(chan string, 10)
	c.OnDropped(func(what, reason string, count uint64) { got <- what })
	if err := c.Events().Send(within(t), transceiver.Event{Text: true, Data: []byte{0xff}}); err != nil {
		t.Fatal(err)
	}
	if what := receive(t, "what was dropped", got); what != "event" {
		t.Error(what)
	}
	if r.b.Stats().EventsDropped != 1 {
		t.Errorf("%+v", r.b.Stats())
	}
}

func TestHandlerRefuses(t *testing.T) {
	entered := make(chan struct{}, 10)
	url := serve(t, HandlerConfig{
		MaxCalls: 1,
		Serve:    func(ctx context.Context, _ *Call) error { entered <- struct{}{}; <-ctx.Done(); return nil },
		Authorize: func(r *http.Request) error {
			if r.Header.Get("Authorization") != "Bearer secret" {
				return errors.New("no")
			}
			return nil
		},
	})
	ask := func(header string) int {
		r, err := http.NewRequestWithContext(within(t), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", header)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		http.DefaultClient.CloseIdleConnections()
		return resp.StatusCode
	}
	if code := ask("Bearer wrong"); code != http.StatusUnauthorized {
		t.Error(code)
	}
	if code := ask("Bearer secret"); code != http.StatusUpgradeRequired {
		t.Error(code)
	}
	r := newRig(t, Config{}, "::")
	r.b.pick = func(context.Context, int) (Target, error) {
		return Target{URL: url, Header: http.Header{"Authorization": {"Bearer secret"}}}, nil
	}
	r.begin()
	receive(t, "the call", entered)
	if code := ask("Bearer secret"); code != http.StatusServiceUnavailable {
		t.Error(code)
	}
}

// A transceiver that dies without a word ends the call, also in a handshake.
func TestSilentTransceiver(t *testing.T) {
	url, next := calls(t, HandlerConfig{SilenceTimeout: time.Second})
	ctx := within(t)
	for _, hello := range []bool{true, false} {
		conn, _, err := websocket.Dial(ctx, url, &websocket.DialOptions{Subprotocols: []string{Subprotocol}}) //nolint:bodyclose // the package says that there is nothing to close
		if err != nil {
			t.Fatal(err)
		}
		defer conn.CloseNow()
		if hello {
			if err := conn.Write(ctx, websocket.MessageText, []byte(`{"type":"start","codecs":["opus"],"window_ms":1000}`)); err != nil {
				t.Fatal(err)
			}
			c, _ := next()
			if _, err := c.Next(ctx); !errors.Is(err, ErrLost) {
				t.Errorf("%v", err)
			}
		}
		for err == nil {
			_, _, err = conn.Read(ctx)
		}
		if ctx.Err() != nil {
			t.Error("the connection stays open")
		}
	}
}

func TestConfigs(t *testing.T) {
	good := Config{Target: Target{URL: "ws://service"}}
	for field, change := range map[string]func(*Config){
		"Target.URL":       func(c *Config) { c.Target.URL = "" },
		"Target.URL ":      func(c *Config) { c.Target.URL = "ftp://service" },
		"Target.URL  ":     func(c *Config) { c.Target.URL = "ws://" },
		"Window":           func(c *Config) { c.Window = time.Millisecond },
		"Window ":          func(c *Config) { c.Window = time.Hour },
		"DialTimeout":      func(c *Config) { c.DialTimeout = -1 },
		"GiveUpAfter":      func(c *Config) { c.GiveUpAfter = -1 },
		"KeepAlive":        func(c *Config) { c.KeepAlive = -1 },
		"SilenceTimeout":   func(c *Config) { c.SilenceTimeout = time.Millisecond },
		"Audio.SendQueue":  func(c *Config) { c.Audio.SendQueue = time.Second },
		"Events.MaxBytes":  func(c *Config) { c.Events.MaxBytes = MaxPayload + 1 },
		"Codecs[0]":        func(c *Config) { c.Codecs = []Codec{nil} },
		"Codecs[0] ":       func(c *Config) { c.Codecs = []Codec{fakeCodec(8000)} },
		"Codecs[1]":        func(c *Config) { c.Codecs = []Codec{fakeCodec(16000), fakeCodec(16000)} },
		"Serve":            nil,
		"Codec":            nil,
		"MaxCalls":         nil,
		"ReceiveQueue":     nil,
		"SilenceTimeout  ": nil,
	} {
		want := field
		for len(want) > 0 && want[len(want)-1] == ' ' {
			want = want[:len(want)-1]
		}
		var err error
		if change != nil {
			cfg := good
			change(&cfg)
			_, err = Attach(nil, cfg)
		} else {
			cfg := HandlerConfig{Serve: func(context.Context, *Call) error { return nil }}
			switch want {
			case "Serve":
				cfg.Serve = nil
			case "Codec":
				cfg.Codec = "pcm16/8000"
			case "MaxCalls":
				cfg.MaxCalls = -1
			case "ReceiveQueue":
				cfg.ReceiveQueue = -1
			case "SilenceTimeout":
				cfg.SilenceTimeout = -1
			}
			_, err = NewHandler(cfg)
		}
		var bad *ConfigError
		if !errors.As(err, &bad) || bad.Field != want {
			t.Errorf("%q: %v", want, err)
		}
	}
	if err := good.validate(); err != nil {
		t.Error(err)
	}
}

func TestStatesHaveNames(t *testing.T) {
	for s := StateWaiting; s <= StateEnded; s++ {
		if b, err := s.MarshalText(); err != nil || string(b) == "unknown" || string(b) != s.String() {
			t.Errorf("%d: %s %v", s, b, err)
		}
	}
	if State(99).String() != "unknown" {
		t.Error("a state that is none has a name")
	}
}
