package callers

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/usher-rtc/usher/internal/meter"
)

// Speaker is a caller that speaks at the pace of a meter.Pacer and keeps a record
// of what it sent and heard. It makes one call after the other; the zero value has
// made none.
type Speaker struct {
	*Caller                   // of the last call; nil before the first
	Quiet         atomic.Bool // true makes it say nothing
	Spoken, Heard meter.Log

	numbers  meter.Unwrapper // of what is sent
	mu       sync.Mutex
	arrivals meter.Unwrapper // of what is received, by Pion's goroutine
	remove   func()
}

// Call makes a call and waits until audio flows: open makes the client, as
// Engine.New does, and signal carries the offer to a server and returns its
// answer. setup is the time from the beginning until then. The last call has been
// hung up before. What was numbered in it is forgotten.
func (s *Speaker) Call(ctx context.Context, o Options, open func(Options) (*Caller, error),
	signal func(ctx context.Context, offer string) (answer string, err error),
) (setup time.Duration, err error) {
	s.mu.Lock()
	s.arrivals = meter.Unwrapper{}
	s.mu.Unlock()
	s.numbers = meter.Unwrapper{}
	o.OnAudio = s.hear
	begin := time.Now()
	fresh, err := open(o)
	if err != nil {
		return 0, err
	}
	s.Caller = fresh
	offer, err := s.Offer()
	if err != nil {
		return 0, err
	}
	answer, err := signal(ctx, offer)
	if err != nil {
		return 0, err
	}
	signalled := time.Since(begin)
	if err := s.Answer(answer); err != nil {
		return 0, err
	}
	times, err := s.Wait(ctx, true)
	return signalled + times.Audio, err
}

func (s *Speaker) hear(seq uint16) {
	at := meter.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Heard.Add(s.arrivals.Next(seq), at)
}

// Speak sends a packet each time it is the speaker's turn, until Stop.
func (s *Speaker) Speak(p *meter.Pacer) {
	s.remove = p.Add(func() {
		if s.Quiet.Load() {
			return
		}
		at := meter.Now()
		_ = s.Send() // lost, if there is no socket at the moment, and counted as that
		s.Spoken.Add(s.numbers.Next(s.Sent()), at)
	})
}

// Stop makes the speaker silent for good, or until the next Speak.
func (s *Speaker) Stop() {
	if s.remove != nil {
		s.remove()
		s.remove = nil
	}
}

// HangUp stops the speaker and ends its call, if there is one.
func (s *Speaker) HangUp() {
	s.Stop()
	if s.Caller != nil {
		s.Close()
	}
}

// HangUpAll stops speakers and then ends their calls side by side: each tells its
// server and waits for its goroutines.
func HangUpAll[S interface {
	Stop()
	HangUp()
}](all []S) {
	for _, s := range all {
		s.Stop()
	}
	_ = Each(context.Background(), len(all), 16, func(i int) error { // none fails
		all[i].HangUp()
		return nil
	})
}
