package main

import (
	"context"
	"fmt"
	"regexp"
	"syscall"
	"time"

	"github.com/usher-rtc/usher/internal/bench/gaps"
	"github.com/usher-rtc/usher/internal/bench/stats"
	"github.com/usher-rtc/usher/internal/bench/wait"
	"github.com/usher-rtc/usher/internal/meter"
	"github.com/usher-rtc/usher/relay"
)

// The bounds are those of the drills.
const (
	// jitter is what two busy cores do to packets when nothing happens at all.
	jitter = 100 * time.Millisecond
	// recovery is what a relay that comes back may cost beyond its outage.
	recovery = 100 * time.Millisecond
	// failover is when an edge has noticed that a cluster relay is gone: it asks
	// four times a second, the fifth time after four without an answer.
	failover = 1250*time.Millisecond + jitter
	// aftermath is how long after an event calls are observed.
	aftermath = 1500 * time.Millisecond
	// patience is how long a quick run waits for audio on a busy machine.
	patience = 10 * time.Second
	// grace is what a program may take to end after it has drained.
	grace = 3 * time.Second
)

// rollouts are the events, in the order in which they run. Each leaves the fleet
// as it was.
var rollouts = []struct {
	name string
	run  func(context.Context, *fleet, string) error
}{
	{"steady", steady},
	{"edge-drain", drainEdges},
	{"edge-upgrade", upgradeEdges},
	{"edge-restart", restartEdges},
	{"cluster-relay-restart", restartClusters},
	{"cluster-relay-crash", crashClusters},
	{"transceiver-rollout", rollTransceivers},
}

// rollOver runs those with names that the pattern matches.
func (f *fleet) rollOver(ctx context.Context, pattern *regexp.Regexp) error {
	for _, r := range rollouts {
		if !pattern.MatchString(r.name) {
			continue
		}
		if err := r.run(ctx, f, r.name); err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
	}
	return nil
}

// conclude waits for the aftermath of a spell and prints what the calls noticed.
func (f *fleet) conclude(ctx context.Context, name string, w gaps.Spell, judge func(*verdict)) error {
	if w.To == 0 {
		w.To = meter.Now() + int64(aftermath)
	}
	v, err := f.observe(ctx, name, w)
	for end := time.Now().Add(patience); err == nil && f.quick && v.silent > 0 && time.Now().Before(end); {
		w.To = meter.Now() + int64(gaps.Straggle)
		v, err = f.observe(ctx, name, w)
	}
	if err != nil {
		return err
	}
	judge(v)
	f.say("%v", v)
	if v.silent > 0 {
		f.fail("%s: %d calls are silent", name, v.silent)
	}
	if !f.quick {
		for _, p := range v.Problems {
			f.fail("%s", p)
		}
	}
	return nil
}

// observe waits for the end of a spell and collects what the calls noticed.
func (f *fleet) observe(ctx context.Context, name string, w gaps.Spell) (*verdict, error) {
	if err := wait.For(ctx, time.Duration(w.To-meter.Now())); err != nil {
		return nil, err
	}
	records, err := f.records(ctx, w)
	if err != nil {
		return nil, err
	}
	v := &verdict{Verdict: gaps.Verdict{Name: name, Spell: w}, noise: f.noise}
	for _, r := range records {
		v.add(r.call.far(), r.up, r.down)
	}
	v.Note("calls %d", len(records))
	return v, nil
}

// steady is no event at all. On a machine that does other things too there are
// longer gaps than the bound, which fails. What the others show still counts, so
// their bounds are wider by the difference.
func steady(ctx context.Context, f *fleet, name string) error {
	w := gaps.Spell{From: meter.Now()}
	w.To = w.From + int64(2*aftermath)
	return f.conclude(ctx, name, w, func(v *verdict) {
		v.within(jitter, 0)
		v.lossless()
		f.noise = max(0, stats.Quantile(v.Gaps, 1)-jitter)
	})
}

// each calls do for each server of a kind, one after the other, or only for one.
func (f *fleet) each(of func(*region) *[pair]*server, do func(r *region, i int, s *server) error) error {
	for _, r := range f.regions {
		for i, s := range of(r) {
			if err := do(r, i, s); err != nil || f.quick {
				return err
			}
		}
	}
	return nil
}

func edges(r *region) *[pair]*server        { return &r.edges }
func clusters(r *region) *[pair]*server     { return &r.clusters }
func transceivers(r *region) *[pair]*server { return &r.transceiver }

// upgradeEdges replaces each edge by a successor that takes its sockets over.
func upgradeEdges(ctx context.Context, f *fleet, name string) error {
	w := gaps.Spell{From: meter.Now()}
	err := f.each(edges, func(_ *region, _ int, s *server) error {
		old := s.Process
		if _, err := s.start(ctx); err != nil {
			return err
		}
		return old.Ended(startLimit)
	})
	if err != nil {
		return err
	}
	return f.conclude(ctx, name, w, func(v *verdict) { v.within(jitter, 0); v.lossless() })
}

// restart kills a server and starts it again.
func (f *fleet) restart(ctx context.Context, s *server) (gaps.Spell, error) {
	w := gaps.Spell{From: meter.Now()}
	s.Kill()
	up, err := s.start(ctx)
	w.DownFrom, w.DownTo = w.From, up
	return w, err
}

