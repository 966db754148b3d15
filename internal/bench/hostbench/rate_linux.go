package main

import (
	"context"
	"fmt"
	"time"

	"github.com/usher-rtc/usher/internal/bench/callers"
	"github.com/usher-rtc/usher/internal/bench/stats"
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
