package main

import (
	"context"
	"fmt"
	"time"

	"github.com/usher-rtc/usher/internal/bench/gaps"
	"github.com/usher-rtc/usher/internal/bench/stats"
	"github.com/usher-rtc/usher/internal/bench/wait"
	"github.com/usher-rtc/usher/internal/meter"
)

const (
	// moveIdle is the idle timeout of relays between which clients move: after
	// forgotten a relay does not know clients that have left it.
	moveIdle  = 4 * time.Second
	forgotten = moveIdle + 2*time.Second
	// notice is how long a balancer takes to see that a relay is ready no more,
	// or gone.
	notice = 300 * time.Millisecond
	// moved is the group of clients that moves, from the first relay to the second.
	moved = 0
)

func isMoved(_ *host, group int) bool { return group == moved }

// isMovedCaller leaves out browsers: when they check next is their own affair.
func isMovedCaller(h *host, group int) bool { return group == moved && !h.browser }

func isNotMoved(_ *host, group int) bool { return group != moved }

// move sends the group to another relay from now on.
func (f *fleet) move(ctx context.Context, to int) error {
	f.balancer.assign(moved, f.relays[to].addr)
	return f.balancer.apply(ctx)
}

// moveBack sends the group to the first relay again, and waits until the others
// have forgotten it.
func (f *fleet) moveBack(ctx context.Context) error {
	if err := f.move(ctx, 0); err != nil {
		return err
	}
	if err := wait.For(ctx, forgotten); err != nil {
		return err
	}
	return f.forgot(ctx)
}

// forgot checks that the second relay knows nobody of the group.
func (f *fleet) forgot(ctx context.Context) error {
	var page struct {
		Flows []struct {
			Client, Upstream, State string
			IdleMS                  int `json:"idle_ms"`
		}
	}
	if err := f.get(ctx, f.relays[1].url+"/debug/flows?limit=10000", &page); err != nil {
		return err
	}
	prefix := fmt.Sprintf("127.1.%d.", moved)
	for _, flow := range page.Flows {
		if len(flow.Client) > len(prefix) && flow.Client[:len(prefix)] == prefix {
			return fmt.Errorf("relay 2 still knows %s: %+v", flow.Client, flow)
		}
	}
	return nil
}

// moveAndConclude sends the group to the second relay, which does not know it,
// while the first goes on running.
func (f *fleet) moveAndConclude(ctx context.Context, which func(*host, int) bool, judge func(*verdict)) error {
	if err := f.forgot(ctx); err != nil {
		return err
	}
	before, err := f.lookups(ctx)
	if err != nil {
		return err
	}
	w := f.now(aftermath)
	if err := f.move(ctx, 1); err != nil {
		return err
	}
	err = f.conclude(ctx, w, which, func(v *verdict) {
		judge(v)
		if f.store == nil {
			return
		}
		after, err := f.lookups(ctx)
		if err != nil {
			v.Fail("%v", err)
		}
		v.Note("lookups %d, hits %d, failed %d", after.Lookups-before.Lookups, after.Hits-before.Hits, after.Failed-before.Failed)
	})
	if err != nil {
		return err
	}
	return f.moveBack(ctx)
}

// storeStats is what the second relay says about its store.
type storeStats struct {
	Lookups, Hits, Failed uint64
	Refused               map[string]uint64
}

func (f *fleet) lookups(ctx context.Context) (storeStats, error) {
	var stats struct{ Store storeStats }
	err := f.get(ctx, f.relays[1].url+"/debug/stats", &stats)
	return stats.Store, err
}

func moveStore(ctx context.Context, f *fleet) error {
	if err := f.store.holds(ctx, f, startLimit); err != nil {
		return err
	}
	return f.moveAndConclude(ctx, isMoved, func(v *verdict) { v.within(storeRecovery) })
}

// moveOff moves clients without a store to a relay that has not been told of
// them: the next check is what remains.
func moveOff(ctx context.Context, f *fleet) error {
	return f.moveAndConclude(ctx, isMovedCaller, func(v *verdict) { v.beyond(recovery).within(nextCheck) })
}

// moveDraining is the planned end of a relay: it says goodbye, the balancer sends
// its clients elsewhere, and it ends within its deadline.
func moveDraining(ctx context.Context, f *fleet) error {
	if err := f.forgot(ctx); err != nil {
		return err
	}
	old := f.relays[0].Process
	w := f.now(relayDrain + 2*time.Second)
	at, err := terminate(old)
	if err != nil {
		return err
	}
	if err := wait.For(ctx, notice); err != nil {
		return err
	}
	if err := f.move(ctx, 1); err != nil {
		return err
	}
	took, err := f.drained(old, at, relayDrain)
	if err != nil {
		return err
	}
	err = f.conclude(ctx, w, nil, func(v *verdict) { v.within(recovery).lossless().Note("ended after %.0f ms", stats.Millis(took)) })
	if err != nil {
		return err
	}
	if _, err := f.startRelay(ctx, 0); err != nil {
		return err
	}
	if err := wait.For(ctx, settled); err != nil {
		return err
	}
	return f.moveBack(ctx)
}

func oneDies(ctx context.Context, f *fleet) error {
	if err := f.store.holds(ctx, f, startLimit); err != nil {
		return err
	}
	return f.oneRelayDies(ctx, isMoved, func(v *verdict) { v.within(storeRecovery) })
}

func oneDiesOff(ctx context.Context, f *fleet) error {
	return f.oneRelayDies(ctx, isMovedCaller, func(v *verdict) { v.beyond(storeRecovery).within(nextCheck) })
}

// oneRelayDies kills the first relay. The balancer notices and spreads its clients
// over the two others; the clients of those must not notice.
func (f *fleet) oneRelayDies(ctx context.Context, which func(*host, int) bool, judge func(*verdict)) error {
	if err := f.forgot(ctx); err != nil {
		return err
	}
	from := meter.Now()
	f.relays[0].Kill()
	if err := wait.For(ctx, notice); err != nil {
		return err
	}
	f.balancer.split(moved, f.relays[1].addr, f.relays[2].addr)
	if err := f.balancer.apply(ctx); err != nil {
		return err
	}
	up := meter.Now()
	w := gaps.Spell{From: from, To: up + int64(aftermath), DownFrom: from, DownTo: up}
	if err := f.conclude(ctx, w, which, judge); err != nil {
		return err
	}
	w.DownFrom, w.DownTo = 0, 0
	err := f.concludeAs(ctx, f.drill+"-others", w, isNotMoved, func(v *verdict) { v.within(jitter).lossless() })
	if err != nil {
		return err
	}
	if _, err := f.startRelay(ctx, 0); err != nil {
		return err
	}
	if err := wait.For(ctx, settled); err != nil {
		return err
	}
	return f.moveBack(ctx)
}
