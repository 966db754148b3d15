package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/usher-rtc/usher/internal/bench/stats"
	"github.com/usher-rtc/usher/internal/bench/table"
)

// results holds what was measured: cell, peer, round. A round that failed has no entry.
type results struct {
	cells []cell
	peers []string
	by    map[cell]map[string]map[int]figure
}

// figure is what the report needs of a sample.
type figure struct {
	perSecond float64 // packets per processor-second
	loss      float64 // share of the packets
	offered   float64 // packets a second; 0 at saturation
	up, down  float64 // packets per trunk datagram
}

func (r *results) add(c cell, peer string, round int, f figure) {
	if r.by == nil {
		r.by = make(map[cell]map[string]map[int]figure)
	}
	if r.by[c] == nil {
		r.by[c] = make(map[string]map[int]figure)
		r.cells = append(r.cells, c)
	}
	if r.by[c][peer] == nil {
		r.by[c][peer] = make(map[int]figure)
	}
	if !slices.Contains(r.peers, peer) {
		r.peers = append(r.peers, peer)
	}
	r.by[c][peer][round] = f
}

// values returns one number of each round.
func values(m map[int]figure, get func(figure) float64) []float64 {
	var out []float64
	for _, f := range m {
		out = append(out, get(f))
	}
	return out
}

// table prints a row for each cell and peer.
func (r *results) table(w io.Writer) error {
	t := table.New(w, "clients\tsize\tdirection\trate\tpeer\trounds\tmin\tmedian\tmax\tus/packet\tloss %\tbundle up\tbundle down\t")
	for _, c := range r.cells {
		rate := "full"
		if c.rate > 0 {
			rate = fmt.Sprint(c.rate)
		}
		for _, p := range r.peers {
			m := r.by[c][p]
			if len(m) == 0 {
				continue
			}
			k := stats.SpreadOf(values(m, func(f figure) float64 { return f.perSecond / 1000 }))
			loss := stats.SpreadOf(values(m, func(f figure) float64 { return f.loss * 100 }))
			up := stats.SpreadOf(values(m, func(f figure) float64 { return f.up }))
			down := stats.SpreadOf(values(m, func(f figure) float64 { return f.down }))
			us := 0.0
			if k.Median > 0 {
				us = 1000 / k.Median
			}
			t.Row("%d\t%s\t%s\t%s\t%s\t%d\t%.0f\t%.0f\t%.0f\t%.2f\t%.1f\t%.1f\t%.1f\t",
				c.clients, c.sizes, c.dir, rate, p, len(m), k.Min, k.Median, k.Max, us, loss.Median, up.Median, down.Median)
		}
	}
	return t.Flush()
}

// families are the names in the ratio lines, with the variants that count for
// each: the better one of a round does.
var families = []struct {
	name  string
	peers []string
}{
	{"nginx", []string{"nginx", "nginx-multi"}},
	{"coturn", []string{"coturn"}},
	{"pion-turn", []string{"pion-turn"}},
	{"naive", []string{"naive"}},
	{"c", []string{"c"}},
	{"nft", []string{"nft"}},
}

// ratio returns usher's packets per processor-second over those of a family,
// of each round that measured both.
func (r *results) ratio(c cell, variants []string) []float64 {
	var out []float64
	for round, mine := range r.by[c]["usher"] {
		best := 0.0
		for _, p := range variants {
			if f, ok := r.by[c][p][round]; ok {
				best = max(best, f.perSecond)
			}
		}
		if best > 0 && mine.perSecond > 0 {
			out = append(out, mine.perSecond/best)
		}
	}
	return out
}

// mainCell returns the cell of a direction that stands for it in the ratio
// lines: 160 bytes, saturation if it was measured, and the most clients.
func (r *results) mainCell(d direction) (cell, bool) {
	var of []cell
	for _, c := range r.cells {
		if c.dir == d {
			of = append(of, c)
		}
	}
	if len(of) == 0 {
		return cell{}, false
	}
	return slices.MaxFunc(of, func(a, b cell) int {
		return cmp.Or(
			compareBool(a.sizes == fixed, b.sizes == fixed),
			compareBool(a.rate == 0, b.rate == 0),
			cmp.Compare(a.rate, b.rate),
			cmp.Compare(a.clients, b.clients))
	}), true
}

// compareBool puts true after false.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// ratios prints "ratio usher/PEER DIRECTION MEDIAN" lines.
func (r *results) ratios(w io.Writer) error {
	for _, f := range families {
		for _, d := range []direction{uplink, downlink, both} {
			c, ok := r.mainCell(d)
			if !ok {
				continue
			}
			if v := r.ratio(c, f.peers); len(v) > 0 {
				if _, err := fmt.Fprintf(w, "ratio usher/%s %s %.2f\n", f.name, d, stats.SpreadOf(v).Median); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
