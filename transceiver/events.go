package transceiver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/pion/webrtc/v4"

	"github.com/usher-rtc/usher/internal/config"
)

// ErrEventTooLarge is what Events.Send returns for an event that is longer
// than the client takes, and Events.Next once the client has sent one that is
// longer than EventsConfig.MaxBytes.
var ErrEventTooLarge = errors.New("transceiver: event too large")

// EventsConfig configures Session.OpenEvents. The zero value of every field is
// its documented default.
type EventsConfig struct {
	// Label is the label of the data channel to take. Empty means the first
	// one that the client opens, whatever it is called.
	Label string
	// ReceiveBuffer is how many bytes of events may wait for Next, each
	// counted with 64 bytes on top. Then the client is held up (SCTP's flow
	// control), and with it all data channels of this session, but no audio.
	// 0 means 256 KiB.
	ReceiveBuffer int
	// SendBuffer is how many bytes may wait for the client to acknowledge
	// them; beyond that Send blocks. 0 means 256 KiB.
	SendBuffer int
	// MaxBytes is the longest event that is taken from the client. A longer
	// one ends the events. 0 means 256 KiB, which is also what the answer tells
	// the client, unless Config.SettingEngine raises it (SetSCTPMaxMessageSize).
	MaxBytes int
}

const (
	defaultEventBuffer = 256 << 10
	defaultMaxEvent    = 256 << 10
	maxEventBuffer     = 64 << 20
	// eventOverhead is what an event counts for beside its bytes.
	eventOverhead = 64
	// eventRead is how much of a detached channel is read at first.
	eventRead = 2048
)

// Validate returns what is wrong with the fields, as Session.OpenEvents would: a
// *ConfigError, or nil.
func (c EventsConfig) Validate() error { return c.validate() }

func (c *EventsConfig) validate() error {
	for _, f := range []struct {
		name  string
		value int
	}{{"ReceiveBuffer", c.ReceiveBuffer}, {"SendBuffer", c.SendBuffer}, {"MaxBytes", c.MaxBytes}} {
		if f.value < 0 || f.value > maxEventBuffer {
			return config.Errorf(f.name, "%d is outside 0 to %d", f.value, maxEventBuffer)
		}
	}
	set(&c.ReceiveBuffer, defaultEventBuffer)
	set(&c.SendBuffer, defaultEventBuffer)
	set(&c.MaxBytes, defaultMaxEvent)
	return nil
}

// Event is one message of a data channel.
type Event struct {
	// Text tells a string, JSON most often, from binary data.
	Text bool
	// Data belongs to whoever has the Event.
	Data []byte
}

// Events is a data channel of the client's: events in order, both ways. All
// methods are safe for concurrent use.
type Events struct {
	s    *Session
	cfg  EventsConfig
	open chan struct{}

	channel atomic.Pointer[webrtc.DataChannel]
	label   atomic.Pointer[string]
	once    sync.Once
	closed  chan struct{}
	sender  chan struct{} // held while an event is being sent

	arrived, room, low signal

	mu     sync.Mutex
	queue  ring[Event]
	queued int
	cause  error // why no more will come
}

// OpenEvents takes a data channel that the client opens; OnDataChannel gets
// the others. Call it in OnSession or Prepare. Order and reliability are what
// the client opened the channel with: by default both. With
// Config.DetachDataChannels it costs 64 KB less a session.
func (s *Session) OpenEvents(cfg EventsConfig) (*Events, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if s.pc.SignalingState() != webrtc.SignalingStateHaveRemoteOffer || s.pc.CurrentLocalDescription() != nil {
		return nil, ErrAnswered
	}
	e := &Events{
		s: s, cfg: cfg, open: make(chan struct{}), closed: make(chan struct{}), sender: make(chan struct{}, 1),
		arrived: newSignal(), room: newSignal(), low: newSignal(),
	}
	if !s.handlers.events.CompareAndSwap(nil, e) {
		return nil, ErrOpen
	}
	s.pc.OnDataChannel(s.onDataChannel)
	return e, nil
}

// take makes a channel the one for the events, if it is, and reports so.
func (e *Events) take(d *webrtc.DataChannel) bool {
	if e.cfg.Label != "" && d.Label() != e.cfg.Label || !e.channel.CompareAndSwap(nil, d) {
		return false
	}
	label := d.Label()
	e.label.Store(&label)
	d.SetBufferedAmountLowThreshold(uint64(e.cfg.SendBuffer))
	d.OnBufferedAmountLow(e.low.raise)
	d.OnMessage(func(m webrtc.DataChannelMessage) { e.receive(Event{Text: m.IsString, Data: m.Data}) })
	d.OnClose(func() { e.end(io.EOF) })
	d.OnOpen(func() {
		if raw, err := d.Detach(); err == nil {
			e.s.Go(func(context.Context) { e.read(raw) })
		}
		close(e.open)
	})
	return true
}

// channelReader is a detached channel.
type channelReader interface {
	ReadDataChannel(b []byte) (n int, text bool, err error)
}

