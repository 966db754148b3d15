package transceiver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/pion/webrtc/v4"
)

const (
	// farewellLimit is how long the end of a session waits for the client to
	// have its reason over the data channel, and farewellPoll how often it looks.
	farewellLimit = 250 * time.Millisecond
	farewellPoll  = 5 * time.Millisecond
)

// signals is the way to a session's client outside of its media.
type signals struct {
	mu      sync.Mutex
	socket  *socket
	changed chan struct{} // made when somebody waits; closed when socket changes
	turn    chan struct{} // made at first use; holds one token
}

// enter waits for the turn to negotiate: the Host does one thing at a time.
func (g *signals) enter(ctx, session context.Context) (leave func(), err error) {
	g.mu.Lock()
	if g.turn == nil {
		g.turn = make(chan struct{}, 1)
	}
	turn := g.turn
	g.mu.Unlock()
	select {
	case turn <- struct{}{}:
		return func() { <-turn }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-session.Done():
		return nil, ErrSessionClosed
	}
}

// current returns the client's socket, nil for none, and what is closed when
// that changes.
func (g *signals) current() (*socket, <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.changed == nil {
		g.changed = make(chan struct{})
	}
	return g.socket, g.changed
}

// attach makes k the client's socket, instead of an older one.
func (g *signals) attach(k *socket) {
	g.mu.Lock()
	old := g.socket
	g.socket = k
	g.wake()
	g.mu.Unlock()
	if old != nil {
		old.replace()
	}
}

func (g *signals) detach(k *socket) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.socket == k {
		g.socket = nil
		g.wake()
	}
}

func (g *signals) wake() {
	if g.changed != nil {
		close(g.changed)
		g.changed = nil
	}
}

// Notify sends the client an event, any value that encoding/json takes, over
// its WebSocket. It does not wait until the client has it. ErrNoSignalling
// says that the client has none: use the data channel of OpenEvents, which
// carries more and works for all clients.
func (s *Session) Notify(event any) error {
	b, err := json.Marshal(event)
	if err != nil {
		return fmt.Errorf("transceiver: Notify: %w", err)
	}
	if err := s.Err(); err != nil {
		return err
	}
	k, _ := s.signals.current()
	if k == nil || !k.send(&message{Type: typeEvent, Event: b}) {
		return ErrNoSignalling
	}
	return nil
}

// notifyDraining tells the client that it has so long to finish or to call anew.
func (s *Session) notifyDraining(limit time.Duration) {
	if k, _ := s.signals.current(); k != nil {
		k.send(&message{Type: typeDraining, Seconds: int(math.Ceil(limit.Seconds()))})
	}
}

// endMessage says why the session ended.
func (s *Session) endMessage() *message {
	m := &message{Type: typeEnd, Reason: s.CloseReason().String()}
	var end *EndError
	if errors.As(s.Err(), &end) && end.Cause != nil && end.Reason == ReasonServer {
		m.Detail = end.Cause.Error() // the text of CloseWithReason; other causes are not for strangers
	}
	return m
}

// farewell gives the client the reason over its data channel for events, if
// the Host ended the session and the application did not do so by itself. It
// blocks for at most farewellLimit.
func (s *Session) farewell(reason Reason) {
	m := s.endMessage()
	e := s.handlers.events.Load()
	switch {
	case e == nil:
		return
	case reason == ReasonDrained, reason == ReasonHostClosed, m.Detail != "":
	default:
		return
	}
	d := e.channel.Load()
	if d == nil || d.ReadyState() != webrtc.DataChannelStateOpen {
		return
	}
	b, _ := json.Marshal(struct {
		Type   string `json:"type"`
		Reason string `json:"reason"`
		Detail string `json:"detail,omitempty"`
	}{"usher.end", m.Reason, m.Detail})
	if d.SendText(string(b)) != nil {
		return
	}
	for begin := time.Now(); d.BufferedAmount() > 0 && time.Since(begin) < farewellLimit; {
		time.Sleep(farewellPoll)
	}
}
