package main

import (
	"fmt"
	"strconv"
	"strings"
)

// direction says who sends.
type direction string

const (
	uplink   direction = "uplink"
	downlink direction = "downlink"
	both     direction = "both"
)

// sizes says how large the payloads are.
type sizes string

const (
	// fixed: 160 bytes, a 20 ms Opus frame of a fair bit rate with SRTP.
	fixed sizes = "160"
	// opus: 60 to 200 bytes, another size each packet.
	opus sizes = "opus"
	// burst: video frames, eight packets of 1,200 bytes to one client in a row.
	burst sizes = "burst"
)

const (
	burstLen  = 8
	burstSize = 1200
)

// group returns how many packets of one client leave together.
func (s sizes) group() int {
	if s == burst {
		return burstLen
	}
	return 1
}

// size returns the payload size of packet number i.
func (s sizes) size(i uint32) int {
	switch s {
	case burst:
		return burstSize
	case opus:
		// A multiplicative hash: the same sequence for every peer, no two neighbours alike.
		return 60 + int((i*2654435761)>>16)%141
	default:
		return 160
	}
}

// cell is one load.
type cell struct {
	clients int
	sizes   sizes
	dir     direction
	rate    int // packets a second, both directions together; 0: full
}

func (c cell) String() string {
	rate := "full"
	if c.rate > 0 {
		rate = strconv.Itoa(c.rate/1000) + "k/s"
	}
	return fmt.Sprintf("%d clients, %s, %s, %s", c.clients, c.sizes, c.dir, rate)
}

// axes are the values that the cells combine.
type axes struct {
	clients []int
	sizes   []sizes
	dirs    []direction
	rates   []int
}

// parseAxes reads the flags.
func parseAxes(clients, sz, dirs, rates string) (axes, error) {
	var a axes
	for f := range strings.SplitSeq(clients, ",") {
		n, err := strconv.Atoi(f)
		if err != nil || n < 1 || n > 10000 {
			return a, fmt.Errorf("-clients: want 1 to 10000, got %q", f)
		}
		a.clients = append(a.clients, n)
	}
	for f := range strings.SplitSeq(sz, ",") {
		switch s := sizes(f); s {
		case fixed, opus, burst:
			a.sizes = append(a.sizes, s)
		default:
			return a, fmt.Errorf("-sizes: want 160, opus or burst, got %q", f)
		}
	}
	for f := range strings.SplitSeq(dirs, ",") {
		switch d := direction(f); d {
		case uplink, downlink, both:
			a.dirs = append(a.dirs, d)
		default:
			return a, fmt.Errorf("-dirs: want uplink, downlink or both, got %q", f)
		}
	}
	for f := range strings.SplitSeq(rates, ",") {
		if f == "full" {
			a.rates = append(a.rates, 0)
			continue
		}
		n, err := strconv.Atoi(f)
		if err != nil || n < 100 || n > 1_000_000 {
			return a, fmt.Errorf("-rates: want 100 to 1000000 or full, got %q", f)
		}
		a.rates = append(a.rates, n)
	}
	return a, nil
}

// cells returns the combinations, fewer clients first. Without all, only the
// main load (the largest number of clients, the first of the sizes) meets
// every rate; the others meet the ends of the list: 50,000 a second and full.
func (a axes) cells(all bool) []cell {
	var out []cell
	most := a.clients[0]
	for _, n := range a.clients {
		most = max(most, n)
	}
	for _, n := range a.clients {
		for _, s := range a.sizes {
			for _, r := range a.rates {
				if !all && (n != most || s != a.sizes[0]) && r != 0 && r != 50_000 {
					continue
				}
				for _, d := range a.dirs {
					out = append(out, cell{clients: n, sizes: s, dir: d, rate: r})
				}
			}
		}
	}
	return out
}
