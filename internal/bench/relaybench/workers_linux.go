package main

import (
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/usher-rtc/usher/internal/bench/peers"
	"github.com/usher-rtc/usher/internal/bench/stats"
	"github.com/usher-rtc/usher/internal/bench/table"
)

// workers compares usher's relay with one worker on one processor and with
// two workers on two. Both are drained from full queues while the harness
// sleeps, so the second worker has the second processor to itself.
func (b *bench) workers() error {
	if !b.peer("usher") {
		return nil
	}
	clients := slices.Max(b.axes.clients)
	type row struct{ cpu, wall []float64 }
	rows := make(map[string]*row)
	var order []string
	for _, s := range append(slices.Clone(b.env.Upstreams), b.env.Clients) {
		if err := s.Stamps(true); err != nil {
			return err
		}
		defer func() { _ = s.Stamps(false) }()
	}
	one := *b.env
	two := one
	two.CPUs, two.Workers = fmt.Sprintf("%d,%d", b.genCPU, b.relayCPU), 2
	for round := range b.rounds {
		progress("workers, round %d of %d", round+1, b.rounds)
		for _, env := range []*peers.Env{&one, &two} {
			if b.stopped.Load() {
				return errStopped
			}
			p := peers.NewUsher("usher", 0)
			if err := p.Start(env); err != nil {
				return err
			}
			err := p.Establish(clients)
			for _, d := range b.axes.dirs {
				if err != nil {
					break
				}
				var s sample
				s, err = newTraffic(env, p, cell{clients: clients, sizes: fixed, dir: d}).drain(b.fill, b.fills)
				if err != nil {
					break
				}
				key := fmt.Sprintf("%d\t%s", env.Workers, d)
				if rows[key] == nil {
					rows[key] = &row{}
					order = append(order, key)
				}
				rows[key].cpu = append(rows[key].cpu, float64(s.cpu)/float64(s.received)/1000)
				rows[key].wall = append(rows[key].wall, float64(s.received)/1000*float64(time.Second)/float64(s.wall))
			}
			_ = p.Stop() // ended by a signal, which is what Wait reports
			if err != nil {
				return err
			}
		}
	}
	fmt.Println("\nusher with one and two workers, 160 bytes: microseconds of processor per packet, thousand packets per second of wall time")
	t := table.New(os.Stdout, "workers\tdirection\tus min\tmedian\tmax\tk/s min\tmedian\tmax\t")
	for _, key := range order {
		u, k := stats.SpreadOf(rows[key].cpu), stats.SpreadOf(rows[key].wall)
		t.Row("%s\t%.2f\t%.2f\t%.2f\t%.0f\t%.0f\t%.0f\t", key, u.Min, u.Median, u.Max, k.Min, k.Median, k.Max)
	}
	return t.Flush()
}
