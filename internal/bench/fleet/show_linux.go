package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/usher-rtc/usher/internal/bench/callers"
	"github.com/usher-rtc/usher/internal/bench/gaps"
	"github.com/usher-rtc/usher/internal/bench/stats"
	"github.com/usher-rtc/usher/internal/bench/wait"
	"github.com/usher-rtc/usher/internal/bench/web"
	"github.com/usher-rtc/usher/internal/meter"
)

// session is what a transceiver says about one, on /debug/sessions.
type session struct {
	Cluster uint16 `json:"cluster"`
	Host    string `json:"host"`
	Session uint32 `json:"session"`
	Ingress uint16 `json:"ingress"`
	Client  string `json:"client"` // as the edge sees it
	State   string `json:"state"`
	ToOwner uint64 `json:"to_owner"`
}

// showOwners checks that each call is at the transceiver that its ufrag names, and
// nowhere else, came in through the ingress near its client, and has the client's
// true address, or its NAT's.
func (f *fleet) showOwners(ctx context.Context) error {
	type found struct {
		at string
		session
	}
	all := make(map[[2]uint32][]found) // by cluster and session
	for _, r := range f.regions {
		for _, t := range r.transceiver {
			var page struct {
				Sessions []session `json:"sessions"`
			}
			if err := f.get(ctx, t, "/debug/sessions", &page); err != nil {
				return err
			}
			for _, s := range page.Sessions {
				if s.State == "connected" && s.ToOwner > 0 {
					key := [2]uint32{uint32(s.Cluster), s.Session}
					all[key] = append(all[key], found{t.node.addr.String() + ":9000", s})
				}
			}
		}
	}
	owned, near, behind := 0, 0, 0
	for _, c := range f.calls {
		named, _ := c.route.AddrPort() // zero if the ufrag names none
		at := all[[2]uint32{uint32(c.route.Cluster), c.route.Session}]
		if len(at) != 1 || at[0].at != named.String() || int(c.route.Cluster) != c.target+1 {
			f.fail("the call from %v, of cluster %d and %v, is at %v", c.addr, c.route.Cluster, named, at)
			continue
		}
		owned++
		if int(at[0].Ingress) == c.region+1 {
			near++
		} else {
			f.fail("the call from %v in %s came in through ingress %d", c.addr, places[c.region], at[0].Ingress)
		}
		seen, want := at[0].Client, c.addr
		if c.node == f.regions[c.region].home {
			behind++
			want = addr(c.region, natNet, 1)
		}
		if client, err := netip.ParseAddrPort(seen); err != nil || client.Addr() != want {
			f.fail("the call from %v comes from %q, want %v", c.addr, seen, want)
		}
	}
	f.say("fleet owners %d of %d near %d of %d behind-nat %d", owned, len(f.calls), near, len(f.calls), behind)
	return nil
}

// showSetup prints how long set-ups took: from the offer until audio was back.
func (f *fleet) showSetup() {
	for _, far := range []bool{false, true} {
		var all []time.Duration
		for _, c := range f.calls {
			if c.far() == far {
				all = append(all, c.setup)
			}
		}
		f.say("fleet setup_ms %s %.0f %.0f %.0f calls %d", nearOrFar(far),
			stats.Millis(stats.Quantile(all, 0.5)), stats.Millis(stats.Quantile(all, 0.99)), stats.Millis(stats.Quantile(all, 1)), len(all))
	}
}

const (
	// probes is how many first checks are sent for each round trip.
	probes = 8
	// tolerance is what a busy machine may add to the fastest of them.
	tolerance = 8 * time.Millisecond
)

