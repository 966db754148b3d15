package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/bench/stats"
	"github.com/usher-rtc/usher/internal/bench/wait"
	"github.com/usher-rtc/usher/internal/meter"
	"github.com/usher-rtc/usher/ufrag"
)

const (
	// faultTime is how long a fault of the store lasts.
	faultTime = 5 * time.Second
	// strangersRate is how many packets a second come from clients that nobody
	// knows meanwhile, each of which might be one that the store knows.
	strangersRate = 1000
	strangers     = 200
	// growth is what a relay's memory may grow by during a fault: its queues for
	// the store and its room for waiting packets are bounded.
	growth = 32 << 20
	// faultLines is how many lines a relay may write about a fault that lasts less
	// than a minute: one of the relay's own and
	// one of the client's.
	faultLines = 2
)

func redisStopped(ctx context.Context, f *fleet) error {
	return f.storeFails(ctx, func() error {
		f.store.Kill()
		return nil
	}, func() error { return f.store.launch(ctx) })
}

func redisHung(ctx context.Context, f *fleet) error {
	return f.storeFails(ctx,
		func() error { return f.store.Signal(syscall.SIGSTOP) },
		func() error { return f.store.Signal(syscall.SIGCONT) })
}

func redisSlow(ctx context.Context, f *fleet) error {
	return f.storeFails(ctx, func() error {
		f.store.delay.Store(int64(time.Second))
		return nil
	}, func() error {
		f.store.delay.Store(0)
		return nil
	})
}

// storeFails lets the store fail for a while. Live calls must not notice; the
// relay must stay healthy, small and quiet.
func (f *fleet) storeFails(ctx context.Context, begin, end func() error) error {
	relay := f.relays[0]
	before, err := relay.ResidentBytes()
	if err != nil {
		return err
	}
	w := f.now(faultTime)
	if err := begin(); err != nil {
		return err
	}
	crowd := make(chan error, 1)
	go func() { crowd <- knock(ctx, faultTime) }()
	peak, unhealthy := before, error(nil)
	for time.Duration(w.To-meter.Now()) > 0 {
		if err := f.get(ctx, relay.url+"/readyz", nil); err != nil && unhealthy == nil {
			unhealthy = err
		}
		now, err := relay.ResidentBytes()
		if err != nil {
			return err
		}
		peak = max(peak, now)
		if err := wait.For(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	if err := <-crowd; err != nil {
		return err
	}
	v, err := f.measure(ctx, f.drill, w, nil)
	if err != nil {
		return err
	}
	v.within(jitter).lossless()
	lines := 0
	for _, l := range relay.Since(w.From) {
		if strings.Contains(l.Text, "store") || strings.Contains(l.Text, "redis") {
			lines++
		}
	}
	v.Note("grew by %d KiB, %d lines", (peak-before)>>10, lines)
	if unhealthy != nil {
		v.Fail("health: %v", unhealthy)
	}
	if peak-before > growth {
		v.Fail("the relay grew by %d KiB", (peak-before)>>10)
	}
	if lines > faultLines {
		v.Fail("%d lines in %v", lines, faultTime)
	}
	f.report(v)
	if err := end(); err != nil {
		return err
	}
	// The next drill begins with a store that works and has everything.
	return f.store.holds(ctx, f, 30*time.Second)
}

// knock sends what looks like audio from clients that nobody knows.
func knock(ctx context.Context, d time.Duration) error {
	conns := make([]*net.UDPConn, strangers)
	for i := range conns {
		// Addresses of a group, but none of a caller's.
		local := net.UDPAddrFromAddrPort(netip.AddrPortFrom(groupAddr(i%groups, 200+i%50), 0))
		c, err := net.DialUDP("udp4", local, net.UDPAddrFromAddrPort(vip))
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		conns[i] = c
	}
	packet := make([]byte, 82)
	packet[0], packet[1] = 0x80, 111
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	sent := 0
	for begin := time.Now(); time.Since(begin) < d; {
		for due := int(time.Since(begin).Seconds() * strangersRate); sent < due; sent++ {
			packet[8], packet[9] = byte(sent>>8), byte(sent) // an SSRC of its own
			_, _ = conns[sent%strangers].Write(packet)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// redisEmpty restarts the store without its content. The relay notices that it
// works again and writes its flows; then clients can move.
func redisEmpty(ctx context.Context, f *fleet) error {
	w := f.now(aftermath)
	f.store.Kill()
	if err := f.store.launch(ctx); err != nil {
		return err
	}
	if n, err := entries(ctx); err != nil || n > 0 {
		return fmt.Errorf("the new store has %d entries (%w)", n, err)
	}
	back := meter.Now()
	err := f.conclude(ctx, w, nil, func(v *verdict) { v.within(jitter).lossless() })
	if err != nil {
		return err
	}
	if err := f.store.holds(ctx, f, 60*time.Second); err != nil {
		return err
	}
	took := time.Duration(meter.Now() - back)
	f.drill += "-then-move"
	return f.moveAndConclude(ctx, isMoved, func(v *verdict) {
		v.within(storeRecovery).Note("all flows were written again after %.0f ms", stats.Millis(took))
	})
}

// redisForged fills the store with lies. Live calls must not notice; a relay to
// which clients move must believe none of them, and the next check must help.
func redisForged(ctx context.Context, f *fleet) error {
	foreign, err := foreignValue()
	if err != nil {
		return err
	}
	w := f.now(aftermath)
	n, err := f.store.falsify(ctx, foreign)
	if err != nil {
		return err
	}
	if err := f.conclude(ctx, w, nil, func(v *verdict) { v.within(jitter).lossless().Note("%d lies", n) }); err != nil {
		return err
	}
	f.drill += "-then-move"
	refused := func() (n uint64, err error) {
		stats, err := f.lookups(ctx)
		for _, c := range stats.Refused {
			n += c
		}
		return n, err
	}
	before, err := refused()
	if err != nil {
		return err
	}
	// Again: by now the relay has written some of its flows anew.
	if _, err := f.store.falsify(ctx, foreign); err != nil {
		return err
	}
	return f.moveAndConclude(ctx, isMovedCaller, func(v *verdict) {
		after, err := refused()
		v.within(nextCheck).Note("%d values refused", after-before)
		if err != nil || after == before {
			v.Fail("no value was refused (%v)", err)
		}
	})
}

// foreignValue is a value that another fleet has sealed.
func foreignValue() (string, error) {
	key, err := ufrag.GenerateKey('A')
	if err != nil {
		return "", err
	}
	keys, err := ufrag.NewKeyring('A', key)
	if err != nil {
		return "", err
	}
	route, err := ufrag.IPv4Route(0, netip.AddrPortFrom(groupAddr(moved, 1), 9000), 1)
	if err != nil {
		return "", err
	}
	v := flowtable.Value{Route: route, Expires: time.Now().Add(time.Hour)}
	b, err := v.Seal(nil, flowtable.Key{Client: netip.AddrPortFrom(groupAddr(moved, 1), 40000), Ingress: 1}, keys)
	return string(b), err
}
