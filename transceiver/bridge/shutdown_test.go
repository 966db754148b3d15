package bridge

import (
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// TestShutdownHandsCallsOn: the session goes to another instance at once, what
// was said is played on, and Shutdown waits for the service.
func TestShutdownHandsCallsOn(t *testing.T) {
	started, finish := make(chan *Call, 1), make(chan struct{})
	old, err := NewHandler(HandlerConfig{Logger: slog.New(slog.DiscardHandler), Serve: func(ctx context.Context, c *Call) error {
		started <- c
		<-ctx.Done()
		<-finish
		return errors.New("the call is over")
	}})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(old)
	t.Cleanup(server.Close)
	url, next := calls(t, HandlerConfig{})
	r := newRig(t, Config{}, server.URL, url).begin()
	c := <-started
	write(t, c.Say(), 10)
	r.wrote(10)

	short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := old.Shutdown(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown does not wait for a call: %v", err)
	}
	if _, err := c.Next(within(t)); !errors.Is(err, ErrRestart) {
		t.Errorf("a call that was ended: %v", err)
	}
	if change := r.state(StateReconnecting); !errors.Is(change.Err, ErrRestart) {
		t.Errorf("%+v", change)
	}
	if again, _ := next(); again.Connection() != 2 || again.Resume().After != "service restart" || again.Resume().QueuedMS != 200 {
		t.Errorf("%+v", again.Resume())
	}
	close(finish)
	for range 2 {
		if err := old.Shutdown(within(t)); err != nil {
			t.Error(err)
		}
	}
	_, _, err = websocket.Dial(within(t), server.URL, &websocket.DialOptions{Subprotocols: []string{Subprotocol}}) //nolint:bodyclose // the package says that there is nothing to close
	if err == nil {
		t.Error("a service that was shut down takes calls")
	}
}

// TestShutdownInTheHandshake: a transceiver that has not said anything yet holds
// nothing up.
func TestShutdownInTheHandshake(t *testing.T) {
	h := Handler(func(context.Context, *Call) error { return nil })
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	conn, _, err := websocket.Dial(within(t), server.URL, &websocket.DialOptions{Subprotocols: []string{Subprotocol}}) //nolint:bodyclose // the package says that there is nothing to close
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	ended := make(chan error, 1)
	go func() {
		_, _, err := conn.Read(context.Background())
		ended <- err
	}()
	if err := h.Shutdown(within(t)); err != nil {
		t.Error(err)
	}
	if err := <-ended; websocket.CloseStatus(err) != websocket.StatusServiceRestart {
		t.Errorf("%v, want status 1012", err)
	}
}
