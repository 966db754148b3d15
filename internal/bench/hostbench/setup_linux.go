package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/usher-rtc/usher/internal/bench/callers"
	"github.com/usher-rtc/usher/internal/bench/hosts"
	"github.com/usher-rtc/usher/internal/bench/stats"
	"github.com/usher-rtc/usher/internal/bench/wait"
)

// roundTrips are the delays of the link, both ways together.
var roundTrips = []time.Duration{0, 50 * time.Millisecond}

const (
	// tooLong is where a set-up has lost a packet or waited for a timer.
	tooLong = 400.0 // ms
	// runLimit bounds one call of the setup part.
	runLimit = 10 * time.Second
)

// Clients with trials of Chromium's.
const (
	clientSnap       = "chromium-snap"
	clientDTLSInSTUN = "chromium-dtls-in-stun"
)

func setupRows() []row {
	app := hosts.App{Speak: true}
	stock := func(name string, c hosts.StockConfig) row {
		return row{name: name, role: hosts.Role{Kind: kindStock, App: app, Stock: c}}
	}
	withSnap := stock("pion full, passive, SNAP", hosts.StockConfig{Passive: true})
	withSnap.role.Snap, withSnap.apart = true, true
	return []row{
		{name: "usher", role: hosts.Role{Kind: kindUsher, App: app, Snap: true}},
		stock("pion full, DTLS client", hosts.StockConfig{}),
		stock("pion full, passive", hosts.StockConfig{Passive: true}),
		stock("pion lite, passive", hosts.StockConfig{Passive: true, Lite: true}),
		withSnap,
	}
}

// setupClient is a kind of client.
type setupClient interface {
	name() string
	// call makes one call to a place and returns the times in milliseconds.
	call(ctx context.Context, s *site, p place) (times, error)
	close()
}

// times are milliseconds from applying the answer.
type times struct {
	Connected float64 `json:"connected"`
	Open      float64 `json:"open"`
	Audio     float64 `json:"audio"`
	Problem   string  `json:"problem"`
}

// setupCell is one row of the table.
type setupCell struct {
	client string
	rtt    time.Duration
	row    row
	times  []times
	failed int
}

func (c *setupCell) values(f func(times) float64) []float64 {
	v := make([]float64, 0, len(c.times))
	for _, t := range c.times {
		v = append(v, f(t))
	}
	return v
}

// long counts calls that took too long to connect or failed.
func (c *setupCell) long() int {
	n := c.failed
	for _, t := range c.times {
		if t.Connected > tooLong {
			n++
		}
	}
	return n
}

var figures = []struct {
	name string
	of   func(times) float64
}{
	{"setup", func(t times) float64 { return t.Connected }},
	{"open", func(t times) float64 { return t.Open }},
	{"audio", func(t times) float64 { return t.Audio }},
}

func (b *bench) setup(ctx context.Context) error {
	rows := setupRows()
	var servers []*process
	for _, r := range rows {
		p, err := b.server(r, b.cpus, b.cpus)
		if err != nil {
			return err
		}
		servers = append(servers, p)
	}
	s, err := newSite(ctx, servers)
	if err != nil {
		return err
	}
	defer s.close()
	clients, err := b.setupClients(ctx, s)
	defer func() {
		for _, c := range clients {
			c.close()
		}
	}()
	if err != nil {
		return err
	}
	cells := setupCells(clients, rows)
	// Round -1 warms browsers and servers up and is not counted.
	for round := -1; round < b.n; round++ {
		for i := range cells {
			// Another order each round, with the same neighbours for nobody.
			c := &cells[(i+max(round, 0)*7)%len(cells)]
			if round < 0 && c.rtt > 0 {
				continue
			}
			if err := b.setupOne(ctx, s, c, clients, rows, round >= 0); err != nil {
				return err
			}
		}
		progress("setup: round %d of %d", round+1, b.n)
	}
	if err := s.lost(); err != nil {
		return fmt.Errorf("the delay link lost packets: %w", err)
	}
	return b.setupReport(cells)
}

func setupCells(clients []setupClient, rows []row) []setupCell {
	var cells []setupCell
	for _, rtt := range roundTrips {
		for _, c := range clients {
			for _, r := range rows {
				if r.apart && c.name() != clientSnap {
					continue
				}
				cells = append(cells, setupCell{client: c.name(), rtt: rtt, row: r})
			}
		}
	}
	return cells
}

