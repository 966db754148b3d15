package bridge

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/usher-rtc/usher/transceiver"
)

// Events is the data channel of a Call's client, with the methods of
// transceiver.Events. All methods are safe for concurrent use.
type Events struct {
	c *Call

	mu      sync.Mutex
	wanted  bool // somebody reads them
	waiting []transceiver.Event
	bytes   int
	more    chan struct{} // an event is there
	room    chan struct{} // there is room for one
}

func (e *Events) init(c *Call) {
	e.c, e.more, e.room = c, make(chan struct{}, 1), make(chan struct{}, 1)
}

func (e *Events) want() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.wanted = true
}

// push adds an event. It blocks while there is no room, until the call ends:
// that holds up the client, and the session's audio too, until the transceiver
// gives up on this service.
func (e *Events) push(text bool, payload []byte) {
	for {
		e.mu.Lock()
		if len(e.waiting) < maxWaitingEvents && e.bytes+len(payload) <= maxWaitingBytes {
			e.waiting = append(e.waiting, transceiver.Event{Text: text, Data: append([]byte(nil), payload...)})
			e.bytes += len(payload)
			e.mu.Unlock()
			wake(e.more)
			return
		}
		wanted := e.wanted
		e.mu.Unlock()
		if !wanted {
			return
		}
		select {
		case <-e.room:
		case <-e.c.over:
			return
		}
	}
}

func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Next returns the client's next event. It waits for one until ctx is done, the
// session ends (an *EndError) or the connection is lost (ErrLost). A service
// that does not read events holds up its own session: at most 1,024 of them, or
// 1 MiB, wait.
func (e *Events) Next(ctx context.Context) (transceiver.Event, error) {
	for {
		e.mu.Lock()
		if len(e.waiting) > 0 {
			ev := e.waiting[0]
			e.waiting = e.waiting[1:]
			e.bytes -= len(ev.Data)
			more := len(e.waiting) > 0
			e.mu.Unlock()
			wake(e.room)
			if more {
				wake(e.more)
			}
			return ev, nil
		}
		e.waiting = nil
		e.mu.Unlock()
		if err := e.c.failure(); err != nil {
			return transceiver.Event{}, err
		}
		select {
		case <-e.more:
		case <-e.c.over:
		case <-ctx.Done():
			return transceiver.Event{}, ctx.Err()
		}
	}
}

// Send sends an event to the client. Events arrive in the order of the calls;
// the transceiver keeps up to 256 of them, or 256 KiB, for a client that does
// not read, drops what comes then and says so (Call.OnDropped). It returns
// transceiver.ErrEventTooLarge for more than MaxPayload bytes.
func (e *Events) Send(ctx context.Context, ev transceiver.Event) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(ev.Data) > MaxPayload {
		return transceiver.ErrEventTooLarge
	}
	h := Header{Kind: KindEventBinary}
	if ev.Text {
		h.Kind = KindEventText
	}
	return e.c.sent(e.c.sock.writeFrame(&h, ev.Data))
}

// SendJSON sends v as JSON text.
func (e *Events) SendJSON(ctx context.Context, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return e.Send(ctx, transceiver.Event{Text: true, Data: data})
}
