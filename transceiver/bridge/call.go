package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/usher-rtc/usher/transceiver"
)

// Call is a session in the hands of a service, over one connection. Next and
// Frames are what the client says, as with transceiver.Audio, Say is what the
// client hears, Events is its data channel. All methods are safe for concurrent
// use, but Next and Frames are for one goroutine at a time.
type Call struct {
	cfg     *HandlerConfig
	sock    *socket
	start   start
	rate    int // of PCM, 0 for Opus
	events  Events
	silence *time.Timer
	lastIn  atomic.Int64 // uptime

	over chan struct{} // closed when the connection has ended
	mu   sync.Mutex
	err  error
	in   frameQueue
	more chan struct{} // a frame is there

	turn     chan struct{} // one at a time: an interruption overtakes no audio
	room     chan struct{} // closed and replaced when something has changed for writers
	written  time.Duration
	taken    time.Duration // of it, as the transceiver says
	queued   time.Duration
	done     time.Duration // of it, played or dropped for all that is known
	current  *Utterance    // the newest one
	era      *era          // of the newest one
	stopping int           // interruptions that are not sent yet
	nextID   uint64
	marks    map[uint64]chan bool // take whether an interruption dropped the audio
	cuts     map[uint64]*era
	missed   func(Missed)
	drops    func(what, reason string, count uint64)
}

func newCall(cfg *HandlerConfig) *Call {
	c := &Call{
		cfg: cfg, over: make(chan struct{}), more: make(chan struct{}, 1),
		turn: make(chan struct{}, 1), room: make(chan struct{}), era: newEra(),
		marks: make(map[uint64]chan bool), cuts: make(map[uint64]*era),
	}
	c.in.limit = cfg.ReceiveQueue
	c.events.init(c)
	c.heard()
	return c
}

// Session returns the session's name in the transceiver's logs. It is no secret.
func (c *Call) Session() string { return c.start.Session }

// Token returns a secret that stays the same for all connections of a session:
// the key under which a service finds again what it knew about it.
func (c *Call) Token() string { return c.start.Token }

// Connection counts the connections of the session, from 1.
func (c *Call) Connection() int { return c.start.Connection }

// Resume returns what there is to know about the connection before this one,
// nil for the first.
func (c *Call) Resume() *Resume { return c.start.Resume }

// Route returns where the session lives.
func (c *Call) Route() RouteInfo { return c.start.Route }

// Client returns the client's address as the relay sees it.
func (c *Call) Client() netip.AddrPort {
	addr, _ := netip.ParseAddrPort(c.start.Client)
	return addr
}

// Metadata returns what the client sent with its offer. It must not be changed.
func (c *Call) Metadata() json.RawMessage { return c.start.Metadata }

// Rate returns the sample rate of PCM, 0 for Opus.
func (c *Call) Rate() int { return c.rate }

// Events returns the client's data channel. A service that never asks for it is
// spared what comes on it.
func (c *Call) Events() *Events {
	c.events.want()
	return &c.events
}

// OnMissed sets what is called when the service was not sent everything: after
// a reconnection, and when it has not read for a while. It runs on the
// goroutine that reads, so it must not block.
func (c *Call) OnMissed(f func(Missed)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.missed = f
}

// OnDropped sets what is called when the client will not get something that
// the service sent: what is "audio" or "event", count how many messages. It
// runs on the goroutine that reads, so it must not block.
func (c *Call) OnDropped(f func(what, reason string, count uint64)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drops = f
}

// handshake takes start and sends ready.
func (c *Call) handshake() error {
	text, message, err := c.sock.read()
	if err != nil {
		return err
	}
	if !text {
		return violation("a binary message before start")
	}
	typ, err := parseText(message, &c.start, func(typ string) bool { return typ == typeStart })
	if err != nil {
		return err
	}
	if typ != typeStart {
		return violation("%.60q instead of start", message)
	}
	has := false
	for _, name := range c.start.Codecs {
		has = has || name == c.cfg.Codec
	}
	if !has {
		return violation("this service needs the codec %s", c.cfg.Codec)
	}
	c.rate, _ = pcmRate(c.cfg.Codec)
	if r := c.start.Resume; r != nil {
		c.queued = fromMillis(r.QueuedMS) // it has its place in the window
		c.done = -c.queued
	}
	return c.sock.writeJSON(&ready{Type: typeReady, Codec: c.cfg.Codec})
}

