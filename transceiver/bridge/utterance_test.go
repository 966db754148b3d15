package bridge

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/usher-rtc/usher/transceiver"
)

// speech is a bridge whose client plays when it is told to, and the call of its
// service.
func speech(t testing.TB, cfg Config, handler HandlerConfig) (*rig, *Call, func() (*Call, chan<- error), chan<- error) {
	t.Helper()
	url, next := calls(t, handler)
	r := newRig(t, cfg, url).begin()
	c, end := next()
	return r, c, next, end
}

func (r *rig) wrote(n int) {
	r.t.Helper()
	eventually(r.t, "the audio to arrive", func() bool { return len(r.audio.packets()) == n })
}

func write(t testing.TB, u *Utterance, frames int) {
	t.Helper()
	for range frames {
		if err := u.Write(within(t), opusFrame(1)); err != nil {
			t.Fatal(err)
		}
	}
}

const ms = time.Millisecond

func TestUtteranceIsPlayed(t *testing.T) {
	r, c, _, _ := speech(t, Config{}, HandlerConfig{})
	ctx := within(t)
	for range 2 {
		before := len(r.audio.packets())
		u := c.Say()
		write(t, u, 5)
		r.wrote(before + 5)
		r.audio.play(5)
		if played, err := u.Wait(ctx); err != nil || played != 100*ms {
			t.Errorf("played %v, %v", played, err)
		}
		// Too late to stop it: nothing is sent for that.
		cuts := c.nextID
		if cut, err := u.Stop(ctx); err != nil || cut.Played != 100*ms || cut.Dropped != 0 || c.nextID != cuts {
			t.Errorf("stopped after its end: %+v, %v", cut, err)
		}
		if err := u.Write(ctx, opusFrame(1)); !errors.Is(err, transceiver.ErrInterrupted) {
			t.Errorf("a write after Stop: %v", err)
		}
	}
}

func TestUtteranceIsStopped(t *testing.T) {
	r, c, _, _ := speech(t, Config{}, HandlerConfig{})
	ctx := within(t)
	written := 0
	for range 2 { // the second one's position is after what the first one did not say
		u := c.Say()
		write(t, u, 10)
		written += 10
		r.wrote(written)
		r.audio.play(3)
		type outcome struct {
			played time.Duration
			err    error
		}
		waited := make(chan outcome, 1)
		go func() {
			played, err := u.Wait(ctx)
			waited <- outcome{played, err}
		}()
		for range 2 { // the second one finds it stopped
			if cut, err := u.Stop(ctx); err != nil || cut.Played != 60*ms || cut.Dropped != 140*ms {
				t.Errorf("%+v, %v", cut, err)
			}
		}
		if got := <-waited; got.played != 60*ms || !errors.Is(got.err, transceiver.ErrInterrupted) {
			t.Errorf("Wait: %+v", got)
		}
		if played, err := u.Wait(ctx); played != 60*ms || !errors.Is(err, transceiver.ErrInterrupted) {
			t.Errorf("Wait after Stop: %v, %v", played, err)
		}
		if err := u.Write(ctx, opusFrame(1)); !errors.Is(err, transceiver.ErrInterrupted) {
			t.Errorf("a write after Stop: %v", err)
		}
	}
	if got := len(r.audio.packets()); got != written {
		t.Errorf("%d packets, want %d", got, written)
	}
}

