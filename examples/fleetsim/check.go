package main

import (
	"fmt"
	"io"
	"math"

	"github.com/usher-rtc/usher/examples/fleetsim/internal/inputs"
	"github.com/usher-rtc/usher/examples/fleetsim/internal/model"
	"github.com/usher-rtc/usher/examples/fleetsim/internal/sim"
)

// pair is one figure, computed and counted.
type pair struct {
	name            string
	formula, played float64
}

// off is the difference as a share of what was counted.
func (p pair) off() float64 {
	if p.formula == p.played {
		return 0
	}
	return math.Abs(p.formula-p.played) / math.Abs(p.played)
}

// compare plans a single region whose users make that many calls on a day, plays
// the day, and returns both sides of each figure that both have.
func compare(in inputs.Inputs, sessions int, seed uint64) ([]pair, model.Fleet, error) {
	in.WeeklyUsers = float64(sessions) * 7 / in.CallsPerWeek
	in.Regions = 1
	f := model.Plan(in)
	s, err := sim.Run(sim.Config{Inputs: in, Sessions: sessions, Relays: f.Region.Relays, Seed: seed})
	if err != nil {
		return nil, f, err
	}
	r := &f.Region
	one, zone := f.LoseRelays(1), f.LoseZone()
	return []pair{
		{"calls set up a second", r.SetUps, s.SetUps},
		{"calls", r.Calls, s.Calls},
		{"client packets/s", r.Packets, s.Packets},
		{"packets/s at relays", r.RelayPackets, s.RelayPackets},
		{"checks/s", r.Checks, s.Checks},
		{"flows", r.Flows, s.Flows},
		{"Redis writes/s", r.Writes, s.Writes},
		{"Redis writes a flow", r.WritesPerFlow, s.WritesPerFlow},
		{"Redis entries", r.Entries, s.Entries},
		{"a relay lost: calls led elsewhere", one.Flows, s.Relay.Flows},
		{"a relay lost: look-ups", one.LookUps, s.Relay.LookUps},
		{"a relay lost: mean gap, s", one.Mean, s.Relay.Mean},
		{"a relay lost: mean gap without Redis, s", one.BareMean, s.Relay.BareMean},
		{"a zone lost: calls led elsewhere", zone.Flows, s.Zone.Flows},
		{"a zone lost: look-ups", zone.LookUps, s.Zone.LookUps},
		{"a zone lost: mean gap, s", zone.Mean, s.Zone.Mean},
		{"a zone lost: mean gap without Redis, s", zone.BareMean, s.Zone.BareMean},
		{"a zone lost: calls ended", zone.Ended, s.Zone.Ended},
		{"a zone lost: calls made again a second", zone.SetUps - r.SetUps, s.Zone.RedialSetUp},
	}, f, nil
}

func printCheck(w io.Writer, o *options) error {
	pairs, f, err := compare(o.in, o.sessions, o.seed)
	if err != nil {
		return err
	}
	var t table
	t.head("in the hour of the peak", "formula", "simulation", "difference")
	worst := 0.0
	for _, p := range pairs {
		t.row(p.name, amount(p.formula), amount(p.played), fmt.Sprintf("%.1f %%", 100*p.off()))
		worst = max(worst, p.off())
	}
	title := fmt.Sprintf("One region, %s calls in a day, %s relays", commas(fmt.Sprint(o.sessions)), number(float64(f.Region.Relays)))
	if err := t.print(w, title, true); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "\ngreatest difference %.1f %%\n", 100*worst)
	return err
}