// read is the reader of a detached channel.
func (e *Events) read(from channelReader) {
	for buf := make([]byte, eventRead); ; {
		n, text, err := from.ReadDataChannel(buf)
		switch {
		case errors.Is(err, io.ErrShortBuffer) && n <= e.cfg.MaxBytes:
			buf = make([]byte, max(n, 2*len(buf))) // the event is still there
		case errors.Is(err, io.ErrShortBuffer):
			e.tooLarge()
			return
		case err != nil:
			e.end(io.EOF)
			return
		default:
			e.receive(Event{Text: text, Data: append([]byte(nil), buf[:n]...)})
		}
	}
}

// receive queues an event of the client's, and waits for room: that holds up
// this channel alone, until SCTP's window is full.
func (e *Events) receive(ev Event) {
	if len(ev.Data) > e.cfg.MaxBytes {
		e.tooLarge()
		return
	}
	size := len(ev.Data) + eventOverhead
	e.mu.Lock()
	for e.queue.len() > 0 && e.queued+size > e.cfg.ReceiveBuffer {
		e.mu.Unlock()
		select {
		case <-e.room:
		case <-e.s.ctx.Done():
			return
		}
		e.mu.Lock()
	}
	e.queue.push(ev)
	e.queued += size
	e.mu.Unlock()
	e.arrived.raise()
}

func (e *Events) tooLarge() {
	e.end(ErrEventTooLarge)
	_ = e.channel.Load().Close()
}

// end marks the end of the client's events.
func (e *Events) end(cause error) {
	e.once.Do(func() {
		e.mu.Lock()
		e.cause = cause
		e.mu.Unlock()
		close(e.closed)
	})
}

// Label returns the channel's label, empty until the client has opened it.
func (e *Events) Label() string {
	if l := e.label.Load(); l != nil {
		return *l
	}
	return ""
}

// Open is closed when the client has opened the channel. Next and Send wait
// for it by themselves.
func (e *Events) Open() <-chan struct{} { return e.open }

// Next returns the client's next event. It waits for one, until ctx is done,
// the session ends (its *EndError) or the client closes the channel: io.EOF,
// after all events that came before.
func (e *Events) Next(ctx context.Context) (Event, error) {
	for {
		e.mu.Lock()
		if e.queue.len() > 0 {
			ev := e.queue.pop()
			e.queued -= len(ev.Data) + eventOverhead
			more := e.queue.len() > 0
			e.mu.Unlock()
			e.room.raise()
			if more {
				e.arrived.raise() // for another one who waits
			}
			return ev, nil
		}
		cause := e.cause
		e.mu.Unlock()
		if err := e.s.Err(); err != nil {
			return Event{}, err
		}
		if cause != nil {
			return Event{}, cause
		}
		select {
		case <-e.arrived:
		case <-e.closed:
		case <-ctx.Done():
			return Event{}, endOf(ctx, e.s.Err)
		case <-e.s.ctx.Done():
		}
	}
}

// Send puts an event on the way to the client. It blocks while
// EventsConfig.SendBuffer is full or the channel is not open yet, until ctx is
// done, the session ends (its *EndError) or the client closes the channel:
// io.ErrClosedPipe. Events leave in the order of the calls. Data may be reused
// when it has returned.
func (e *Events) Send(ctx context.Context, ev Event) error {
	if err := e.wait(ctx, e.open); err != nil {
		return err
	}
	select {
	case e.sender <- struct{}{}:
		defer func() { <-e.sender }()
	case <-ctx.Done():
		return endOf(ctx, e.s.Err)
	}
	d := e.channel.Load()
	if most := d.Transport().GetCapabilities().MaxMessageSize; most != 0 && len(ev.Data) > int(most) {
		return fmt.Errorf("%w: %d bytes, the client takes %d", ErrEventTooLarge, len(ev.Data), most)
	}
	for d.BufferedAmount() > uint64(e.cfg.SendBuffer) {
		if err := e.wait(ctx, e.low); err != nil {
			return err
		}
	}
	if err := e.wait(ctx, closedSignal); err != nil {
		return err
	}
	var err error
	if ev.Text {
		err = d.SendText(string(ev.Data))
	} else {
		err = d.Send(ev.Data)
	}
	if err == nil {
		return nil
	}
	if end := e.s.Err(); end != nil {
		return end
	}
	return fmt.Errorf("%w: %w", io.ErrClosedPipe, err)
}

// closedSignal is a condition that is always true.
var closedSignal = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// wait waits for a condition, or for the reason that it will not come.
func (e *Events) wait(ctx context.Context, condition <-chan struct{}) error {
	if err := e.s.Err(); err != nil {
		return err
	}
	select {
	case <-e.closed:
		return io.ErrClosedPipe
	default:
	}
	select {
	case <-condition:
		return nil
	case <-e.closed:
		return io.ErrClosedPipe
	case <-ctx.Done():
		return endOf(ctx, e.s.Err)
	case <-e.s.ctx.Done():
		return e.s.Err()
	}
}

// SendJSON sends v as JSON text. See Send.
func (e *Events) SendJSON(ctx context.Context, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("transceiver: SendJSON: %w", err)
	}
	return e.Send(ctx, Event{Text: true, Data: data})
}