// Whoever is blocked in Write while others stop it never gets a frame behind the
// interruption, and what is said next never gets before it.
func TestNothingIsWrittenAfterStop(t *testing.T) {
	r, c, _, _ := speech(t, Config{Window: time.Second}, HandlerConfig{})
	ctx := within(t)
	for n := range 20 {
		u := c.Say()
		var wg sync.WaitGroup
		wg.Go(func() {
			err := error(nil)
			for err == nil {
				err = u.Write(ctx, opusFrame(1))
			}
			if !errors.Is(err, transceiver.ErrInterrupted) {
				t.Error(err)
			}
			if err := c.Say().Write(ctx, opusFrame(2)); err != nil {
				t.Error(err)
			}
		})
		if n%2 == 0 {
			eventually(t, "the window to be full", func() bool { return r.audio.Stats().QueuedOut >= 900*ms })
		}
		for range 2 {
			wg.Go(func() {
				if _, err := u.Stop(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if err := c.Events().Send(ctx, transceiver.Event{}); err != nil {
			t.Error(err)
		}
		r.event() // the transceiver has read everything
		if left := r.audio.Stats().QueuedOut; left != frameDuration {
			t.Fatalf("%v are queued after Stop and one more frame", left)
		}
	}
}

func TestUtterancesFollowEachOther(t *testing.T) {
	r, c, _, _ := speech(t, Config{}, HandlerConfig{})
	ctx := within(t)
	first := c.Say()
	write(t, first, 5)
	second := c.Say()
	write(t, second, 5)
	if err := first.Write(ctx, opusFrame(1)); !errors.Is(err, ErrSuperseded) {
		t.Errorf("a write to the older one: %v", err)
	}
	r.wrote(10)
	r.audio.play(7)
	if played, err := first.Wait(ctx); err != nil || played != 100*ms { // not behind the second one
		t.Errorf("the older one: %v, %v", played, err)
	}
	if cut, err := first.Stop(ctx); err != nil || cut.Dropped != 0 {
		t.Errorf("the older one stops the newer one: %+v, %v", cut, err)
	}
	if cut, err := second.Stop(ctx); err != nil || cut.Played != 40*ms || cut.Dropped != 60*ms {
		t.Errorf("%+v, %v", cut, err)
	}
	// Both wait: stopping one stops the other.
	first = c.Say()
	write(t, first, 5)
	second = c.Say()
	write(t, second, 5)
	r.wrote(20)
	r.audio.play(1)
	if cut, err := first.Stop(ctx); err != nil || cut.Played != 20*ms || cut.Dropped != 180*ms {
		t.Errorf("%+v, %v", cut, err)
	}
	if played, err := second.Wait(ctx); played != 0 || !errors.Is(err, transceiver.ErrInterrupted) {
		t.Errorf("%v, %v", played, err)
	}
	if err := second.Write(ctx, opusFrame(1)); !errors.Is(err, transceiver.ErrInterrupted) {
		t.Error(err)
	}
}

// What a lost service had said counts for the window, can be waited for and
// stopped.
func TestUtteranceOfALostService(t *testing.T) {
	r, c, next, end := speech(t, Config{Window: time.Second}, HandlerConfig{})
	write(t, c.Say(), 40)
	r.wrote(40)
	end <- errors.New("x")
	c, _ = next()
	if rest := c.Resume(); rest == nil || rest.QueuedMS != 800 {
		t.Fatalf("%+v", rest)
	}
	rest := c.Say()
	u := c.Say()
	write(t, u, 10)
	full, cancel := context.WithTimeout(context.Background(), 20*ms)
	defer cancel()
	if err := u.Write(full, opusFrame(1)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("beyond the window: %v", err)
	}
	r.wrote(50)
	r.audio.play(30)
	if cut, err := rest.Stop(within(t)); err != nil || cut.Played != 0 || cut.Dropped != 400*ms {
		t.Errorf("%+v, %v", cut, err)
	}
	if _, err := rest.Wait(within(t)); !errors.Is(err, transceiver.ErrInterrupted) {
		t.Error(err)
	}
	if played, err := u.Wait(within(t)); played != 0 || !errors.Is(err, transceiver.ErrInterrupted) {
		t.Errorf("%v, %v", played, err)
	}
}

// Stop stops though its context is done already.
func TestStopNeedsNoTime(t *testing.T) {
	r, c, _, _ := speech(t, Config{}, HandlerConfig{})
	u := c.Say()
	write(t, u, 10)
	r.wrote(10)
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := u.Stop(over); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if cut, err := u.Stop(within(t)); err != nil || cut.Dropped != 200*ms {
		t.Errorf("%+v, %v", cut, err)
	}
}

// PCM of any length is cut into messages, and what was played of it is known to
// the frame.
func TestUtteranceOfPCM(t *testing.T) {
	r, c, _, _ := speech(t, Config{Codecs: []Codec{fakeCodec(16000)}}, HandlerConfig{Codec: "pcm16/16000"})
	ctx := within(t)
	u := c.Say()
	if err := u.Write(ctx, make([]byte, 32*1010)); err != nil { // 1,010 ms: the last frame is half
		t.Fatal(err)
	}
	r.wrote(50)
	r.audio.play(50)
	go func() {
		eventually(t, "the last frame", func() bool { return len(r.audio.packets()) == 51 })
		r.audio.play(1)
	}()
	if played, err := u.Wait(ctx); err != nil || played != 1010*ms {
		t.Errorf("%v, %v", played, err)
	}
	u = c.Say()
	if err := u.Write(ctx, make([]byte, 32*1000)); err != nil {
		t.Fatal(err)
	}
	r.wrote(101)
	r.audio.play(7)
	if cut, err := u.Stop(ctx); err != nil || cut.Played != 140*ms || cut.Dropped != 860*ms {
		t.Errorf("%+v, %v", cut, err)
	}
	for _, bad := range [][]byte{nil, make([]byte, 3)} {
		if err := c.Say().Write(ctx, bad); !errors.Is(err, transceiver.ErrFrame) {
			t.Errorf("%d bytes: %v", len(bad), err)
		}
	}
}

// Nothing new is written while an interruption has yet to be sent: it would be
// dropped with what is old.
func TestWhatFollowsWaitsForTheInterruption(t *testing.T) {
	_, c, _, _ := speech(t, Config{}, HandlerConfig{})
	ctx := within(t)
	u := c.Say()
	write(t, u, 5)
	c.turn <- struct{}{} // Stop comes no further
	stopped := make(chan error, 1)
	go func() {
		_, err := u.Stop(ctx)
		stopped <- err
	}()
	eventually(t, "Stop to begin", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.stopping == 1
	})
	next := c.Say()
	if at, room, err := next.reserve(frameDuration); room == nil || err != nil {
		t.Errorf("a frame has a place at %v: %v", at, err)
	}
	<-c.turn
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	write(t, next, 1)
}
