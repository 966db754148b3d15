package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/usher-rtc/usher/internal/bench/callers"
	"github.com/usher-rtc/usher/ufrag"
)

const (
	// atOnce is how many calls are set up side by side.
	atOnce = 8
	// callLimit bounds a call's set-up.
	callLimit = 20 * time.Second
	// translated: every so many-th client is behind the NAT.
	translated = 5
)

// call is a client that speaks and keeps a record, and its session.
type call struct {
	callers.Speaker
	region int        // of the client
	target int        // of the session
	node   *node      // where the client is
	addr   netip.Addr // of the client there
	owner  *server
	route  ufrag.Route
	setup  time.Duration // from the offer to the first audio
}

func (c *call) far() bool { return c.region != c.target }

// openCalls makes n calls: as many within each region as to the other one, and
// spread over the transceivers.
func (f *fleet) openCalls(ctx context.Context, n int) error {
	for i := range n {
		c := &call{region: i % 2, target: i / 2 % 2}
		r := f.regions[c.region]
		c.node, c.addr = r.clients, addr(c.region, clientNet, i/2%250+2)
		if i/2%translated == 0 {
			c.node, c.addr = r.home, r.home.addr
		}
		c.owner = f.regions[c.target].transceiver[i/4%pair]
		f.calls = append(f.calls, c)
	}
	return callers.EachSpread(ctx, n, atOnce, func(i int) error { return f.place(ctx, f.calls[i]) })
}

// placeAll makes calls again, side by side.
func (f *fleet) placeAll(ctx context.Context, all []*call) error {
	return callers.Each(ctx, len(all), atOnce, func(i int) error { return f.place(ctx, all[i]) })
}

// open makes clients where the call's is.
func (c *call) open(e *callers.Engine) func(callers.Options) (*callers.Caller, error) {
	return func(o callers.Options) (fresh *callers.Caller, err error) {
		err = c.node.do(func() error { fresh, err = e.New(o); return err })
		return fresh, err
	}
}

// place makes a call and makes it speak.
func (f *fleet) place(ctx context.Context, c *call) (err error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	c.setup, err = c.Call(ctx, callers.Options{Addr: c.addr}, c.open(f.engine), func(ctx context.Context, offer string) (string, error) {
		answer, err := f.post(ctx, c.node, c.region, c.owner, offer)
		if err != nil {
			return "", err
		}
		c.route, err = callers.RouteOf(f.codec, answer)
		return answer, err
	})
	if err != nil {
		return fmt.Errorf("call from %v to %s: %w", c.addr, c.owner.name, err)
	}
	c.Speak(f.pacer)
	return nil
}

// of returns the calls of a transceiver.
func (f *fleet) of(t *server) (all []*call) {
	return slices.DeleteFunc(slices.Clone(f.calls), func(c *call) bool { return c.owner != t })
}
