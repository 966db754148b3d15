package bridge

import (
	"context"
	"time"

	"github.com/usher-rtc/usher/internal/opus"
	"github.com/usher-rtc/usher/transceiver"
)

const (
	// piece is how much PCM goes into one message: little enough for Stop not
	// to wait behind it, and for the smallest window.
	piece = 200 * time.Millisecond
	// grain is how exact positions are that went over the wire: in
	// microseconds, where a sample need not be a whole number of them.
	grain = time.Millisecond
)

// Utterance is something that a service says: Call.Say begins it, Write goes on
// with it, Wait follows it to its end, Stop cuts it off. All methods are safe for
// concurrent use.
//
// The client has one loudspeaker, so utterances follow each other: only the
// newest one of a call can be written, what is queued of older ones is played
// before it, and Stop ends all that is queued.
type Utterance struct {
	c     *Call
	era   *era
	begin time.Duration // in Call.written
	// The rest is under the Call's lock.
	end     time.Duration
	stopped bool // by Stop, after all of it was played
}

// era is what a Call says from one interruption to the next.
type era struct {
	stopped bool          // the interruption is on its way; under the Call's lock
	written time.Duration // then: Call.written
	over    chan struct{} // closed when the transceiver has answered it
	head    time.Duration // then: where the client was, in Call.written
	dropped time.Duration // then: what was queued
}

func newEra() *era { return &era{over: make(chan struct{})} }

// reached reports whether the client has been sent everything before end.
func reached(at, end time.Duration) bool { return at > end-grain }

// Say begins an utterance. The one before it takes no more writes
// (ErrSuperseded), but what is queued of it is played first. To be heard at
// once, stop that one.
//
// One without a Write stands for what is queued already, such as the audio of a
// service that was lost (Resume.QueuedMS): Wait waits for it and Stop drops it.
func (c *Call) Say() *Utterance {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := &Utterance{c: c, era: c.era, begin: c.written, end: c.written}
	c.current = u
	c.wakeWriters()
	return u
}

// Write adds audio to the utterance: one Opus packet, or PCM of any whole number
// of samples. The transceiver paces it. Write blocks while the transceiver's
// window is full, until ctx is done or the call ends. It returns
// transceiver.ErrInterrupted once the utterance is stopped, ErrSuperseded once
// another has begun, and transceiver.ErrFrame for what is no audio. The bytes
// may be reused when it has returned.
func (u *Utterance) Write(ctx context.Context, audio []byte) error {
	rate := u.c.rate
	if rate == 0 {
		d, ok := opus.Duration(audio)
		if !ok || len(audio) > opus.MaxFrame {
			return transceiver.ErrFrame
		}
		return u.write(ctx, audio, d)
	}
	if len(audio) == 0 || len(audio)%2 != 0 {
		return transceiver.ErrFrame
	}
	most := 2 * int(time.Duration(rate)*piece/time.Second)
	for len(audio) > 0 {
		n := min(len(audio), most)
		if err := u.write(ctx, audio[:n], pcmDuration(n, rate)); err != nil {
			return err
		}
		audio = audio[n:]
	}
	return nil
}

