package transceiver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pion/webrtc/v4"
)

// eventClient is a client with one data channel.
type eventClient struct {
	*client
	d    *webrtc.DataChannel
	open chan struct{}
	got  chan webrtc.DataChannelMessage
}

func newEventClient(t testing.TB, label string) *eventClient {
	t.Helper()
	small := func(se *webrtc.SettingEngine) { se.SetSCTPMaxMessageSize(100000) }
	c := &eventClient{client: newClient(t, small), open: make(chan struct{}), got: make(chan webrtc.DataChannelMessage, 10000)}
	var err error
	if c.d, err = c.pc.CreateDataChannel(label, nil); err != nil {
		t.Fatal(err)
	}
	c.d.OnOpen(func() { close(c.open) })
	c.d.OnMessage(func(m webrtc.DataChannelMessage) { c.got <- m })
	return c
}

func (c *eventClient) receive() webrtc.DataChannelMessage {
	c.t.Helper()
	select {
	case m := <-c.got:
		return m
	case <-time.After(patience):
		c.t.Fatal("timed out waiting for an event")
		return webrtc.DataChannelMessage{}
	}
}

// events makes the call with OpenEvents.
func (c *eventClient) events(host *Host, cfg EventsConfig) (*Session, *Events) {
	c.t.Helper()
	var e *Events
	s := c.call(host, AcceptOptions{Prepare: func(s *Session) (err error) {
		e, err = s.OpenEvents(cfg)
		return err
	}})
	return s, e
}

func patient(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// bothWays runs a test with an attached and with a detached channel.
func bothWays(t *testing.T, f func(t *testing.T, host *Host)) {
	for name, detach := range map[string]bool{"attached": false, "detached": true} {
		t.Run(name, func(t *testing.T) {
			host, _ := setup(t, func(c *Config) { c.DetachDataChannels = detach })
			f(t, host)
		})
	}
}

func TestEventsBothWays(t *testing.T) {
	bothWays(t, func(t *testing.T, host *Host) {
		c := newEventClient(t, "oai-events")
		_, e := c.events(host, EventsConfig{})
		ctx := patient(t)
		if e.Label() != "" {
			t.Errorf("label %q before the client has opened it", e.Label())
		}
		// Sent before the channel is open: it waits.
		if err := e.SendJSON(ctx, map[string]string{"type": "session.created"}); err != nil {
			t.Fatal(err)
		}
		if m := c.receive(); !m.IsString || string(m.Data) != `{"type":"session.created"}` {
			t.Errorf("%+v", m)
		}
		wait(t, "Open", e.Open())
		if e.Label() != "oai-events" {
			t.Errorf("label %q", e.Label())
		}
		for i, want := range []Event{
			{true, []byte(`{"type":"hello"}`)}, {false, []byte{0, 1, 2}}, {true, []byte{}}, {false, []byte{}},
			{true, []byte(strings.Repeat("x", 60000))},
		} {
			var err error
			if want.Text {
				err = c.d.SendText(string(want.Data))
			} else {
				err = c.d.Send(want.Data)
			}
			if err != nil {
				t.Fatal(err)
			}
			ev, err := e.Next(ctx)
			if err != nil || ev.Text != want.Text || !bytes.Equal(ev.Data, want.Data) {
				t.Fatalf("event %d: %v %d bytes %v", i, ev.Text, len(ev.Data), err)
			}
			if err := e.Send(ctx, ev); err != nil {
				t.Fatal(err)
			}
			if m := c.receive(); m.IsString != want.Text || !bytes.Equal(m.Data, want.Data) {
				t.Errorf("event %d came back as %v %d bytes", i, m.IsString, len(m.Data))
			}
		}
	})
}

func TestEventsTakeTheChannelWithTheLabel(t *testing.T) {
	host, _ := setup(t, nil)
	c := newEventClient(t, "first")
	second, err := c.pc.CreateDataChannel("second", nil)
	if err != nil {
		t.Fatal(err)
	}
	opened := make(chan struct{})
	second.OnOpen(func() { close(opened) })
	others := make(chan string, 10)
	var e *Events
	c.call(host, AcceptOptions{Prepare: func(s *Session) (err error) {
		if e, err = s.OpenEvents(EventsConfig{Label: "second"}); err != nil {
			return err
		}
		if _, again := s.OpenEvents(EventsConfig{}); !errors.Is(again, ErrOpen) {
			t.Errorf("got %v", again)
		}
		s.OnDataChannel(func(d *webrtc.DataChannel) { others <- d.Label() })
		return nil
	}})
	wait(t, "the channel", opened)
	if err := second.SendText("hello"); err != nil {
		t.Fatal(err)
	}
	if ev, err := e.Next(patient(t)); err != nil || string(ev.Data) != "hello" || e.Label() != "second" {
		t.Errorf("%+v %v on %q", ev, err, e.Label())
	}
	select {
	case label := <-others:
		if label != "first" {
			t.Errorf("OnDataChannel got %q", label)
		}
	case <-time.After(patience):
		t.Error("the other channel went nowhere")
	}
}

func TestEventsHoldUpAClientThatIsNotRead(t *testing.T) {
	bothWays(t, func(t *testing.T, host *Host) {
		c := newEventClient(t, "events")
		_, e := c.events(host, EventsConfig{ReceiveBuffer: 10000})
		wait(t, "the channel", c.open)
		const events, size = 1600, 1000 // half as much again as SCTP's window
		for i := range events {
			if err := c.d.Send(append(fmt.Appendf(nil, "%6d", i), make([]byte, size-6)...)); err != nil {
				t.Fatal(err)
			}
		}
		// The Host's window is full before the client has sent it all.
		eventually(t, "the first events", func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return e.queued > 10000-2*size
		})
		e.mu.Lock()
		queued := e.queued
		e.mu.Unlock()
		if queued > 10000 {
			t.Errorf("%d bytes are queued", queued)
		}
		if c.d.BufferedAmount() == 0 {
			t.Error("the client is not held up")
		}
		next := func() (Event, error) {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			return e.Next(ctx)
		}
		for i := range events {
			ev, err := next()
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.TrimSpace(string(ev.Data[:6])); n != fmt.Sprint(i) || len(ev.Data) != size {
				t.Fatalf("event %d is %s with %d bytes", i, n, len(ev.Data))
			}
		}
	})
}