func (b *bench) setupOne(ctx context.Context, s *site, c *setupCell, clients []setupClient, rows []row, count bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	client := clients[slices.IndexFunc(clients, func(k setupClient) bool { return k.name() == c.client })]
	server := slices.IndexFunc(rows, func(r row) bool { return r.name == c.row.name })
	run, cancel := context.WithTimeout(ctx, runLimit+5*time.Second)
	defer cancel()
	t, err := client.call(run, s, place{server, c.rtt})
	if err == nil && t.Problem != "" {
		err = fmt.Errorf("%s", t.Problem)
	}
	switch {
	case err != nil:
		progress("setup: %s, RTT %v, %s: %v", c.client, c.rtt, c.row.name, err)
		c.failed++
		return ctx.Err()
	case count:
		c.times = append(c.times, t)
	}
	// The end of one call is not to meet the beginning of the next.
	return wait.For(ctx, 100*time.Millisecond)
}

// pionClient is a Pion client, a full agent.
type pionClient struct{ engine *callers.Engine }

func (pionClient) name() string { return "pion" }
func (pionClient) close()       {}

func (p pionClient) call(ctx context.Context, s *site, at place) (t times, err error) {
	c, err := p.engine.New(callers.Options{})
	if err != nil {
		return t, err
	}
	defer c.Close()
	offer, err := c.Offer()
	if err != nil {
		return t, err
	}
	id, answer, err := s.call(ctx, at, offer)
	if err != nil {
		return t, err
	}
	defer func() {
		c.Close() // before the link goes
		if e := s.hangup(ctx, id); err == nil {
			err = e
		}
	}()
	if err := c.Answer(answer); err != nil {
		return t, err
	}
	limit, cancel := context.WithTimeout(ctx, runLimit)
	defer cancel()
	got, err := c.Wait(limit, false)
	ms := func(d time.Duration) float64 { return d.Seconds() * 1000 }
	return times{Connected: ms(got.Connected), Open: ms(got.Open), Audio: ms(got.Audio)}, err
}

func (b *bench) setupReport(cells []setupCell) error {
	var table []string
	slices.SortStableFunc(cells, func(x, y setupCell) int { return strings.Compare(x.client, y.client) })
	var long, calls int
	for i := range cells {
		c := &cells[i]
		line := fmt.Sprintf("%s\t%d\t%s\t%d\t", c.client, c.rtt.Milliseconds(), c.row.name, len(c.times))
		for _, f := range figures {
			s := stats.SpreadOf(c.values(f.of))
			line += fmt.Sprintf("%.0f\t%.0f\t%.0f\t", s.Min, s.Median, s.Max)
		}
		table = append(table, line+fmt.Sprintf("%d\t%d\t", c.long(), c.failed))
		if c.row.usher() {
			long, calls = long+c.long(), calls+len(c.times)+c.failed
		}
	}
	for i := range cells {
		if cells[i].row.usher() {
			b.setupLines(cells, &cells[i])
		}
	}
	b.out.line("setup usher over-%.0f-ms %d of %d", tooLong, long, calls)
	return b.out.table("Milliseconds from applying the answer: connected, data channel open, first audio packet",
		"client\tRTT\tserver\tn\tconnected min\tmedian\tmax\topen min\tmedian\tmax\taudio min\tmedian\tmax\tover 400 ms\tfailed\t", table)
}

// setupLines writes what usher's row of a client and round-trip time comes to.
func (b *bench) setupLines(cells []setupCell, usher *setupCell) {
	name := fmt.Sprintf("%s-rtt%d", usher.client, usher.rtt.Milliseconds())
	if len(usher.times) == 0 {
		b.out.line("setup usher %s failed", name)
		return
	}
	for _, f := range figures {
		mine := stats.SpreadOf(usher.values(f.of)).Median
		b.out.line("%s usher %s ms %.1f", f.name, name, mine)
		best := -1.0
		for i := range cells {
			c := &cells[i]
			if c.client != usher.client || c.rtt != usher.rtt || c.row.usher() || c.row.apart || len(c.times) == 0 {
				continue
			}
			if v := stats.SpreadOf(c.values(f.of)).Median; best < 0 || v < best {
				best = v
			}
		}
		if best > 0 {
			b.out.line("ratio usher/pion %s-%s %.2f", f.name, name, mine/best)
			b.out.line("difference usher-pion %s-%s ms %.1f", f.name, name, mine-best)
		}
		// Nothing is to get slower by a trial of the browser's.
		if usher.client != clientDTLSInSTUN && usher.client != clientSnap {
			continue
		}
		for i := range cells {
			if c := &cells[i]; c.client == "chromium" && c.rtt == usher.rtt && c.row.usher() && len(c.times) > 0 {
				b.out.line("ratio trial/plain %s-%s %.2f", f.name, name, mine/stats.SpreadOf(c.values(f.of)).Median)
			}
		}
	}
}
