package main

import (
	"fmt"
	"os"
	"slices"

	"github.com/usher-rtc/usher/internal/bench/peers"
	"github.com/usher-rtc/usher/internal/bench/stats"
	"github.com/usher-rtc/usher/internal/bench/table"
)

const (
	lossFreeFrom = 40_000
	lossFreeStep = 1.25
	// lossFreeMax ends the search; the generator falls behind before it.
	lossFreeMax = 1_000_000
	// behind is the share of the rate below which the generator has fallen behind.
	behind = 0.97
)

// lossFree finds the highest rate, in steps of 25 %, at which all packets of a
// cell's length arrive, uplink.
func (b *bench) lossFree() error {
	clients := slices.Max(b.axes.clients)
	c := cell{clients: clients, sizes: fixed, dir: uplink}
	rates := make(map[string][]float64)
	capped := make(map[string]bool)
	var order []string
	for round := range b.rounds {
		progress("loss-free rate, round %d of %d", round+1, b.rounds)
		ps, err := b.startPeers(b.processPeers())
		if err != nil {
			stopPeers(ps)
			return err
		}
		ps = b.establish(ps, clients)
		for k := range ps {
			if b.stopped.Load() {
				stopPeers(ps)
				return errStopped
			}
			p := ps[(k+round)%len(ps)]
			err := awake(p, func() error {
				rate, end := b.searchLossFree(p, c)
				if !slices.Contains(order, p.Name()) {
					order = append(order, p.Name())
				}
				rates[p.Name()] = append(rates[p.Name()], rate)
				capped[p.Name()] = capped[p.Name()] || end
				return nil
			})
			if err != nil {
				progress("%s: loss-free rate: %v", p.Name(), err)
			}
		}
		stopPeers(ps)
	}
	fmt.Println("\nloss-free rate, uplink, 160 bytes, thousand packets/s; >=: the generator was the limit in at least one round")
	t := table.New(os.Stdout, "peer\tmin\tmedian\tmax\t\t")
	for _, name := range order {
		s := stats.SpreadOf(rates[name])
		note := ""
		if capped[name] {
			note = ">="
		}
		t.Row("%s\t%.0f\t%.0f\t%.0f\t%s\t", name, s.Min/1000, s.Median/1000, s.Max/1000, note)
	}
	return t.Flush()
}

// searchLossFree returns the highest rate without loss, and whether the
// generator was the limit. A rate gets a second chance: the machine may hiccup.
func (b *bench) searchLossFree(p peers.Peer, c cell) (rate float64, limited bool) {
	for r := float64(lossFreeFrom); r < lossFreeMax && !b.stopped.Load(); r *= lossFreeStep {
		reached := false
		limited = false
		for range 2 {
			s, err := newTraffic(b.env, p, c).paced(int(r), b.warm, b.dur)
			if err != nil {
				return rate, false
			}
			if s.received < s.sent {
				continue
			}
			if s.offered >= behind*r {
				reached = true
				break
			}
			limited = true
			rate = max(rate, s.offered)
		}
		if !reached {
			return rate, limited
		}
		rate = r
	}
	return rate, false
}