// restartEdges crashes each edge. The transceivers tell the new process, by way of
// their cluster relays, which clients it has.
func restartEdges(ctx context.Context, f *fleet, name string) error {
	return f.each(edges, func(r *region, i int, s *server) error {
		w, err := f.restart(ctx, s)
		if err != nil {
			return err
		}
		return f.conclude(ctx, fmt.Sprintf("%s/%s-%d", name, places[r.number], i+1), w, func(v *verdict) {
			v.within(recovery, 2) // the edge and a far cluster prove each other's epochs, and then it is told
			v.Note("outage_ms %.0f", stats.Millis(w.Outage()))
		})
	})
}

// drainEdges takes each edge out of the balancer, which sends its clients to the
// other one, ends it, and puts it back, which moves clients again. The other one
// finds them in Redis, unless it was told about all of its region's when it was
// restarted itself.
func drainEdges(ctx context.Context, f *fleet, name string) error {
	all := uint64(0)
	err := f.each(edges, func(r *region, i int, s *server) error {
		w := gaps.Spell{From: meter.Now()}
		earlier, err := f.store(ctx, r.edges[1-i])
		if err != nil {
			return err
		}
		r.balanced[i] = false
		if err := r.balance(); err != nil {
			return err
		}
		if err := wait.For(ctx, aftermath); err != nil {
			return err
		}
		if err := s.terminate(relayDrain); err != nil {
			return err
		}
		if _, err := s.start(ctx); err != nil {
			return err
		}
		r.balanced[i] = true
		if err := r.balance(); err != nil {
			return err
		}
		after, err := f.store(ctx, r.edges[1-i])
		if err != nil {
			return err
		}
		return f.conclude(ctx, fmt.Sprintf("%s/%s-%d", name, places[r.number], i+1), w, func(v *verdict) {
			v.within(jitter, 0)
			found := after.Hits - earlier.Hits
			v.Note("in redis %d missing %d no answer %d", found, after.Misses-earlier.Misses, after.Failed+after.Shed-earlier.Failed-earlier.Shed)
			all += found
		})
	})
	if err == nil && all == 0 && !f.quick { // few calls may all be at the other edge
		f.fail("%s: no edge found a client in Redis", name)
	}
	return err
}

// store returns what a relay says about its flow store.
func (f *fleet) store(ctx context.Context, s *server) (relay.StoreStats, error) {
	var stats struct{ Store relay.StoreStats }
	err := f.get(ctx, s, "/debug/stats", &stats)
	return stats.Store, err
}

// terminate ends a server as an orchestrator does.
func (s *server) terminate(limit time.Duration) error {
	if err := s.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return s.Ended(limit + grace)
}

// restartClusters ends each cluster relay and starts it again. It says goodbye, so
// that edges and transceivers go on with the other one at once.
func restartClusters(ctx context.Context, f *fleet, name string) error {
	return f.each(clusters, func(r *region, i int, s *server) error {
		w := gaps.Spell{From: meter.Now()}
		if err := s.terminate(relayDrain); err != nil {
			return err
		}
		if _, err := s.start(ctx); err != nil {
			return err
		}
		return f.conclude(ctx, fmt.Sprintf("%s/%s-%d", name, places[r.number], i+1), w, func(v *verdict) { v.within(jitter, 0) })
	})
}

// crashClusters crashes each cluster relay and starts it again only when edges and
// transceivers have had to notice by themselves.
func crashClusters(ctx context.Context, f *fleet, name string) error {
	return f.each(clusters, func(r *region, i int, s *server) error {
		w := gaps.Spell{From: meter.Now()}
		s.Kill()
		if err := wait.For(ctx, 2*failover); err != nil {
			return err
		}
		if _, err := s.start(ctx); err != nil {
			return err
		}
		return f.conclude(ctx, fmt.Sprintf("%s/%s-%d", name, places[r.number], i+1), w, func(v *verdict) { v.within(failover, 0) })
	})
}

// rollTransceivers ends each transceiver in turn. Its calls go on while it drains;
// in that time each client makes another call, to the other transceiver, and ends
// the first one.
func rollTransceivers(ctx context.Context, f *fleet, name string) error {
	return f.each(transceivers, func(r *region, i int, s *server) error {
		w := gaps.Spell{From: meter.Now()}
		w.To = w.From + int64(aftermath)
		if err := s.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		err := f.conclude(ctx, fmt.Sprintf("%s/%s-%d", name, places[r.number], i+1), w, func(v *verdict) { v.within(jitter, 0); v.lossless() })
		if err != nil {
			return err
		}
		own := f.of(s)
		other := r.transceiver[1-i]
		for _, c := range own {
			c.HangUp()
			c.owner = other
		}
		if err := f.placeAll(ctx, own); err != nil {
			return err
		}
		if err := s.Ended(hostDrain + grace); err != nil {
			return err
		}
		if _, err := s.start(ctx); err != nil {
			return err
		}
		// Back, so that the next one has calls too.
		for _, c := range own {
			c.HangUp()
			c.owner = s
		}
		return f.placeAll(ctx, own)
	})
}
