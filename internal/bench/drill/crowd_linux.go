package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/usher-rtc/usher/internal/bench/callers"
	"github.com/usher-rtc/usher/internal/bench/web"
)

// caller is a client that speaks and keeps a record.
type caller struct {
	callers.Speaker
	host    *host
	group   int
	addr    netip.Addr
	session uint32
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
)

// openCallers makes the plan's calls, spread over groups and transceivers.
func (f *fleet) openCallers(ctx context.Context) error {
	for i := range f.sessions {
		c := &caller{group: i % groups, host: f.hosts[i/groups%f.plan.hosts]}
		n := i/groups + 1
		if n%behindNAT == 0 {
			n = natNumber
		} else if n >= natNumber {
			n++
		}
		c.addr = groupAddr(c.group, n)
		f.callers = append(f.callers, c)
	}
	return callers.EachSpread(ctx, len(f.callers), atOnce, func(i int) error { return f.place(ctx, f.callers[i]) })
}

// placeAll makes calls side by side.
func (f *fleet) placeAll(ctx context.Context, all []*caller) error {
	return callers.Each(ctx, len(all), atOnce, func(i int) error { return f.place(ctx, all[i]) })
}

// place makes a caller's call to its transceiver and makes it speak. What went
// before is forgotten.
func (f *fleet) place(ctx context.Context, c *caller) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	_, err := c.Call(ctx, callers.Options{Addr: c.addr}, f.engine.New, func(ctx context.Context, offer string) (string, error) {
		answer, err := f.post(ctx, c.host, offer)
		if err != nil {
			return "", err
		}
		route, err := callers.RouteOf(f.codec, answer)
		c.session = route.Session
		return answer, err
	})
	if err != nil {
		return fmt.Errorf("call from %v to %s: %w", c.addr, c.host.Name, err)
	}
	c.Speak(f.pacer)
	return nil
}

// post sends an offer to a transceiver.
func (f *fleet) post(ctx context.Context, h *host, offer string) (answer string, err error) {
	answer, _, err = web.Offer(ctx, f.web, h.url+"/v1/realtime/calls", offer, nil)
	return answer, err
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
