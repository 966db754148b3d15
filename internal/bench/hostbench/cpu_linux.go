package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/usher-rtc/usher/internal/bench/callers"
	"github.com/usher-rtc/usher/internal/bench/hosts"
	"github.com/usher-rtc/usher/internal/bench/stats"
)

// perCaller is audio in packets of 20 ms.
const perCaller = 50

// contender is a server with its fleet.
type contender struct {
	row
	server, fleet *process
}

// contenders starts rows, each on the processor of its own that is measured.
func (b *bench) contenders(rows []row) ([]contender, error) {
	var all []contender
	host, other := fmt.Sprint(b.hostCPU), fmt.Sprint(b.clientCPU)
	for _, r := range rows {
		server, err := b.server(r, host, other)
		if err != nil {
			return nil, err
		}
		fleet, err := b.fleet(server, other, r.role.MuxOnly)
		if err != nil {
			return nil, err
		}
		all = append(all, contender{r, server, fleet})
	}
	return all, nil
}

// cpu measures the whole server, and then the muxes alone.
func (b *bench) cpu(ctx context.Context) error {
	if err := b.cpuOf(ctx, "whole process", "host", echoRows(), perCaller); err != nil {
		return err
	}
	if err := b.stopAll(); err != nil {
		return err
	}
	return b.cpuOf(ctx, "mux alone, without SRTP", "mux", muxRows(), b.muxRate)
}

// muxRows are the servers whose muxes are measured alone.
func muxRows() []row {
	lean := hosts.App{Detach: true}
	return []row{
		{name: "usher mux", role: hosts.Role{Kind: kindUsher, App: lean, MuxOnly: true}},
		{name: "pion mux", role: hosts.Role{
			Kind: kindStock, App: lean, MuxOnly: true,
			Stock: hosts.StockConfig{Lite: true, Passive: true, Lean: true},
		}},
	}
}

// sample is one round of one server.
type sample struct {
	micros float64 // of processor time per packet
	loss   float64 // share of the packets
	busy   float64 // share of a processor
}

// cpuOf measures rows under perSession packets a second of each session.
func (b *bench) cpuOf(ctx context.Context, title, name string, rows []row, perSession int) error {
	all, err := b.contenders(rows)
	if err != nil {
		return err
	}
	for _, c := range all {
		progress("cpu: %d sessions with %s, %s", b.live, c.name, title)
		if _, err := tell(ctx, c.fleet, callers.Command{Open: b.live, AtOnce: atOnce}); err != nil {
			return err
		}
	}
	samples := make([][]sample, len(all))
	for round := range b.rounds {
		for i := range all {
			k := (i + round) % len(all)
			s, err := b.loadOne(ctx, all[k], perSession)
			if err != nil {
				return fmt.Errorf("%s: %w", all[k].name, err)
			}
			samples[k] = append(samples[k], s)
			progress("cpu: %s, %s: %.2f us per packet, lost %.3f %%", title, all[k].name, s.micros, s.loss*100)
		}
	}
	if b.profiles != "" {
		for _, c := range all {
			if err := b.profileLoad(ctx, c, perSession); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	var table []string
	micros := make([][]float64, len(all))
	for i, c := range all {
		var loss, busy []float64
		for _, s := range samples[i] {
			micros[i] = append(micros[i], s.micros)
			loss, busy = append(loss, s.loss*100), append(busy, s.busy*100)
		}
		m, l := stats.SpreadOf(micros[i]), stats.SpreadOf(loss)
		table = append(table, fmt.Sprintf("%s\t%.2f\t%.2f\t%.2f\t%.3f\t%.3f\t%.0f\t",
			c.name, m.Min, m.Median, m.Max, l.Median, l.Max, stats.SpreadOf(busy).Median))
		if c.usher() {
			b.out.line("lost usher %s %.4f %%", name, l.Max)
		}
	}
	best := 0.0
	for i := range all {
		if all[i].usher() {
			continue
		}
		best = max(best, stats.MedianRatio(micros[0], micros[i]))
	}
	b.out.line("ratio usher/pion cpu-per-packet-%s %.2f", name, best)
	if rows[0].role.MuxOnly {
		b.out.line("ratio usher/pion packets-per-cpu-second-%s %.2f", name, 1/best)
	}
	return b.out.table(fmt.Sprintf("Processor time per packet, %s (%d sessions, %d packets/s each way)", title, b.live, b.live*perSession),
		"server\tus min\tmedian\tmax\tlost % median\tmax\tprocessor %\t", table)
}

// profileLoad saves a server's CPU profile of a round that does not count.
func (b *bench) profileLoad(ctx context.Context, c contender, perSession int) error {
	progress("cpu: profile of %s", c.name)
	saved := make(chan error, 1)
	go func() {
		saved <- b.save(ctx, c.row, c.server, "cpu.pprof", fmt.Sprintf("/debug/pprof/profile?seconds=%d", b.seconds))
	}()
	_, err := b.loadOne(ctx, c, perSession)
	return errors.Join(err, <-saved)
}

// loadOne sends one round's load to one server while the others are idle.
func (b *bench) loadOne(ctx context.Context, c contender, perSession int) (s sample, err error) {
	before, err := c.server.CPU()
	if err != nil {
		return s, err
	}
	d := time.Duration(b.seconds) * time.Second
	l, err := tell(ctx, c.fleet, callers.Command{
		Load: &callers.Rate{PerCaller: float64(perSession), For: d, Raw: c.role.MuxOnly},
	})
	if err != nil {
		return s, err
	}
	after, err := c.server.CPU()
	if err != nil {
		return s, err
	}
	if l.Received == 0 {
		return s, errors.New("nothing came back")
	}
	used := (after - before).Seconds()
	s.micros = used * 1e6 / float64(l.Sent+l.Received)
	s.loss = max(0, 1-float64(l.Received)/float64(l.Sent))
	s.busy = used / l.Seconds
	if s.loss > 0 {
		drops, err := c.server.drops(ctx)
		if err != nil {
			return s, err
		}
		progress("cpu: %s sent %d, %d came back; dropped so far: %s", c.name, l.Sent, l.Received, drops)
	}
	return s, nil
}
