package transceiver

import (
	"sync"
	"time"
)

const (
	// paceTick is how often the pacer looks: frames that become due between
	// two ticks leave together, with one system call and in shared datagrams.
	paceTick = 5 * time.Millisecond
	// paceLead is how early a frame may leave, so that no tick is late for it,
	// and so that a live source's jitter passes without delay.
	paceLead = paceTick
	// paceSlots ticks are as far ahead as the pacer looks.
	paceSlots = 64
	// paceFlush is how many streams are served before their packets are sent.
	paceFlush = sendBatch
)

// paced is a stream that the pacer serves.
type paced interface {
	// poll is called at or soon after a tick that was scheduled, and perhaps
	// for nothing.
	poll(now time.Time)
}

// holder is where the streams' packets go: a shard.
type holder interface {
	// hold makes packets wait for flush or release, and reports whether it could.
	hold() bool
	flush()
	release(held bool)
}

// hold implements holder: nobody's writes are sent before release, so that
// they share datagrams and a system call.
func (sh *shard) hold() bool { return sh.yielding.CompareAndSwap(false, true) }

// release implements holder.
func (sh *shard) release(held bool) {
	if held {
		sh.yielding.Store(false)
	}
	sh.flush()
}

// pacer is the clock of the outgoing audio of one socket's sessions: a timing
// wheel and one goroutine, which sleeps while nobody has anything to send.
type pacer struct {
	epoch time.Time
	out   holder

	mu     sync.Mutex
	wheel  [paceSlots][]paced
	last   int64 // the newest tick that was served
	waits  int   // entries in the wheel
	next   int64 // the tick that the goroutine sleeps until, 0: until woken
	wakeup signal
}

func newPacer(epoch time.Time, out holder) *pacer {
	return &pacer{epoch: epoch, out: out, wakeup: newSignal()}
}

// schedule makes the pacer poll p at the first tick at or after a time, sooner
// if that is too far ahead. It returns the tick.
func (c *pacer) schedule(p paced, now, at time.Time) int64 {
	tick := int64((at.Sub(c.epoch) + paceTick - 1) / paceTick)
	c.mu.Lock()
	if c.waits == 0 {
		c.last = max(c.last, int64(now.Sub(c.epoch)/paceTick)) // it has slept
	}
	tick = min(max(tick, c.last+1), c.last+paceSlots-1)
	slot := &c.wheel[tick%paceSlots]
	*slot = append(*slot, p)
	c.waits++
	wake := c.next == 0 || tick < c.next
	if wake {
		c.next = tick // one wake-up is enough
	}
	c.mu.Unlock()
	if wake {
		c.wakeup.raise()
	}
	return tick
}

// tickOf returns the newest tick at a time.
func (c *pacer) tickOf(now time.Time) int64 { return int64(now.Sub(c.epoch) / paceTick) }

// timeOf returns when a tick is.
func (c *pacer) timeOf(tick int64) time.Time { return c.epoch.Add(time.Duration(tick) * paceTick) }

// run serves until stop is closed.
func (c *pacer) run(stop <-chan struct{}) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var due []paced
	for {
		wait := time.Hour
		if next := c.upcoming(); next != 0 {
			wait = time.Until(c.timeOf(next))
		}
		if wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-c.wakeup:
				continue
			case <-stop:
				return
			}
		}
		due = c.serve(time.Now(), due[:0])
		clear(due)
		select {
		case <-stop:
			return
		default:
		}
	}
}

// upcoming returns the next tick that somebody waits for, 0 if there is none.
func (c *pacer) upcoming() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next = 0
	for i := int64(1); c.waits > 0 && i < paceSlots; i++ {
		if len(c.wheel[(c.last+i)%paceSlots]) > 0 {
			c.next = c.last + i
			break
		}
	}
	return c.next
}

// serve polls everybody whose tick has come.
func (c *pacer) serve(now time.Time, due []paced) []paced {
	tick := c.tickOf(now)
	c.mu.Lock()
	for i := int64(1); i <= min(tick-c.last, paceSlots); i++ {
		slot := &c.wheel[(c.last+i)%paceSlots]
		due = append(due, *slot...)
		clear(*slot)
		*slot = (*slot)[:0]
	}
	c.last = max(c.last, tick)
	c.waits -= len(due)
	c.next = c.last + 1 // it is up and will look
	c.mu.Unlock()
	if len(due) == 0 {
		return due
	}
	held := c.out.hold()
	for i, p := range due {
		if i%paceFlush == paceFlush-1 {
			c.out.flush()
		}
		p.poll(now)
	}
	c.out.release(held)
	return due
}
