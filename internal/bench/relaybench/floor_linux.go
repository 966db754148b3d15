package main

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/usher-rtc/usher/internal/bench/peers"
	"github.com/usher-rtc/usher/internal/bench/stats"
	"github.com/usher-rtc/usher/internal/bench/table"
)

// The rows of the floor that others are computed from.
const (
	receiveOne  = "receive, one a call"
	receiveMany = "receive, 64 a call"
	sendOne     = "send, one a call"
	sendMany    = "send, 64 a call"
	floorUp     = "up: receive 64, send 8 bundles with one call"
	floorDown   = "down: receive bundles, send 64 a call to 64 clients"
)

// floors are patterns of system calls, from its parts to what a relay needs.
var floors = []peers.Floor{
	{Name: receiveOne, Count: true, OneIn: true},
	{Name: receiveMany, Count: true},
	{Name: sendOne, Amplify: true, OneOut: true},
	{Name: sendMany, Amplify: true},
	{Name: sendMany + ", may be fragmented", Amplify: true, Fragment: true},
	{Name: "send bundles to one place, 64 payloads a call", Amplify: true, Bundle: true},
	{Name: "forward, one a call", OneIn: true, OneOut: true},
	{Name: "forward, 64 a call"},
	{Name: floorUp, Bundle: true},
	{Name: floorDown, Split: true},
}

// floorRows holds microseconds per packet: row, direction if it is a relay, rounds.
type floorRows map[string][]float64

// floor measures what system calls and sockets cost with no relay in between, and
// beside it usher and nginx. usher cannot be cheaper than the floor, whatever its
// code does; nginx' cost divided by the floor is therefore the most that usher's
// packets for the same time can be, times nginx'.
func (b *bench) floor() error {
	clients := slices.Max(b.axes.clients)
	rows := make(floorRows)
	var relays []string
	for _, name := range []string{"usher", "nginx", "nginx-multi"} {
		if b.peer(name) {
			relays = append(relays, name)
		}
	}
	for round := range b.rounds {
		progress("floor, round %d of %d", round+1, b.rounds)
		if err := b.floorRound(round, clients, relays, rows); err != nil {
			return err
		}
	}
	rows.combine()
	fmt.Println("\nthe floor: microseconds of processor per packet of 160 bytes, at saturation, with the same calls and no relay; and relays")
	t := table.New(os.Stdout, "what\tmin\tmedian\tmax\t")
	var names []string
	for _, f := range floors {
		names = append(names, f.Name)
	}
	names = append(names, bothFloor)
	for _, p := range relays {
		for _, d := range []direction{uplink, downlink, both} {
			names = append(names, relayRow(p, d))
		}
	}
	for _, name := range names {
		if s := stats.SpreadOf(rows[name]); s.Median > 0 {
			t.Row("%s\t%.2f\t%.2f\t%.2f\t", name, s.Min, s.Median, s.Max)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, l := range rows.lines() {
		fmt.Println(l)
	}
	return nil
}

func relayRow(peer string, d direction) string { return peer + ", " + string(d) }

// floorRound measures everything once. A peer that does not start leaves its rows
// with one value less, which would pair rounds wrongly, so it ends the part.
func (b *bench) floorRound(round, clients int, relays []string, rows floorRows) error {
	ps, err := b.startPeers(relays)
	defer func() { stopPeers(ps) }()
	if err != nil {
		return err
	}
	if ps = b.establish(ps, clients); len(ps) < len(relays) {
		return errors.New("a relay is missing; -only names those to compare with")
	}
	var fs []peers.Peer
	defer func() { stopPeers(fs) }()
	for _, f := range floors {
		p := peers.NewFloor(f)
		if err := p.Start(b.env); err != nil {
			return err
		}
		fs = append(fs, p)
		if err := errors.Join(p.Establish(0), p.Process().Freeze()); err != nil {
			return err
		}
	}
	type job struct {
		peer peers.Peer
		dir  direction
		row  string
		fill int
	}
	// Whole batches, or the last one would count for less than it costs.
	fill := b.fill / peers.FloorBatch * peers.FloorBatch
	var jobs []job
	for i, p := range fs {
		j := job{p, uplink, p.Name(), fill}
		if floors[i].Split {
			j.dir = downlink
		}
		if floors[i].Amplify {
			j.fill /= peers.FloorBatch
		}
		jobs = append(jobs, j)
	}
	for _, p := range ps {
		for _, d := range []direction{uplink, downlink, both} {
			jobs = append(jobs, job{p, d, relayRow(p.Name(), d), fill})
		}
	}
	for k := range jobs {
		if b.stopped.Load() {
			return errStopped
		}
		j := jobs[(k+round*len(jobs)/b.rounds)%len(jobs)] // another one first in each round
		t := newTraffic(b.env, j.peer, cell{clients: clients, sizes: fixed, dir: j.dir})
		err := awake(j.peer, func() error {
			s, err := t.drain(j.fill, b.fills)
			if err == nil {
				rows[j.row] = append(rows[j.row], s.cpu.Seconds()*1e6/float64(s.received))
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", j.row, err)
		}
	}
	return nil
}

const bothFloor = "both: the mean of up and down"

// combine adds the row of both directions: of its packets, half go each way.
func (r floorRows) combine() {
	for i := range min(len(r[floorUp]), len(r[floorDown])) {
		r[bothFloor] = append(r[bothFloor], (r[floorUp][i]+r[floorDown][i])/2)
	}
}

// floorOf is the floor of a direction.
func floorOf(d direction) string {
	switch d {
	case uplink:
		return floorUp
	case downlink:
		return floorDown
	}
	return bothFloor
}

// lines are the answers: medians of what is divided or subtracted in a round.
func (r floorRows) lines() []string {
	var out []string
	less := func(name, one, many string) {
		var v []float64
		for i := range min(len(r[one]), len(r[many])) {
			v = append(v, r[one][i]-r[many][i])
		}
		if len(v) > 0 {
			out = append(out, fmt.Sprintf("floor batch-saves %s us %.2f", name, stats.SpreadOf(v).Median))
		}
	}
	// The calls, less what the kernel spends on a batch's headers: below zero where
	// calls are cheap.
	less("receive", receiveOne, receiveMany)
	less("send", sendOne, sendMany)
	for _, d := range []direction{uplink, downlink, both} {
		if share := stats.MedianRatio(r[floorOf(d)], r[relayRow("usher", d)]); share > 0 {
			out = append(out, fmt.Sprintf("floor share-of-usher %s %.2f", d, share))
		}
		if limit := r.limit(d); limit > 0 {
			out = append(out, fmt.Sprintf("floor limit-over-nginx %s %.2f", d, limit))
		}
	}
	return out
}

// limit is how many times the packets of nginx, in its better setting, a relay
// without any cost of its own could forward.
func (r floorRows) limit(d direction) float64 {
	limit := 0.0
	for _, p := range []string{"nginx", "nginx-multi"} {
		m := stats.MedianRatio(r[relayRow(p, d)], r[floorOf(d)])
		if limit == 0 || m > 0 && m < limit {
			limit = m
		}
	}
	return limit
}
