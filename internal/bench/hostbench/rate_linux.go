package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/usher-rtc/usher/internal/bench/callers"
	"github.com/usher-rtc/usher/internal/bench/hosts"
	"github.com/usher-rtc/usher/internal/bench/stats"
	"github.com/usher-rtc/usher/internal/bench/wait"
)

// rate measures how fast sessions come and go.
func (b *bench) rate(ctx context.Context) error {
	all, err := b.contenders(echoRows())
	if err != nil {
		return err
	}
	for _, c := range all {
		if err := warm(ctx, c.server, c.fleet); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	cost := make([][]float64, len(all)) // ms of the server's processor time per session
	took := make([][]float64, len(all)) // ms of wall time per session
	for round := range b.rounds {
		for i := range all {
			k := (i + round) % len(all)
			progress("rate: %d sessions with %s", b.rateSessions, all[k].name)
			used, wall, err := b.rateOne(ctx, all[k])
			if err != nil {
				return fmt.Errorf("%s: %w", all[k].name, err)
			}
			cost[k] = append(cost[k], used.Seconds()*1000/float64(b.rateSessions))
			took[k] = append(took[k], wall.Seconds()*1000/float64(b.rateSessions))
		}
	}
	var table []string
	var slowest, dearest float64
	for i, c := range all {
		m := stats.SpreadOf(cost[i])
		table = append(table, fmt.Sprintf("%s\t%.0f\t%.2f\t%.2f\t%.2f\t", c.name, 1000/stats.SpreadOf(took[i]).Median, m.Min, m.Median, m.Max))
		if !c.usher() {
			slowest, dearest = max(slowest, stats.MedianRatio(took[0], took[i])), max(dearest, stats.MedianRatio(cost[0], cost[i]))
		}
	}
	b.out.line("ratio usher/pion sessions-per-second %.2f", 1/slowest)
	b.out.line("ratio usher/pion cpu-per-session %.2f", dearest)
	return b.out.table(fmt.Sprintf("Sessions that come, connect and go (%d a round)", b.rateSessions),
		"server\tsessions/s\tms of processor per session: min\tmedian\tmax\t", table)
}

func (b *bench) rateOne(ctx context.Context, c contender) (used, wall time.Duration, err error) {
	before, err := c.server.CPU()
	if err != nil {
		return 0, 0, err
	}
	begin := time.Now()
	if _, err := tell(ctx, c.fleet, callers.Command{Cycle: &callers.Cycle{N: b.rateSessions, AtOnce: atOnce}}); err != nil {
		return 0, 0, err
	}
	wall = time.Since(begin)
	if err := c.server.empty(ctx); err != nil {
		return 0, 0, err
	}
	after, err := c.server.CPU()
	return after - before, wall, err
}

const (
	// halfOpen is how long a session lives in the churn part that gets no further.
	halfOpen = 5 * time.Second
	// churnChunk is what the fleet is told at once, between signs of life.
	churnChunk = 1000
	// churnSlack is what the heap may be larger by in the end: tables that grew
	// for the most sessions that there were at once.
	churnSlack = 2 << 20
)

// churns lets many sessions come and go and looks for what they left.
func (b *bench) churns(ctx context.Context) error {
	r := row{name: "usher", role: hosts.Role{Kind: kindUsher, App: hosts.App{Detach: true}, HalfOpen: halfOpen}}
	server, err := b.server(r, b.cpus, b.cpus)
	if err != nil {
		return err
	}
	fleet, err := b.fleet(server, b.cpus, false)
	if err != nil {
		return err
	}
	cycle := func(n int) error {
		_, err := tell(ctx, fleet, callers.Command{Cycle: &callers.Cycle{N: n, AtOnce: atOnce, HalfOpen: true}})
		return err
	}
	if err := errors.Join(cycle(churnChunk/4), server.empty(ctx)); err != nil {
		return err
	}
	before, err := server.usage(ctx)
	if err != nil {
		return err
	}
	for done := 0; done < b.churn; {
		n := min(churnChunk, b.churn-done)
		if err := cycle(n); err != nil {
			return err
		}
		done += n
		progress("churn: %d of %d sessions", done, b.churn)
	}
	if err := server.empty(ctx); err != nil {
		return err
	}
	if err := wait.For(ctx, settle); err != nil {
		return err
	}
	after, err := server.usage(ctx)
	if err != nil {
		return err
	}
	back := after.Goroutines <= before.Goroutines && after.Descriptors <= before.Descriptors &&
		after.Heap <= before.Heap+churnSlack
	b.out.line("churn sessions %d connected %d", b.churn, after.Connected-before.Connected)
	b.out.line("churn goroutines %d %d", before.Goroutines, after.Goroutines)
	b.out.line("churn descriptors %d %d", before.Descriptors, after.Descriptors)
	b.out.line("churn heap-kbytes %d %d", before.Heap/1024, after.Heap/1024)
	b.out.line("churn back %t", back)
	return nil
}
