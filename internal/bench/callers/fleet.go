package callers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// setupLimit bounds one call's set-up on a machine that is busy.
const setupLimit = 30 * time.Second

// Fleet is many callers of one server.
type Fleet struct {
	Server string // control port
	// Mute says that the server's audio makes no sense to the callers: they
	// wait for none.
	Mute bool

	engine  *Engine
	mu      sync.Mutex
	callers []*Caller
	ids     []string
}

// NewFleet makes one without callers.
func NewFleet(server string, mute bool) (*Fleet, error) {
	e, err := NewEngine()
	return &Fleet{Server: server, Mute: mute, engine: e}, err
}

// Call makes one call and waits until everything flows.
func (f *Fleet) Call(ctx context.Context) (c *Caller, id string, err error) {
	ctx, cancel := context.WithTimeout(ctx, setupLimit)
	defer cancel()
	made, err := f.engine.New(Options{})
	if err != nil {
		return nil, "", err
	}
	made.mute = f.Mute
	defer func() {
		if err != nil {
			made.Close()
		}
	}()
	offer, err := made.Offer()
	if err != nil {
		return nil, "", err
	}
	id, answer, err := Post(ctx, f.Server, offer)
	if err != nil {
		return nil, "", err
	}
	if err := made.Answer(answer); err != nil {
		return nil, "", err
	}
	_, err = made.Wait(ctx, !f.Mute)
	return made, id, err
}

// Open adds n callers, atOnce at a time.
func (f *Fleet) Open(ctx context.Context, n, atOnce int) error {
	return Each(ctx, n, atOnce, func(int) error {
		c, id, err := f.Call(ctx)
		if err != nil {
			return err
		}
		f.mu.Lock()
		f.callers, f.ids = append(f.callers, c), append(f.ids, id)
		f.mu.Unlock()
		return nil
	})
}

// CloseAll ends all calls.
func (f *Fleet) CloseAll(ctx context.Context) error {
	f.mu.Lock()
	callers, ids := f.callers, f.ids
	f.callers, f.ids = nil, nil
	f.mu.Unlock()
	return Each(ctx, len(callers), 16, func(i int) error {
		callers[i].Close()
		return Delete(ctx, f.Server, ids[i])
	})
}

// Cycle says what Fleet.Cycle does.
type Cycle struct {
	N, AtOnce int
	// HalfOpen makes every third session one that never connects: in turn an
	// offer and nothing more, and an offer and a check without DTLS after it.
	HalfOpen bool
}

// Cycle makes calls that end as soon as audio and data flow. Every other one
// ends on the client's side, the others on the server's.
func (f *Fleet) Cycle(ctx context.Context, c Cycle) error {
	return Each(ctx, c.N, c.AtOnce, func(i int) error {
		if c.HalfOpen && i%3 == 0 {
			return f.halfOpen(ctx, i%2 == 0)
		}
		caller, id, err := f.Call(ctx)
		if err != nil {
			return fmt.Errorf("call %d: %w", i, err)
		}
		if i%2 == 0 {
			caller.Close()
			return Delete(ctx, f.Server, id) // for a server that does not notice
		}
		err = Delete(ctx, f.Server, id)
		caller.Close()
		return err
	})
}

// Load is what Fleet.Load sent and what came back.
type Load struct {
	Sent, Received uint64
	Seconds        float64 // of sending
}

const (
	// slack is how far the sender may sleep past a packet's time. Packets of
	// different callers leave spread over time, as those of independent calls do.
	slack = 100 * time.Microsecond
	// straggle is how long the last packets are waited for.
	straggle = 500 * time.Millisecond
)

// Load sends perCaller packets a second for each caller, for a time. With raw
// set the packets go past Pion, to a server that echoes at its mux.
func (f *Fleet) Load(ctx context.Context, perCaller float64, d time.Duration, raw bool) (Load, error) {
	f.mu.Lock()
	callers := f.callers
	f.mu.Unlock()
	if len(callers) == 0 {
		return Load{}, errors.New("no callers")
	}
	send := (*Caller).Send
	if raw {
		send = (*Caller).SendRaw
	}
	before := received(callers)
	perSecond := perCaller * float64(len(callers))
	total := uint64(perSecond * d.Seconds())
	var sent uint64
	begin := time.Now()
	for sent < total {
		due := min(uint64(time.Since(begin).Seconds()*perSecond), total)
		for ; sent < due; sent++ {
			if err := send(callers[sent%uint64(len(callers))]); err != nil {
				return Load{}, err
			}
		}
		if err := ctx.Err(); err != nil {
			return Load{}, err
		}
		time.Sleep(slack)
	}
	l := Load{Sent: sent, Seconds: time.Since(begin).Seconds()}
	for end := time.Now().Add(straggle); ; time.Sleep(time.Millisecond) {
		if l.Received = received(callers) - before; l.Received >= sent || time.Now().After(end) {
			return l, nil
		}
	}
}

func received(callers []*Caller) (n uint64) {
	for _, c := range callers {
		n += c.Received()
	}
	return n
}
