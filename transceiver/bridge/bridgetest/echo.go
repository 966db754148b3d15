package bridgetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/usher-rtc/usher/transceiver"
	"github.com/usher-rtc/usher/transceiver/bridge"
)

// Echo is the application that Run expects of a service, as docs/bridge.md
// describes it. It is for bridge.Handler.
func Echo(ctx context.Context, call *bridge.Call) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	events := call.Events()
	var speech atomic.Pointer[bridge.Utterance] // an interruption begins another one
	speech.Store(call.Say())
	hungUp := make(chan error, 1)
	wg.Go(func() {
		defer cancel()
		hungUp <- echoEvents(ctx, call, events, &speech)
	})
	for frame, err := range call.Frames(ctx) {
		if err == nil {
			err = speech.Load().Write(ctx, frame.Payload)
		}
		if errors.Is(err, transceiver.ErrInterrupted) {
			continue
		}
		if err != nil {
			cancel()
			if asked := <-hungUp; asked == nil {
				return nil
			}
			return err
		}
	}
	return nil
}

// echoEvents returns nil when it was asked to hang up.
func echoEvents(ctx context.Context, call *bridge.Call, events *bridge.Events, speech *atomic.Pointer[bridge.Utterance]) error {
	say := func(format string, args ...any) error {
		return events.Send(ctx, transceiver.Event{Text: true, Data: fmt.Appendf(nil, format, args...)})
	}
	for {
		ev, err := events.Next(ctx)
		if err != nil {
			return err
		}
		command := ""
		if ev.Text {
			command = string(ev.Data)
		}
		switch command {
		case "!interrupt":
			var cut transceiver.Interrupted
			if cut, err = speech.Load().Stop(ctx); err == nil {
				speech.Store(call.Say())
				err = say("interrupted %d %d", cut.Played.Milliseconds(), cut.Dropped.Milliseconds())
			}
		case "!mark":
			if _, err = speech.Load().Wait(ctx); err == nil {
				err = say("marked")
			}
		case "!session":
			after := ""
			if r := call.Resume(); r != nil {
				after = r.After
			}
			err = events.SendJSON(ctx, Session{
				Token: call.Token(), Session: call.Session(), Connection: call.Connection(),
				Client: call.Client().String(), Metadata: call.Metadata(), After: after,
			})
		case "!hangup":
			return call.Hangup("asked")
		default:
			err = events.Send(ctx, ev)
		}
		if err != nil {
			return err
		}
	}
}
