package bridgetest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/usher-rtc/usher/transceiver"
	"github.com/usher-rtc/usher/transceiver/bridge"
	"github.com/usher-rtc/usher/transceiver/bridge/bridgetest"
)

const (
	ms    = time.Millisecond
	frame = 20 * ms
)

func packet(n byte) []byte { return []byte{0x78, n} } // CELT, full band, 20 ms

// parrot says each frame of the client's ten times, until the client says the
// next one, and tells the client how each utterance ended.
func parrot(ctx context.Context, call *bridge.Call) error {
	tell := func(format string, args ...any) error {
		return call.Events().Send(ctx, transceiver.Event{Text: true, Data: fmt.Appendf(nil, format, args...)})
	}
	rest := 0.0
	if r := call.Resume(); r != nil {
		rest = r.QueuedMS
	}
	if err := tell("%s: connection %d, %v ms left", call.Metadata(), call.Connection(), rest); err != nil {
		return err
	}
	speech := call.Say()
	ended := make(chan struct{})
	close(ended)
	defer func() { <-ended }()
	for f, err := range call.Frames(ctx) {
		if err != nil {
			return err
		}
		if _, err := speech.Stop(ctx); err != nil {
			return err
		}
		<-ended
		if f.HasLevel && f.Level == 0 {
			return call.Hangup("too loud")
		}
		speech, ended = call.Say(), make(chan struct{})
		for range 10 {
			if err := speech.Write(ctx, f.Payload); err != nil {
				return err
			}
		}
		if err := tell("said"); err != nil {
			return err
		}
		go func() {
			defer close(ended)
			played, err := speech.Wait(ctx)
			if err == nil || errors.Is(err, transceiver.ErrInterrupted) {
				_ = tell("%v, %v at %v", played, err != nil, f.Time)
			}
		}()
	}
	return nil
}

func TestCaller(t *testing.T) {
	c := bridgetest.NewCaller(t, bridgetest.CallerConfig{
		Service: bridgetest.Service{Handler: bridge.Handler(parrot)}, Metadata: []byte(`"polly"`),
	})
	event := func(want string) {
		t.Helper()
		if ev := c.Event(); !ev.Text || string(ev.Data) != want {
			t.Fatalf("%q, want %q", ev.Data, want)
		}
	}
	event(`"polly": connection 1, 0 ms left`)
	c.Say(transceiver.Frame{Payload: packet(1)})
	event("said")
	if heard := c.HearOut(); len(heard) == 0 || !bytes.Equal(heard[0], packet(1)) {
		t.Errorf("heard % x", heard)
	}
	event("200ms, false at 0s")

	c.Pause(time.Second)
	c.Say(transceiver.Frame{Payload: packet(2)})
	event("said")
	c.Hear(3 * frame)
	c.Say(transceiver.Frame{Payload: packet(3)})
	if cut := c.Interrupted(); cut.Played != 60*ms || cut.Dropped != 140*ms {
		t.Errorf("%+v", cut)
	}
	event("60ms, true at 1.02s")
	event("said")

	heard := c.Hear(9 * frame)
	if len(heard) != 9 || !bytes.Equal(heard[8], packet(3)) {
		t.Errorf("heard % x after the interruption", heard)
	}
	c.Kill()
	c.Reconnect()
	event(`"polly": connection 2, 20 ms left`)
	c.Say(transceiver.Frame{Payload: packet(4)}) // stops that
	if cut := c.Interrupted(); cut.Dropped != frame {
		t.Errorf("%+v", cut)
	}
	event("said")
	if heard := c.HearOut(); len(heard) != 10 || !bytes.Equal(heard[0], packet(4)) {
		t.Errorf("heard % x", heard)
	}
	event("200ms, false at 1.06s")
	c.Say(transceiver.Frame{Payload: packet(5), HasLevel: true})
	if hangup, status := c.Ended(); hangup != "too loud" || status == 1012 {
		t.Errorf("%q, status %d", hangup, status)
	}
}

// TestCallerEnds: the session's own end, and a service's restart.
func TestCallerEnds(t *testing.T) {
	over := make(chan error, 1)
	h := bridge.Handler(func(ctx context.Context, call *bridge.Call) error {
		ev, err := call.Events().Next(ctx)
		if err == nil {
			_ = call.Events().Send(ctx, ev)
			_, err = call.Next(ctx)
		}
		over <- err
		return err
	})
	c := bridgetest.NewCaller(t, bridgetest.CallerConfig{Service: bridgetest.Service{Handler: h}})
	c.Send(transceiver.Event{Data: []byte{1, 2}})
	if ev := c.Event(); ev.Text || !bytes.Equal(ev.Data, []byte{1, 2}) {
		t.Errorf("%+v", ev)
	}
	c.End("client closed")
	var end *bridge.EndError
	if err := <-over; !errors.As(err, &end) || end.Reason != "client closed" {
		t.Errorf("%v", err)
	}
	if hangup, status := c.Ended(); hangup != "" || status != 1000 {
		t.Errorf("%q, status %d", hangup, status)
	}
	c.Reconnect()
	if err := h.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if hangup, status := c.Ended(); hangup != "" || status != 1012 {
		t.Errorf("%q, status %d", hangup, status)
	}
}

// TestCallerDividesPCM: what was heard of PCM is exact.
func TestCallerDividesPCM(t *testing.T) {
	for codec, rate := range map[string]int{"pcm16/16000": 16, "pcm16/24000": 24} { // samples a ms
		h, err := bridge.NewHandler(bridge.HandlerConfig{Codec: codec, Serve: func(ctx context.Context, call *bridge.Call) error {
			f, err := call.Next(ctx)
			if err != nil {
				return err
			}
			u := call.Say()
			for range 2 {
				if err := u.Write(ctx, bytes.Repeat(f.Payload, 25)); err != nil { // 500 ms
					return err
				}
			}
			_, err = u.Wait(ctx)
			if err == nil {
				_, err = call.Next(ctx)
			}
			return err
		}})
		if err != nil {
			t.Fatal(err)
		}
		c := bridgetest.NewCaller(t, bridgetest.CallerConfig{Service: bridgetest.Service{Handler: h, Codec: codec}, Window: 600 * ms})
		c.Say(transceiver.Frame{Payload: make([]byte, 2*20*rate)})
		heard := c.Hear(130 * ms)
		if n := len(bytes.Join(heard, nil)); n != 2*130*rate {
			t.Errorf("%s: %d bytes for 130 ms", codec, n)
		}
		heard = append(heard, c.Hear(450*ms)...) // the window has room again
		if n := len(bytes.Join(append(heard, c.HearOut()...), nil)); n != 2*1000*rate {
			t.Errorf("%s: %d bytes for 1 s", codec, n)
		}
	}
}

// A test of a service that says one thing and stops when the client speaks.
func ExampleCaller() {
	_ = func(t *testing.T) { // a test of yours
		c := bridgetest.NewCaller(t, bridgetest.CallerConfig{Service: bridgetest.Service{Handler: bridge.Handler(parrot)}})
		c.Say(transceiver.Frame{Payload: []byte{0x78, 1}, HasLevel: true, Level: 30})
		c.Hear(60 * time.Millisecond) // of the answer
		c.Say(transceiver.Frame{Payload: []byte{0x78, 2}, HasLevel: true, Level: 30})
		if cut := c.Interrupted(); cut.Played != 60*time.Millisecond {
			t.Errorf("the client heard %v of the answer", cut.Played)
		}
	}
}
