package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/usher-rtc/usher/internal/bench/callers"
	"github.com/usher-rtc/usher/internal/meter"
)

// caller is a Pion client that speaks and keeps a record.
type caller struct {
	*callers.Caller
	host    *host
	group   int
	addr    netip.Addr
	session uint32

	quiet          atomic.Bool
	sent, received meter.Log
	numbers        meter.Unwrapper // of what is sent
	mu             sync.Mutex
	heard          meter.Unwrapper // of what is received, by Pion's goroutine
	remove         func()
}

const (
	// atOnce is how many calls are set up side by side.
	atOnce = 8
	// callLimit bounds a call's set-up on a busy machine.
	callLimit = 20 * time.Second
	// behindNAT: every so many-th caller of a group shares an address with the
	// others of that kind, as clients behind one NAT do.
	behindNAT = 5
	natNumber = 100
	// checkInterval is how often a Pion client checks. Calls are placed over the
	// whole of it, or all would check in the same moment and a drill would show
	// what that moment happens to be.
	checkInterval = 2 * time.Second
)

// openCallers makes the plan's calls, spread over groups and transceivers.
func (f *fleet) openCallers(ctx context.Context) error {
	f.callers = make([]*caller, f.sessions)
	limit := make(chan struct{}, atOnce)
	errs := make(chan error, f.sessions)
	begin := meter.Now()
	for i := range f.sessions {
		if err := after(ctx, begin, checkInterval*time.Duration(i)/time.Duration(f.sessions)); err != nil {
			return err
		}
		c := &caller{group: i % groups, host: f.hosts[i/groups%f.plan.hosts]}
		n := i/groups + 1
		if n%behindNAT == 0 {
			n = natNumber
		} else if n >= natNumber {
			n++
		}
		c.addr = groupAddr(c.group, n)
		f.callers[i] = c
		limit <- struct{}{}
		go func() {
			errs <- f.place(ctx, c)
			<-limit
		}()
	}
	var first error
	for range f.sessions {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}

// place makes a caller's call to its transceiver and makes it speak. What went
// before is forgotten.
func (f *fleet) place(ctx context.Context, c *caller) (err error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	c.heard = meter.Unwrapper{}
	c.numbers = meter.Unwrapper{}
	fresh, err := f.engine.New(callers.Options{Addr: c.addr, OnAudio: func(seq uint16) {
		at := meter.Now()
		c.mu.Lock()
		c.received.Add(c.heard.Next(seq), at)
		c.mu.Unlock()
	}})
	if err != nil {
		return err
	}
	c.Caller = fresh
	offer, err := c.Offer()
	if err != nil {
		return err
	}
	answer, err := f.post(ctx, c.host, offer)
	if err != nil {
		return err
	}
	if c.session, err = f.sessionOf(answer); err != nil {
		return err
	}
	if err := c.Answer(answer); err != nil {
		return err
	}
	if _, err := c.Wait(ctx, true); err != nil {
		return fmt.Errorf("call from %v to %s: %w", c.addr, c.host.name, err)
	}
	c.remove = f.pacer.Add(func() {
		if c.quiet.Load() {
			return
		}
		at := meter.Now()
		_ = c.Send() // lost, if there is no socket at the moment
		c.sent.Add(c.numbers.Next(c.Sent()), at)
	})
	return nil
}

// post sends an offer to a transceiver.
func (f *fleet) post(ctx context.Context, h *host, offer string) (answer string, err error) {
	response, err := f.do(ctx, http.MethodPost, h.url+"/v1/realtime/calls", offer)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	if response.StatusCode != http.StatusCreated {
		return "", fmt.Errorf("%s: offer: %s: %s", h.name, response.Status, strings.TrimSpace(string(body)))
	}
	return string(body), nil
}

// sessionOf returns the session that an answer's ufrag names.
func (f *fleet) sessionOf(answer string) (uint32, error) {
	for line := range strings.Lines(answer) {
		if text, found := strings.CutPrefix(strings.TrimSpace(line), "a=ice-ufrag:"); found {
			route, err := f.codec.Decode([]byte(text))
			return route.Session, err
		}
	}
	return 0, fmt.Errorf("no ufrag in the answer: %s", answer)
}

// stop makes the caller silent for good.
func (c *caller) stop() {
	if c != nil && c.remove != nil {
		c.remove()
		c.remove = nil
	}
}

// closeAll ends calls side by side: each tells its transceiver and waits for its
// goroutines.
func closeAll(all []*caller) {
	var wg sync.WaitGroup
	limit := make(chan struct{}, 2*atOnce)
	for _, c := range all {
		if c == nil || c.Caller == nil {
			continue
		}
		limit <- struct{}{}
		wg.Go(func() {
			c.Close()
			<-limit
		})
	}
	wg.Wait()
}

// of returns the callers of a transceiver.
func (f *fleet) of(h *host) (all []*caller) {
	for _, c := range f.callers {
		if c.host == h {
			all = append(all, c)
		}
	}
	return all
}