// began is the zero of uptime.
var began = time.Now()

// uptime is a time in nanoseconds, not 0, that a step of the machine's clock does
// not change: one of an hour must not make a connection look dead.
func uptime() int64 { return int64(time.Since(began)) | 1 }

// heard notes that the transceiver is alive.
func (c *Call) heard() { c.lastIn.Store(uptime()) }

// checkSilence runs on a timer.
func (c *Call) checkSilence() {
	quiet := time.Duration(uptime() - c.lastIn.Load())
	if left := c.cfg.SilenceTimeout - quiet; left > 0 {
		c.silence.Reset(left)
		return
	}
	_ = c.sock.raw.Close() // the reader returns
	c.end(ErrLost)         // from Events.push too
}

// readAll takes what comes until the connection ends.
func (c *Call) readAll() {
	err := c.read()
	var ended *EndError
	if !errors.As(err, &ended) && !errors.Is(err, ErrProtocol) {
		err = ErrLost
	}
	c.end(err)
	c.hangUp(err)
}

func (c *Call) read() error {
	for {
		text, message, err := c.sock.read()
		if err != nil {
			return err
		}
		c.heard()
		if text {
			err = c.control(message)
		} else {
			err = c.binary(message)
		}
		if err != nil {
			return err
		}
	}
}

func saysTransceiver(typ string) bool {
	switch typ {
	case typeInterrupted, typeMarked, typePlayback, typeMissed, typeDropped, typeEnd:
		return true
	}
	return false
}

func (c *Call) control(message []byte) error {
	var m fromTransceiver
	typ, err := parseText(message, &m, saysTransceiver)
	if err != nil {
		return err
	}
	c.mu.Lock()
	onMissed, onDropped := c.missed, c.drops
	switch typ {
	case typeInterrupted:
		if e := c.cuts[m.ID]; e != nil {
			delete(c.cuts, m.ID)
			e.head, e.dropped = fromMillis(m.PositionMS), fromMillis(m.DroppedMS)
			if rest := e.dropped - e.written; rest > 0 {
				e.head = -rest // the audio of a service before this one was played still
			}
			close(e.over)
		}
	case typeMarked:
		if reply := c.marks[m.ID]; reply != nil {
			delete(c.marks, m.ID)
			reply <- m.Interrupted // has room
		}
	case typePlayback:
		c.taken, c.queued = fromMillis(m.TakenMS), fromMillis(m.QueuedMS)
		c.done = max(c.done, c.taken-c.queued)
		c.wakeWriters()
	}
	c.mu.Unlock()
	switch {
	case typ == typeEnd:
		return &EndError{Reason: m.Reason}
	case typ == typeMissed && onMissed != nil:
		m.Missed.Reason = m.Reason
		onMissed(m.Missed)
	case typ == typeDropped && onDropped != nil:
		onDropped(m.What, m.Reason, m.Count)
	}
	return nil // or of a later version
}

func (c *Call) binary(message []byte) error {
	var h Header
	payload, ok := h.Parse(message)
	if !ok {
		return violation("a binary message of %d bytes without a valid header", len(message))
	}
	switch h.Kind {
	case KindAudio:
		c.mu.Lock()
		c.in.push(&h, payload)
		c.mu.Unlock()
		select {
		case c.more <- struct{}{}:
		default:
		}
	case KindEventText, KindEventBinary:
		c.events.push(h.Kind == KindEventText, payload)
	}
	return nil // of a later version
}

// end makes all that waits return, once.
func (c *Call) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		close(c.over)
	}
}

