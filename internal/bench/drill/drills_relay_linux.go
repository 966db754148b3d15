package main

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/usher-rtc/usher/internal/bench/gaps"
	"github.com/usher-rtc/usher/internal/bench/procs"
	"github.com/usher-rtc/usher/internal/bench/stats"
	"github.com/usher-rtc/usher/internal/bench/wait"
	"github.com/usher-rtc/usher/internal/meter"
)

const (
	// aftermath is how long after an event calls are observed: longer than until
	// the next check.
	aftermath = 3 * time.Second
)

// now is a spell that begins now.
func (f *fleet) now(length time.Duration) gaps.Spell {
	from := meter.Now()
	return gaps.Spell{From: from, To: from + int64(length)}
}

// conclude waits for the end of a spell, lets judge say what must hold, and
// reports it under the drill's name.
func (f *fleet) conclude(ctx context.Context, w gaps.Spell, which func(*host, int) bool, judge func(*verdict)) error {
	return f.concludeAs(ctx, f.drill, w, which, judge)
}

func (f *fleet) concludeAs(ctx context.Context, name string, w gaps.Spell, which func(*host, int) bool, judge func(*verdict)) error {
	v, err := f.measure(ctx, name, w, which)
	if err != nil {
		return err
	}
	judge(v)
	f.report(v)
	return nil
}

// crash kills relay number i, does something else if there is anything, and
// starts the relay again. The outage ends when the new process has its sockets:
// from then on packets wait for it in the kernel.
func (f *fleet) crash(ctx context.Context, i int, meanwhile func() error) (gaps.Spell, error) {
	from := meter.Now()
	f.relays[i].Kill()
	if meanwhile != nil {
		if err := meanwhile(); err != nil {
			return gaps.Spell{}, err
		}
	}
	up, err := f.startRelay(ctx, i)
	return gaps.Spell{From: from, To: up + int64(aftermath), DownFrom: from, DownTo: up}, err
}

// crashAndConclude crashes the first relay.
func (f *fleet) crashAndConclude(ctx context.Context, meanwhile func() error, judge func(*verdict)) error {
	w, err := f.crash(ctx, 0, meanwhile)
	if err != nil {
		return err
	}
	return f.conclude(ctx, w, nil, judge)
}

func kill(ctx context.Context, f *fleet) error {
	return f.crashAndConclude(ctx, nil, func(v *verdict) { v.within(recovery) })
}

func killOff(ctx context.Context, f *fleet) error {
	return f.crashAndConclude(ctx, nil, func(v *verdict) { v.beyond(recovery) })
}

// killListening is a crash while callers say nothing.
func killListening(ctx context.Context, f *fleet) error {
	if err := f.speak(ctx, false, true); err != nil {
		return err
	}
	if err := wait.For(ctx, settled); err != nil {
		return err
	}
	err := f.crashAndConclude(ctx, nil, func(v *verdict) { v.within(recovery) })
	if err != nil {
		return err
	}
	return f.speak(ctx, true, true)
}

func killSilent(ctx context.Context, f *fleet) error {
	return f.crashInSilence(ctx, func(v *verdict) { v.within(silentRecovery) })
}

func killSilentOff(ctx context.Context, f *fleet) error {
	return f.crashInSilence(ctx, func(v *verdict) { v.beyond(silentRecovery) })
}

// crashInSilence is a crash while nobody says anything: nothing teaches the relay
// flows but what it asks for. Once it is back callers speak, which shows from when
// on flows are there; a packet of a caller's that the relay does not know teaches
// it nothing.
func (f *fleet) crashInSilence(ctx context.Context, judge func(*verdict)) error {
	if err := f.speak(ctx, false, false); err != nil {
		return err
	}
	if err := wait.For(ctx, settled+time.Second); err != nil {
		return err
	}
	w, err := f.crash(ctx, 0, nil)
	if err != nil {
		return err
	}
	if err := f.speak(ctx, true, false); err != nil {
		return err
	}
	if err := f.conclude(ctx, w, func(h *host, _ int) bool { return !h.browser }, judge); err != nil {
		return err
	}
	if err := f.speak(ctx, true, true); err != nil {
		return err
	}
	return wait.For(ctx, settled)
}