// showChecks measures the round trip of a session's very first check: of a near
// session, and of a far one through the near edge and directly to the far region.
// The last two must differ by what the delays of the link differ. The fastest of
// several counts: a machine that is busy only ever adds to a round trip.
func (f *fleet) showChecks(ctx context.Context) error {
	var fastest [3]time.Duration
	for i, way := range []struct {
		name            string
		target, ingress int
	}{{"near", 0, 0}, {"far-near-edge", 1, 0}, {"far-direct", 1, 1}} {
		var all []time.Duration
		for n := range probes {
			rtt, err := f.probe(ctx, f.regions[way.target].transceiver[n%pair], way.ingress, n)
			if err != nil {
				return err
			}
			all = append(all, rtt)
		}
		fastest[i] = stats.Quantile(all, 0)
		f.say("fleet first_check_ms %s %.1f %.1f %.1f checks %d", way.name, stats.Millis(fastest[i]), stats.Millis(stats.Quantile(all, 0.5)), stats.Millis(stats.Quantile(all, 1)), len(all))
	}
	const modelled = 2 * (internet - backbone)
	saved := fastest[2] - fastest[1]
	f.say("fleet saved_ms %.1f modelled %.1f", stats.Millis(saved), stats.Millis(modelled))
	if off := saved - modelled; saved <= 0 || !f.quick && (off > tolerance || off < -tolerance) {
		f.fail("the near edge saves %.1f ms, want %.1f", stats.Millis(saved), stats.Millis(modelled))
	}
	return nil
}

// probe makes a session and sends its first check through an ingress.
func (f *fleet) probe(ctx context.Context, t *server, ingress, n int) (time.Duration, error) {
	r := f.regions[0]
	c := &call{region: r.number, node: r.clients, addr: addr(r.number, clientNet, n+2), owner: t}
	var offer, answer string
	fresh, err := c.open(f.engine)(callers.Options{Addr: c.addr})
	if err != nil {
		return 0, err
	}
	defer fresh.Close()
	if offer, err = fresh.Offer(); err != nil {
		return 0, err
	}
	if answer, err = f.post(ctx, c.node, c.region, c.owner, offer); err != nil {
		return 0, err
	}
	var conn net.Conn
	err = r.clients.do(func() (err error) {
		conn, err = (&net.Dialer{LocalAddr: &net.UDPAddr{IP: c.addr.AsSlice()}}).DialContext(ctx, "udp4", publicAddr(ingress).String())
		return err
	})
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	return callers.Check(conn, offer, answer)
}

// showMedia prints the round trips of audio: the median of the one way plus that
// of the other.
func (f *fleet) showMedia(ctx context.Context) error {
	w := gaps.Spell{From: meter.Now()}
	if err := wait.For(ctx, 2*time.Second); err != nil {
		return err
	}
	w.To = meter.Now()
	records, err := f.records(ctx, w)
	if err != nil {
		return err
	}
	for _, far := range []bool{false, true} {
		var all []time.Duration
		for _, r := range records {
			if r.call.far() == far {
				all = append(all, r.up.Delay()+r.down.Delay())
			}
		}
		p50 := stats.Quantile(all, 0.5)
		f.say("fleet media_rtt_ms %s %.1f %.1f %.1f calls %d", nearOrFar(far), stats.Millis(p50), stats.Millis(stats.Quantile(all, 0.99)), stats.Millis(stats.Quantile(all, 1)), len(all))
		if least := 2 * backbone; far && p50 < least {
			f.fail("the round trip of far audio is %.1f ms, less than the %.1f of the link", stats.Millis(p50), stats.Millis(least))
		}
	}
	if n := f.wan.dropped.Load(); n > 0 {
		return fmt.Errorf("the link between the regions dropped %d packets", n)
	}
	return nil
}

// record is what both sides know about a call.
type record struct {
	call     *call
	up, down gaps.Stream
}

// records collects the records of calls from a while before a spell on.
func (f *fleet) records(ctx context.Context, w gaps.Spell) (list []record, err error) {
	since := w.From - int64(before)
	reports := make(map[*server]map[uint32]meter.CallReport)
	for _, r := range f.regions {
		for _, t := range r.transceiver {
			if reports[t], err = web.Audio(ctx, t.node.web, t.url(""), since); err != nil {
				return nil, err
			}
		}
	}
	var errs []error
	for _, c := range f.calls {
		there, ok := reports[c.owner][c.route.Session]
		if !ok {
			errs = append(errs, fmt.Errorf("%s has no session %d", c.owner.name, c.route.Session))
			continue
		}
		list = append(list, record{c,
			gaps.Stream{Sent: c.Spoken.Since(since), Received: there.Received},
			gaps.Stream{Sent: there.Sent, Received: c.Heard.Since(since)}})
	}
	return list, errors.Join(errs...)
}

// before is how long before an event records begin.
const before = 500 * time.Millisecond
