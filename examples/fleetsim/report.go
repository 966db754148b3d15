package main

import (
	"fmt"
	"io"
	"math"

	"github.com/usher-rtc/usher/examples/fleetsim/internal/inputs"
	"github.com/usher-rtc/usher/examples/fleetsim/internal/model"
)

const (
	giga = 1e9
	gib  = 1 << 30
)

func printPlan(w io.Writer, f model.Fleet) error {
	r, n := &f.Region, float64(f.Regions)
	var t table
	t.head("at the busiest moment", "a region", "all "+number(n))
	both := func(name string, v float64) { t.row(name, amount(v), amount(v*n)) }
	whole := func(name string, v int) { t.row(name, number(float64(v)), number(float64(v)*n)) }
	both("calls", r.Calls)
	both("calls set up a second", r.SetUps)
	both("client packets/s, both ways", r.Packets)
	both("checks/s", r.Checks)
	both("Gbit/s, clients to relays and back", r.ClientBits/giga)
	both("Gbit/s, behind the relays", r.TrunkBits/giga)
	whole("relays", r.Relays)
	both("  cores busy", r.RelayCores)
	both("  flows", r.Flows)
	both("  GiB for flows", r.RelayBytes/gib)
	whole("transceivers", r.Transceivers)
	both("  cores busy", r.TransceiverCores)
	both("  GiB for sessions", r.TransceiverBytes/gib)
	both("  goroutines", r.Calls*f.SessionGoroutines)
	whole("Redis primaries", r.Redises)
	both("  writes/s", r.Writes)
	both("  cores busy", r.RedisCores)
	both("  entries", r.Entries)
	both("  GiB for entries", r.RedisBytes/gib)
	title := fmt.Sprintf("%s weekly users, %s calls a week of %s s, peak %s times the mean",
		amount(f.WeeklyUsers), number(f.CallsPerWeek), number(f.CallSeconds), number(f.PeakFactor))
	if err := t.print(w, title, true); err != nil {
		return err
	}
	relays, hosts := float64(r.Relays), float64(r.Transceivers)
	_, err := fmt.Fprintf(w, `
One relay: %s packets/s, %s of what %s cores can do; %s flows; %s Gbit/s towards clients.
One transceiver: %s calls.
One flow: %s writes to Redis over its life.
`,
		amount(r.RelayPackets/relays), percent(r.RelayPackets/relays/(f.RelayPacketsFull*f.RelayCores)), number(f.RelayCores),
		amount(r.Flows/relays), amount(r.ClientBits/relays/giga),
		amount(r.Calls/hosts), amount(r.WritesPerFlow))
	return err
}

func printLoss(w io.Writer, f model.Fleet) error {
	one, zone, redis := f.LoseRelays(1), f.LoseZone(), f.LoseRedis()
	var t table
	t.head("lost in one region, at the busiest moment", "a relay", "a zone")
	both := func(name string, of func(o *model.Outage) string) { t.row(name, of(&one), of(&zone.Outage)) }
	both("relays lost", func(o *model.Outage) string { return number(float64(o.Lost)) })
	both("calls led to another relay", func(o *model.Outage) string { return amount(o.Flows) })
	both("  to each of those left", func(o *model.Outage) string { return amount(o.Each) })
	both("load of those left", func(o *model.Outage) string { return percent(o.Load) })
	both("look-ups", func(o *model.Outage) string { return amount(o.LookUps) })
	both("calls that a check brings back first", func(o *model.Outage) string { return percent(o.ByCheck) })
	both("mean gap", func(o *model.Outage) string { return seconds(o.Mean) })
	both("longest gap", func(o *model.Outage) string { return seconds(o.Last) })
	both("mean gap without Redis", func(o *model.Outage) string { return seconds(o.BareMean) })
	both("longest gap without Redis", func(o *model.Outage) string { return seconds(o.BareLast) })
	both("checks/s at all relays, before and after", func(o *model.Outage) string { return amount(o.Checks) })
	both("look-ups/s a relay must be allowed", func(o *model.Outage) string { return amount(math.Ceil(o.Enough)) })
	t.row("calls ended", "0", amount(zone.Ended))
	t.row("calls set up a second while users call again", amount(f.Region.SetUps), amount(zone.SetUps))
	t.row("load of the transceivers left, afterwards", "", percent(zone.HostLoad))
	if err := t.print(w, "Losses; gaps count from when the balancer leads clients elsewhere", true); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, `
A relay that starts again at its address: its outage, and its Hosts announce %s flows.
Redis lost: no call notices; %s entries are gone. When it is back, empty: %s writes/s for %s s.
A relay lost meanwhile: the gaps without Redis.
`, amount(one.Flows), amount(redis.Entries), amount(redis.Refill), number(f.StoreRefill))
	return err
}

func printGrowth(w io.Writer, in inputs.Inputs) error {
	var t table
	t.head("weekly users", "calls", "relays", "transceivers", "Redis writes/s", "Gbit/s",
		"cores busy", "cores there", "busy a million users", "there a million users")
	for users := 1e4; users < 2e9; users *= 10 {
		in.WeeklyUsers = users
		f := model.Plan(in)
		r, n := &f.Region, float64(f.Regions)
		busy := n * (r.RelayCores + r.TransceiverCores + r.RedisCores)
		there := n * (float64(r.Relays)*in.RelayCores + float64(r.Transceivers)*in.TransceiverCores + float64(r.Redises))
		t.row(commas(fmt.Sprintf("%.0f", users)), amount(n*r.Calls), amount(n*float64(r.Relays)), amount(n*float64(r.Transceivers)),
			amount(n*r.Writes), amount(n*r.ClientBits/giga),
			amount(busy), amount(there), amount(busy/users*1e6), amount(there/users*1e6))
	}
	return t.print(w, fmt.Sprintf("Growth, with %s regions of %s zones", number(in.Regions), number(in.Zones)), true)
}