// killRebinding is a crash during which a NAT gives every caller another port.
// Announced flows have SSRCs, by which the relay knows the packets from the new one.
func killRebinding(ctx context.Context, f *fleet) error {
	return f.crashAndConclude(ctx, func() error {
		for _, c := range f.callers {
			if err := c.Rebind(c.addr); err != nil {
				return err
			}
		}
		return nil
	}, func(v *verdict) { v.within(rebinding) })
}

// rebinding is the check of the Host's own that a new path has to answer, on top
// of what a crash costs.
const rebinding = 300 * time.Millisecond

// killRoaming is a crash during which every caller gets another IP address: only
// its next check tells who it is.
func killRoaming(ctx context.Context, f *fleet) error {
	return f.crashAndConclude(ctx, func() error {
		for _, c := range f.callers {
			b := c.addr.As4()
			b[3] ^= 0x80 // the other half of the group
			c.addr = groupAddr(c.group, int(b[3]))
			if err := c.Rebind(c.addr); err != nil {
				return err
			}
		}
		return nil
	}, func(v *verdict) { v.within(nextCheck) })
}

// socketError makes every packet to the second transceiver fail with EPERM for a
// second, in the middle of batches for both of them.
func socketError(ctx context.Context, f *fleet) error {
	second := f.hosts[1]
	f.balancer.refuse = []string{fmt.Sprintf("ip saddr %v ip daddr %v udp dport %d drop", f.relays[0].addr, second.trunk.Addr(), second.trunk.Port())}
	if err := f.balancer.apply(ctx); err != nil {
		return err
	}
	w := f.now(time.Second + aftermath)
	w.DownFrom = w.From
	if err := wait.For(ctx, time.Second); err != nil {
		return err
	}
	f.balancer.refuse = nil
	if err := f.balancer.apply(ctx); err != nil {
		return err
	}
	w.DownTo = meter.Now()
	var stats struct{ Sockets []struct{ SendErrors uint64 } }
	if err := f.get(ctx, f.relays[0].url+"/debug/stats", &stats); err != nil {
		return err
	}
	failed := uint64(0)
	for _, s := range stats.Sockets {
		failed += s.SendErrors
	}
	err := f.conclude(ctx, w, func(h *host, _ int) bool { return h == second }, func(v *verdict) {
		v.within(recovery).Note("failed writes %d", failed)
		if failed == 0 {
			v.Fail("no write failed")
		}
	})
	if err != nil {
		return err
	}
	w.DownFrom, w.DownTo = 0, 0
	return f.concludeAs(ctx, f.drill+"-others", w, func(h *host, _ int) bool { return h != second }, func(v *verdict) {
		v.within(jitter).lossless()
	})
}

// upgrades is how many times in a row a relay is replaced by its successor.
const upgrades = 10

// upgrade replaces the relay by hand-over, again and again.
func upgrade(ctx context.Context, f *fleet) error {
	w := f.now(0)
	slowest := time.Duration(0)
	for range upgrades {
		old := f.relays[0].Process
		begin := time.Now()
		if _, err := f.startRelay(ctx, 0); err != nil {
			return err
		}
		if err := old.Ended(startLimit); err != nil {
			return err
		}
		slowest = max(slowest, time.Since(begin))
		if err := wait.For(ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
	w.To = meter.Now() + int64(time.Second)
	return f.conclude(ctx, w, nil, func(v *verdict) {
		v.within(jitter).lossless().Note("upgrades %d, the slowest in %.0f ms", upgrades, stats.Millis(slowest))
	})
}

// upgradeOff is what there would be without hand-over: an end and a start.
func upgradeOff(ctx context.Context, f *fleet) error {
	w, err := f.crash(ctx, 0, nil)
	if err != nil {
		return err
	}
	w.DownFrom, w.DownTo = 0, 0
	return f.conclude(ctx, w, nil, func(v *verdict) { v.lossy() })
}

// drained waits for a relay that got SIGTERM at a time, and checks that it ends
// within its deadline.
func (f *fleet) drained(p *procs.Process, at int64, deadline time.Duration) (time.Duration, error) {
	const grace = time.Second // for the end itself, on a busy machine
	if err := p.Ended(time.Duration(at-meter.Now()) + deadline + grace); err != nil {
		return 0, err
	}
	return time.Duration(meter.Now() - at), nil
}

// terminate sends SIGTERM and returns when.
func terminate(p *procs.Process) (int64, error) {
	at := meter.Now()
	return at, p.Signal(syscall.SIGTERM)
}
