package bridge

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/usher-rtc/usher/transceiver"
)

// receive waits for a value, or for a channel to be closed.
func receive[T any](t testing.TB, what string, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(patience):
		t.Fatalf("timed out waiting for %s", what)
	}
	return v
}

// A session that ends while it is attached runs nothing any more; its bridge
// ends all the same.
func TestBridgeOfASessionThatHasEnded(t *testing.T) {
	cfg := Config{Target: Target{URL: "ws://127.0.0.1:9"}, Logger: slog.New(slog.DiscardHandler)}
	if err := cfg.validate(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	closed := make(chan struct{})
	b := newBridge(cfg, sessionPort{
		ctx: ctx, connected: make(chan struct{}), run: func(func(context.Context)) {},
		reason: func() string { return "drained" }, close: func() { close(closed) },
	}, newFakeAudio(), &fakeEvents{}, nil)
	b.begin()
	receive(t, "the end of the bridge", b.Done())
	receive(t, "the end of the session", closed)
	var end *EndError
	if err := b.Err(); !errors.As(err, &end) || end.Reason != "drained" || b.State() != StateEnded {
		t.Errorf("%v: %v", b.State(), err)
	}
}

// What a service says is heard although it does not read and writes to it wait.
func TestEndFromAServiceThatDoesNotRead(t *testing.T) {
	s := newScript(t)
	r := newRig(t, Config{KeepAlive: time.Minute, SilenceTimeout: time.Minute}, s.URL).begin()
	raw, _ := s.ready(t, "")
	r.state(StateReady)
	big := transceiver.Event{Data: make([]byte, MaxPayload)}
	for blocked := false; !blocked; {
		select {
		case r.events.in <- big:
		case <-time.After(2 * time.Second): // the pump has stopped, most likely
			blocked = true
		}
	}
	r.audio.in <- transceiver.Frame{Payload: opusFrame(1), Duration: frameDuration}
	eventually(t, "audio to wait too", func() bool {
		free := r.b.gap.mu.TryLock()
		if free {
			r.b.gap.mu.Unlock()
		}
		return !free
	})
	raw.say(end{Type: typeEnd, Reason: "goodbye"})
	r.state(StateEnded)
	var ended *EndError
	if err := r.b.Err(); !errors.As(err, &ended) || ended.Reason != "goodbye" {
		t.Errorf("%v", err)
	}
}

// A service that asked for events and does not read them loses its connection,
// and is told so.
func TestServiceThatDoesNotReadItsEvents(t *testing.T) {
	url, next := calls(t, HandlerConfig{SilenceTimeout: 500 * time.Millisecond})
	r := newRig(t, Config{KeepAlive: 100 * time.Millisecond}, url).begin()
	c, _ := next()
	c.Events()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			select {
			case r.events.in <- transceiver.Event{Text: true, Data: []byte("event")}:
			case <-stop:
				return
			}
		}
	}()
	if _, err := c.Next(within(t)); !errors.Is(err, ErrLost) {
		t.Errorf("Next returned %v, want ErrLost", err)
	}
}
