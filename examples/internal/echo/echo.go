// Package echo is the application of the examples: what a client says comes
// back to it, and so do the events of its data channel. It stands where a voice
// service would.
package echo

import (
	"context"
	"errors"
	"time"

	"github.com/usher-rtc/usher/transceiver"
)

// Attach makes a session an echo. It is a transceiver.Config.OnSession.
func Attach(s *transceiver.Session) error {
	events, err := s.OpenEvents(transceiver.EventsConfig{})
	if err != nil {
		return err
	}
	s.Go(func(ctx context.Context) {
		for {
			event, err := events.Next(ctx)
			if err != nil || events.Send(ctx, event) != nil {
				return // the call has ended, or its channel
			}
		}
	})
	// An echo that is late is no use: after a stall the oldest of what waits is dropped.
	audio, err := s.OpenAudio(transceiver.AudioConfig{ReceiveQueue: 15, SendQueue: 200 * time.Millisecond})
	if errors.Is(err, transceiver.ErrNoOpus) {
		return nil // a client with a data channel alone
	}
	if err != nil {
		return err
	}
	s.Go(func(ctx context.Context) {
		for frame, err := range audio.Frames(ctx) {
			if err != nil || audio.Write(ctx, frame.Payload) != nil {
				return
			}
		}
	})
	return nil
}
