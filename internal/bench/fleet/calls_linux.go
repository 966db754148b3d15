package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/usher-rtc/usher/internal/bench/callers"
	"github.com/usher-rtc/usher/internal/meter"
	"github.com/usher-rtc/usher/ufrag"
)

const (
	// atOnce is how many calls are set up side by side.
	atOnce = 8
	// callLimit bounds a call's set-up.
	callLimit = 20 * time.Second
	// checkInterval is how often a Pion client checks. Calls are placed over the
	// whole of it, or all would check at the same moment.
	checkInterval = 2 * time.Second
	// translated: every so many-th client is behind the NAT.
	translated = 5
)

// call is a Pion client that speaks and keeps a record, and its session.
type call struct {
	*callers.Caller
	region int        // of the client
	target int        // of the session
	node   *node      // where the client is
	addr   netip.Addr // of the client there
	owner  *server
	route  ufrag.Route
	setup  time.Duration // from the offer to the first audio

	sent, received meter.Log
	numbers        meter.Unwrapper // of what is sent
	mu             sync.Mutex
	heard          meter.Unwrapper // of what is received, by Pion's goroutine
	remove         func()
}

func (c *call) far() bool { return c.region != c.target }

// openCalls makes n calls: as many within each region as to the other one, and
// spread over the transceivers.
func (f *fleet) openCalls(ctx context.Context, n int) error {
	var wg sync.WaitGroup
	errs := make([]error, n)
	limit := make(chan struct{}, atOnce)
	begin := time.Now()
	for i := range n {
		c := &call{region: i % 2, target: i / 2 % 2}
		r := f.regions[c.region]
		c.node, c.addr = r.clients, addr(c.region, clientNet, i/2%250+2)
		if i/2%translated == 0 {
			c.node, c.addr = r.home, r.home.addr
		}
		c.owner = f.regions[c.target].transceiver[i/4%pair]
		f.calls = append(f.calls, c)
		if err := pause(ctx, time.Until(begin.Add(checkInterval*time.Duration(i)/time.Duration(n)))); err != nil {
			return err
		}
		limit <- struct{}{}
		wg.Go(func() {
			errs[i] = f.place(ctx, c)
			<-limit
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// placeAll makes calls again, side by side.
func (f *fleet) placeAll(ctx context.Context, all []*call) error {
	var wg sync.WaitGroup
	errs := make([]error, len(all))
	limit := make(chan struct{}, atOnce)
	for i, c := range all {
		limit <- struct{}{}
		wg.Go(func() {
			errs[i] = f.place(ctx, c)
			<-limit
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// offer makes a client and its session. The caller closes the client.
func (f *fleet) offer(ctx context.Context, c *call) (fresh *callers.Caller, offer, answer string, err error) {
	err = c.node.do(func() (err error) {
		fresh, err = f.engine.New(callers.Options{Addr: c.addr, OnAudio: c.hear})
		return err
	})
	if err != nil {
		return nil, "", "", err
	}
	if offer, err = fresh.Offer(); err == nil {
		answer, err = f.post(ctx, c.node, c.region, c.owner, offer)
	}
	if err != nil {
		fresh.Close()
	}
	return fresh, offer, answer, err
}

func (c *call) hear(seq uint16) {
	at := meter.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.received.Add(c.heard.Next(seq), at)
}

// place makes a call and makes it speak.
func (f *fleet) place(ctx context.Context, c *call) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	c.mu.Lock()
	c.heard = meter.Unwrapper{}
	c.mu.Unlock()
	c.numbers = meter.Unwrapper{}
	begin := time.Now()
	fresh, _, answer, err := f.offer(ctx, c)
	if err != nil {
		return err
	}
	c.Caller = fresh
	if c.route, err = f.routeOf(answer); err != nil {
		return err
	}
	signalled := time.Since(begin)
	if err := c.Answer(answer); err != nil {
		return err
	}
	times, err := c.Wait(ctx, true)
	if err != nil {
		return fmt.Errorf("call from %v to %s: %w", c.addr, c.owner.name, err)
	}
	c.setup = signalled + times.Audio
	c.remove = f.pacer.Add(func() {
		at := meter.Now()
		_ = c.Send() // lost, if it fails, and counted as that
		c.sent.Add(c.numbers.Next(c.Sent()), at)
	})
	return nil
}

// routeOf returns what an answer's ufrag says.
func (f *fleet) routeOf(answer string) (ufrag.Route, error) {
	for line := range strings.Lines(answer) {
		if text, found := strings.CutPrefix(strings.TrimSpace(line), "a=ice-ufrag:"); found {
			return f.codec.Decode([]byte(text))
		}
	}
	return ufrag.Route{}, fmt.Errorf("no ufrag in the answer: %s", answer)
}

// stop makes the client silent for good.
func (c *call) stop() {
	if c.remove != nil {
		c.remove()
		c.remove = nil
	}
}

// closeAll ends calls side by side.
func closeAll(all []*call) {
	var wg sync.WaitGroup
	limit := make(chan struct{}, atOnce)
	for _, c := range all {
		if c.Caller == nil {
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

// of returns the calls of a transceiver.
func (f *fleet) of(t *server) (all []*call) {
	return slices.DeleteFunc(slices.Clone(f.calls), func(c *call) bool { return c.owner != t })
}