func TestSendBlocksForAClientThatDoesNotAcknowledge(t *testing.T) {
	host, relay := setup(t, nil)
	c := newEventClient(t, "events")
	_, e := c.events(host, EventsConfig{SendBuffer: 20000})
	wait(t, "the channel", c.open)
	wait(t, "Open", e.Open())
	all := func([]byte) bool { return true }
	relay.dropIn.Store(&all) // acknowledgements, among others
	var sent atomic.Int64
	done := make(chan error, 1)
	const events, size = 100, 1000
	go func() {
		for i := range events {
			if err := e.Send(patient(t), Event{Data: append(fmt.Appendf(nil, "%6d", i), make([]byte, size-6)...)}); err != nil {
				done <- err
				return
			}
			sent.Add(1)
		}
		done <- nil
	}()
	eventually(t, "the buffer to fill", func() bool { return c.d != nil && e.channel.Load().BufferedAmount() > 20000 })
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := e.Send(ctx, Event{Data: make([]byte, size)}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if n := sent.Load(); n > 30 {
		t.Errorf("%d events of %d bytes went into a buffer of 20,000", n, size)
	}
	relay.dropIn.Store(nil)
	for i := range events {
		if m := c.receive(); strings.TrimSpace(string(m.Data[:6])) != fmt.Sprint(i) {
			t.Fatalf("event %d is %s", i, m.Data[:6])
		}
	}
	if err := receive(t, "the sender", done); err != nil {
		t.Error(err)
	}
}

func TestEventsThatAreTooLarge(t *testing.T) {
	bothWays(t, func(t *testing.T, host *Host) {
		c := newEventClient(t, "events")
		s, e := c.events(host, EventsConfig{MaxBytes: 5000})
		wait(t, "the channel", c.open)
		ctx := patient(t)
		if err := e.Send(ctx, Event{Data: make([]byte, 100001)}); !errors.Is(err, ErrEventTooLarge) {
			t.Errorf("a large one to the client: %v", err)
		}
		for _, n := range []int{5000, 5001} {
			if err := c.d.Send(make([]byte, n)); err != nil {
				t.Fatal(err)
			}
		}
		if ev, err := e.Next(ctx); err != nil || len(ev.Data) != 5000 {
			t.Errorf("%d bytes, %v", len(ev.Data), err)
		}
		if _, err := e.Next(ctx); !errors.Is(err, ErrEventTooLarge) {
			t.Errorf("a large one from the client: %v", err)
		}
		if s.Err() != nil {
			t.Errorf("the session ended: %v", s.Err())
		}
	})
}

func TestEventsEnd(t *testing.T) {
	bothWays(t, func(t *testing.T, host *Host) {
		t.Run("the client closes the channel", func(t *testing.T) {
			c := newEventClient(t, "events")
			_, e := c.events(host, EventsConfig{})
			wait(t, "the channel", c.open)
			if err := c.d.SendText("last"); err != nil {
				t.Fatal(err)
			}
			ctx := patient(t)
			if err := c.d.Close(); err != nil {
				t.Fatal(err)
			}
			if ev, err := e.Next(ctx); err != nil || string(ev.Data) != "last" {
				t.Errorf("%+v %v", ev, err)
			}
			if _, err := e.Next(ctx); err != io.EOF {
				t.Errorf("Next: %v", err)
			}
			if err := e.Send(ctx, Event{}); !errors.Is(err, io.ErrClosedPipe) {
				t.Errorf("Send: %v", err)
			}
		})
		t.Run("the session ends", func(t *testing.T) {
			c := newEventClient(t, "events")
			s, e := c.events(host, EventsConfig{ReceiveBuffer: 1})
			wait(t, "the channel", c.open)
			for range 3 { // the reader waits for room
				if err := c.d.SendText("event"); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := e.Next(patient(t)); err != nil {
				t.Fatal(err)
			}
			_ = s.Close()
			wait(t, "the end", s.Done())
			for {
				_, err := e.Next(patient(t))
				if err == nil {
					continue // one that came before
				}
				if !errors.Is(err, ErrSessionClosed) {
					t.Errorf("Next: %v", err)
				}
				break
			}
			if err := e.Send(patient(t), Event{}); !errors.Is(err, ErrSessionClosed) {
				t.Errorf("Send: %v", err)
			}
		})
		t.Run("the channel is never opened", func(t *testing.T) {
			c := newClient(t, nil)
			if _, err := c.pc.AddTransceiverFromKind(webrtc.RTPCodecTypeAudio); err != nil {
				t.Fatal(err)
			}
			var e *Events
			s := c.call(host, AcceptOptions{Prepare: func(s *Session) (err error) {
				e, err = s.OpenEvents(EventsConfig{})
				return err
			}})
			errs := make(chan error, 2)
			go func() { errs <- e.Send(context.Background(), Event{}) }()
			go func() { _, err := e.Next(context.Background()); errs <- err }()
			_ = s.Close()
			for range 2 {
				if err := receive(t, "the end of a call", errs); !errors.Is(err, ErrSessionClosed) {
					t.Errorf("got %v", err)
				}
			}
		})
	})
}

func TestEventsConfigIsChecked(t *testing.T) {
	for field, cfg := range map[string]EventsConfig{
		"ReceiveBuffer": {ReceiveBuffer: -1}, "SendBuffer": {SendBuffer: -1}, "MaxBytes": {MaxBytes: 1 << 30},
	} {
		var bad *ConfigError
		if _, err := (&Session{}).OpenEvents(cfg); !errors.As(err, &bad) || bad.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}
