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

const (
	// commonRate is the rate at which all peers are compared as well.
	commonRate = 20_000
	// generatorLimit is about what the harness sends and receives on one
	// processor without falling behind.
	generatorLimit = 120_000
)

// latencyRow is a row of the table; each value is the spread over rounds, in microseconds.
type latencyRow struct {
	peer           string
	load           string
	rate           []float64
	p50, p99, p999 []float64
	loss           []float64
}

// latency measures one hop, client to upstream: from before the send call of
// the generator to the kernel's receive stamp at the upstream.
func (b *bench) latency() error {
	var rows []*latencyRow
	row := func(peer, load string) *latencyRow {
		for _, r := range rows {
			if r.peer == peer && r.load == load {
				return r
			}
		}
		r := &latencyRow{peer: peer, load: load}
		rows = append(rows, r)
		return r
	}
	for _, s := range b.env.Upstreams {
		if err := s.Stamps(true); err != nil {
			return err
		}
		defer func() { _ = s.Stamps(false) }()
	}
	clients := slices.Max(b.axes.clients)
	c := cell{clients: clients, sizes: fixed, dir: uplink}
	for round := range b.rounds {
		progress("latency, round %d of %d", round+1, b.rounds)
		ps, err := b.startPeers(b.processPeers())
		if err == nil {
			ps = b.establish(ps, clients)
			err = b.latencyRound(round, c, ps, row)
		}
		stopPeers(ps)
		if err != nil {
			return err
		}
	}
	fmt.Println("\none-hop latency, uplink, 160 bytes, microseconds (median over rounds); half: half of the peer's own capacity")
	t := table.New(os.Stdout, "peer\tload\tpackets/s\tp50\tp99\tp99.9\tp50 min..max\tloss %\t")
	for _, r := range rows {
		p50 := stats.SpreadOf(r.p50)
		t.Row("%s\t%s\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f..%.0f\t%.2f\t", r.peer, r.load, stats.SpreadOf(r.rate).Median,
			p50.Median, stats.SpreadOf(r.p99).Median, stats.SpreadOf(r.p999).Median, p50.Min, p50.Max, stats.SpreadOf(r.loss).Median)
	}
	return t.Flush()
}

func (b *bench) latencyRound(round int, c cell, ps []peers.Peer, row func(peer, load string) *latencyRow) error {
	direct := peers.NewDirect()
	if err := direct.Start(b.env); err != nil {
		return err
	}
	if err := b.hop(row("direct", "common"), direct, c, commonRate); err != nil {
		return err
	}
	for k := range ps {
		if b.stopped.Load() {
			return errStopped
		}
		p := ps[(k+round)%len(ps)]
		err := awake(p, func() error {
			s, err := newTraffic(b.env, p, c).drain(b.fill, max(2, b.fills/4))
			if err != nil {
				return err
			}
			half := min(int(s.perSecond()/2), generatorLimit)
			if err := b.hop(row(p.Name(), "common"), p, c, commonRate); err != nil {
				return err
			}
			if err := b.hop(row(p.Name(), "half"), p, c, half); err != nil {
				return err
			}
			if p.Name() == "usher" {
				return b.hop(row("direct", "half of usher"), direct, c, half)
			}
			return nil
		})
		if err != nil {
			progress("%s: latency: %v", p.Name(), err)
		}
	}
	return nil
}

// hop offers a rate and adds the latencies to the row.
func (b *bench) hop(r *latencyRow, p peers.Peer, c cell, rate int) error {
	t := newTraffic(b.env, p, c)
	dur := 2 * b.dur
	t.latencies = make([]int64, 0, int(dur/time.Millisecond)*rate/1000+rate)
	s, err := t.paced(rate, b.warm, dur)
	if err != nil {
		return err
	}
	us := func(q float64) float64 { return float64(stats.Quantile(t.latencies, q)) / 1000 }
	r.rate = append(r.rate, s.offered)
	r.p50 = append(r.p50, us(0.5))
	r.p99 = append(r.p99, us(0.99))
	r.p999 = append(r.p999, us(0.999))
	r.loss = append(r.loss, s.loss()*100)
	return nil
}