// write sends one message when there is room for it.
func (u *Utterance) write(ctx context.Context, audio []byte, d time.Duration) error {
	c := u.c
	for {
		if err := c.take(ctx); err != nil {
			return err
		}
		at, room, err := u.reserve(d)
		if err == nil && room == nil {
			h := Header{Kind: KindAudio, Time: at}
			err = c.sent(c.sock.writeFrame(&h, audio))
			<-c.turn
			return err
		}
		<-c.turn // not kept while waiting: an interruption needs it
		if err != nil {
			return err
		}
		select {
		case <-room:
		case <-c.over:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// reserve returns where in the call's audio a message begins, or what to wait
// for before another attempt.
func (u *Utterance) reserve(d time.Duration) (at time.Duration, room <-chan struct{}, err error) {
	c := u.c
	c.mu.Lock()
	defer c.mu.Unlock()
	ahead := c.written - c.taken + c.queued
	switch {
	case c.err != nil:
		return 0, nil, c.err
	case u.stopped || u.era.stopped:
		return 0, nil, transceiver.ErrInterrupted
	case c.current != u:
		return 0, nil, ErrSuperseded
	case c.stopping > 0 || (ahead > 0 && ahead+d > fromMillis(c.start.WindowMS)):
		return 0, c.room, nil
	}
	at = c.written
	c.written += d
	u.end = c.written
	return at, nil, nil
}

// Wait returns when the client has been sent everything that was written to the
// utterance so far: how much that is, and nil. If the utterance is stopped
// before, it returns how much of it was played and transceiver.ErrInterrupted.
// Other errors are those of ctx and of the call's end. With PCM, Wait also fills
// up a last frame that is not whole.
//
// The client's own buffer plays the last 40 to 100 ms after that.
func (u *Utterance) Wait(ctx context.Context) (played time.Duration, err error) {
	c, e := u.c, u.era
	var end time.Duration
	var id uint64
	var marked chan bool
	for { // until an interruption of what came before is out of the way
		c.mu.Lock()
		room, stopped, err := c.room, e.stopped, c.err
		ready := c.stopping == 0 && !stopped && err == nil
		if ready {
			end = u.end
			id, marked = c.newID(), make(chan bool, 1)
			c.marks[id] = marked
		}
		c.mu.Unlock()
		switch {
		case stopped:
			cut, whole, err := u.result(ctx)
			return cut.Played, interruptedUnless(whole, err)
		case err != nil:
			return 0, err
		}
		if ready {
			break
		}
		select {
		case <-room:
		case <-c.over:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.marks, id)
	}()
	if err := c.tell(typeMark, id); err != nil {
		return 0, err
	}
	for {
		c.mu.Lock()
		room, stopped := c.room, e.stopped
		// The mark of an older utterance may stand behind the audio of newer ones.
		past := c.current != u && reached(c.done, end)
		c.mu.Unlock()
		switch {
		case stopped:
			cut, whole, err := u.result(ctx)
			return cut.Played, interruptedUnless(whole, err)
		case past:
			return end - u.begin, nil
		}
		select {
		case dropped := <-marked:
			if !dropped {
				c.mu.Lock()
				c.done = max(c.done, end)
				c.mu.Unlock()
				return end - u.begin, nil
			}
		case <-room:
		case <-c.over:
			return 0, c.failure()
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

func interruptedUnless(whole bool, err error) error {
	if err == nil && !whole {
		return transceiver.ErrInterrupted
	}
	return err
}

// Stop cuts the utterance off: barge-in. Everything that waits for the client is
// dropped, of other utterances too, which are stopped as well. Once Stop has been
// called no more of it is written: Write returns transceiver.ErrInterrupted, one
// that is waiting too. That holds whatever ctx does, which bounds only the wait
// for the transceiver's answer.
//
// It returns how much of this utterance was played, and how much audio was
// dropped, of whichever. Stopping one that was played or is stopped already
// changes nothing.
func (u *Utterance) Stop(ctx context.Context) (transceiver.Interrupted, error) {
	c, e := u.c, u.era
	c.mu.Lock()
	switch {
	case e.stopped:
		c.mu.Unlock()
	case reached(c.done, u.end):
		u.stopped = true
		c.wakeWriters()
		c.mu.Unlock()
		return transceiver.Interrupted{Played: u.end - u.begin}, nil
	case c.err != nil:
		defer c.mu.Unlock()
		return transceiver.Interrupted{}, c.err
	default:
		e.stopped, e.written = true, c.written
		c.era = newEra()
		c.stopping++ // nothing new is written before the interruption
		id := c.newID()
		c.cuts[id] = e
		c.wakeWriters()
		c.mu.Unlock()
		err := c.tell(typeInterrupt, id)
		c.mu.Lock()
		c.stopping--
		c.wakeWriters()
		c.mu.Unlock()
		if err != nil {
			return transceiver.Interrupted{}, err
		}
	}
	cut, _, err := u.result(ctx)
	return cut, err
}

// result waits for the transceiver's answer to the interruption and returns
// what it means for this utterance.
func (u *Utterance) result(ctx context.Context) (cut transceiver.Interrupted, whole bool, err error) {
	c, e := u.c, u.era
	select {
	case <-e.over:
	case <-c.over:
		return cut, false, c.failure()
	case <-ctx.Done():
		return cut, false, ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	whole = reached(e.head, u.end)
	cut = transceiver.Interrupted{Played: max(0, min(e.head, u.end)-u.begin), Dropped: e.dropped}
	return cut, whole, nil
}

// newID returns a new number for a message. The lock is held.
func (c *Call) newID() uint64 {
	c.nextID++
	return c.nextID
}

// tell sends a message with an id, in order with the audio.
func (c *Call) tell(kind string, id uint64) error {
	select {
	case c.turn <- struct{}{}:
	case <-c.over:
		return c.failure()
	}
	defer func() { <-c.turn }()
	return c.sent(c.sock.writeJSON(&mark{Type: kind, ID: id}))
}