// failure returns why the call has ended, nil if it has not.
func (c *Call) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Next returns the client's next frame: one Opus packet, or PCM for a service
// that asked for it. It waits for one until ctx is done, the session ends (an
// *EndError) or the connection is lost (ErrLost), after all frames that came
// have been returned.
func (c *Call) Next(ctx context.Context) (transceiver.Frame, error) {
	for {
		c.mu.Lock()
		f, ok := c.in.pop()
		err := c.err
		c.mu.Unlock()
		if ok {
			return f, nil
		}
		if err != nil {
			return transceiver.Frame{}, err
		}
		select {
		case <-c.more:
		case <-c.over:
		case <-ctx.Done():
			return transceiver.Frame{}, ctx.Err()
		}
	}
}

// Frames ranges over Next. The last pair holds the error that ended it.
func (c *Call) Frames(ctx context.Context) iter.Seq2[transceiver.Frame, error] {
	return func(yield func(transceiver.Frame, error) bool) {
		for {
			f, err := c.Next(ctx)
			if !yield(f, err) || err != nil {
				return
			}
		}
	}
}

// take waits for the turn to write.
func (c *Call) take(ctx context.Context) error {
	select {
	case c.turn <- struct{}{}:
		return nil
	case <-c.over:
		return c.failure()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// sent says what the end of a connection looks like to a writer.
func (c *Call) sent(err error) error {
	if err == nil {
		return nil
	}
	if ended := c.failure(); ended != nil {
		return ended
	}
	return ErrLost
}

// wakeWriters makes writers look again. The lock is held.
func (c *Call) wakeWriters() {
	close(c.room)
	c.room = make(chan struct{})
}

// Hangup ends the session: the client is hung up on, unless the transceiver is
// configured to keep it. The reason goes into the transceiver's log. The Call then
// returns an [*EndError] with it, not ErrLost: nothing will come back.
func (c *Call) Hangup(reason string) error {
	if err := c.failure(); err != nil {
		return err
	}
	if err := c.sent(c.sock.writeJSON(&end{Type: typeEnd, Reason: reason})); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err == nil:
		close(c.over)
		c.err = &EndError{Reason: reason}
	case errors.Is(c.err, ErrLost): // by the transceiver, which was quick to do as it was asked
		c.err = &EndError{Reason: reason}
	}
	return nil
}

// frameQueue is a bounded queue of frames that keeps its memory.
type frameQueue struct {
	limit   int
	slots   []frameSlot
	head, n int
	lost    uint64 // dropped since the last pop, and what they said was lost
	current []byte // the payload that the reader has
}

type frameSlot struct {
	h    Header
	data []byte
}

// push adds a frame, in place of the oldest if there is no room.
func (q *frameQueue) push(h *Header, payload []byte) {
	if q.n == q.limit {
		q.lost += uint64(q.slots[q.head].h.Lost) + 1
		q.head = (q.head + 1) % len(q.slots)
		q.n--
	}
	if q.n == len(q.slots) {
		grown := make([]frameSlot, min(max(4, 2*len(q.slots)), q.limit))
		for i := range q.n {
			grown[i] = q.slots[(q.head+i)%len(q.slots)]
		}
		q.slots, q.head = grown, 0
	}
	slot := &q.slots[(q.head+q.n)%len(q.slots)]
	slot.h = *h
	slot.data = append(slot.data[:0], payload...)
	q.n++
}

// pop returns the oldest frame. Its payload is valid until the next pop.
func (q *frameQueue) pop() (f transceiver.Frame, ok bool) {
	if q.n == 0 {
		return f, false
	}
	slot := &q.slots[q.head]
	q.current, slot.data = slot.data, q.current
	q.head = (q.head + 1) % len(q.slots)
	q.n--
	f = transceiver.Frame{
		Payload: q.current, Time: slot.h.Time, Duration: slot.h.Duration,
		Lost:  int(min(uint64(slot.h.Lost)+q.lost, 1<<31-1)),
		Level: slot.h.Level, Voice: slot.h.Flags&FlagVoice != 0, HasLevel: slot.h.Flags&FlagLevel != 0,
	}
	q.lost = 0
	return f, true
}
