package sim

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/usher-rtc/usher/examples/fleetsim/internal/inputs"
	"github.com/usher-rtc/usher/internal/config"
)

const (
	day = 24 * 3600.0
	// peakAt is the middle of the hour that is measured; by then the day is old
	// enough for everything that lasts to be there.
	peakAt = 14 * 3600.0
	from   = peakAt - 1800
	until  = peakAt + 1800
	// drills is at how many moments of that hour relays and zones are lost.
	drills = 12
)

// Config is what to play.
type Config struct {
	Inputs inputs.Inputs
	// Sessions is the number of calls of the day, 1 to 1e8.
	Sessions int
	// Relays is how many relays the region has, spread evenly over its zones.
	Relays int
	// Seed makes a run repeatable.
	Seed uint64
}

// Result is what was counted in the hour of the peak: means over it, and a second
// where it says so.
type Result struct {
	Sessions int

	SetUps, Calls, Flows, Entries float64
	Packets, RelayPackets, Checks float64
	Writes, WritesPerFlow         float64

	// The drills: what calls waited for on average, in seconds, with Redis and
	// without, how many look-ups were made, and how many calls ended.
	Relay, Zone Drill
}

// Drill is the mean over all losses of one kind.
type Drill struct {
	Flows, LookUps     float64
	Mean, BareMean     float64
	Ended, RedialSetUp float64
}

type call struct {
	starts, ends float64
	packetPhase  float64 // of its packets, in packet intervals
	checkPhase   float64 // of its checks, in check intervals
	wrote        float64
	place        int32 // in the list of live calls
	relay        int32
	zone         int16 // of its transceiver
	far          bool
}

type run struct {
	Config
	rng     *rand.Rand
	queue   queue
	calls   []call
	live    []int32
	flows   int
	entries int

	at     float64 // up to where the integrals are
	result Result
}

// Run plays the day. The error is a *config.Error.
func Run(cfg Config) (Result, error) {
	switch {
	case cfg.Sessions < 1 || cfg.Sessions > 1e8:
		return Result{}, config.Errorf("Sessions", "%d is not in 1..100000000", cfg.Sessions)
	case cfg.Relays < 2 || cfg.Relays%int(cfg.Inputs.Zones) != 0:
		return Result{}, config.Errorf("Relays", "%d cannot be spread evenly over %g zones", cfg.Relays, cfg.Inputs.Zones)
	}
	r := &run{Config: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 1))}
	r.makeCalls()
	next, drill := 0, 0
	for {
		now := day
		if next < len(r.calls) {
			now = r.calls[next].starts
		}
		begins := now < day
		if len(r.queue) > 0 && r.queue[0].at <= now {
			now, begins = r.queue[0].at, false
		}
		for drill < drills && now >= drillTime(drill) {
			r.loseRelays(drillTime(drill))
			r.loseZones(drillTime(drill))
			drill++
		}
		if now >= until {
			break
		}
		r.advance(now)
		if begins {
			r.begin(int32(next), now)
			next++
		} else {
			r.handle(r.queue.pop())
		}
	}
	r.advance(until)
	for _, id := range r.live {
		r.count(&r.calls[id], until)
	}
	return r.finish(), nil
}

func drillTime(i int) float64 { return from + (float64(i)+0.5)*(until-from)/drills }

// makeCalls draws when calls begin, by rejection from a daily rhythm with one
// peak, and how long they last.
func (r *run) makeCalls() {
	in := &r.Inputs
	sharp := sharpness(in.PeakFactor)
	starts := make([]float64, 0, r.Sessions)
	for len(starts) < r.Sessions {
		at := r.rng.Float64() * day
		if r.rng.Float64() < rhythm(at, sharp) {
			starts = append(starts, at)
		}
	}
	slices.Sort(starts)
	r.calls = make([]call, r.Sessions)
	for i, at := range starts {
		r.calls[i] = call{
			starts: at, ends: at + r.rng.ExpFloat64()*in.CallSeconds,
			packetPhase: r.rng.Float64(), checkPhase: r.rng.Float64(),
			relay: int32(r.rng.IntN(r.Relays)), zone: int16(r.rng.IntN(int(in.Zones))),
			far: r.rng.Float64() < in.FarShare,
		}
	}
}

// rhythm is the rate at a time of the day as a share of the greatest.
func rhythm(at, sharp float64) float64 {
	return math.Exp(sharp * (math.Cos(2*math.Pi*(at-peakAt)/day) - 1))
}

// sharpness finds the rhythm whose greatest rate is factor times its mean.
func sharpness(factor float64) float64 {
	low, high := 0.0, 1000.0
	for range 60 {
		middle := (low + high) / 2
		sum := 0.0
		for minute := range 1440 {
			sum += rhythm(float64(minute)*60, middle)
		}
		if 1440/sum < factor {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

// advance adds what lasts from the last event to now.
func (r *run) advance(now float64) {
	a, b := max(r.at, from), min(now, until)
	if b > a {
		r.result.Calls += float64(len(r.live)) * (b - a)
		r.result.Flows += float64(r.flows) * (b - a)
		r.result.Entries += float64(r.entries) * (b - a)
	}
	r.at = now
}

func inHour(t float64) bool { return t >= from && t < until }

func (r *run) begin(id int32, now float64) {
	c := &r.calls[id]
	c.place = int32(len(r.live))
	r.live = append(r.live, id)
	r.flows++
	if inHour(now) {
		r.result.SetUps++
	}
	r.queue.push(event{at: c.ends, call: id, kind: callEnds})
	r.queue.push(event{at: c.ends + r.Inputs.FlowIdleSeconds, call: id, kind: flowExpires})
	r.entries++
	r.write(id, now)
	// The walk over the table comes by every period, first at any moment of it.
	r.queue.push(event{at: now + r.rng.Float64()*r.period(), call: id, kind: walkComes})
}

func (r *run) period() float64 { return r.Inputs.StoreTTLSeconds / r.Inputs.StoreRefreshes }

// write renews a flow's entry in Redis.
func (r *run) write(id int32, now float64) {
	c := &r.calls[id]
	c.wrote = now
	if inHour(now) {
		r.result.Writes++
	}
}

func (r *run) handle(e event) {
	c := &r.calls[e.call]
	switch e.kind {
	case callEnds:
		last := len(r.live) - 1
		moved := r.live[last]
		r.live[c.place] = moved
		r.calls[moved].place = c.place
		r.live = r.live[:last]
		r.count(c, e.at)
	case flowExpires:
		r.flows--
		r.queue.push(event{at: c.wrote + r.Inputs.StoreTTLSeconds, call: e.call, kind: entryExpires})
	case walkComes:
		if e.at < c.ends+r.Inputs.FlowIdleSeconds {
			r.write(e.call, e.at)
			r.queue.push(event{at: e.at + r.period(), call: e.call, kind: walkComes})
		}
	case entryExpires:
		r.entries--
	}
}

// count counts the packets and checks that a call sent in the hour, one by one as
// their times fall, now that it ends or the hour does.
func (r *run) count(c *call, end float64) {
	a, b := max(c.starts, from), min(end, until)
	if b <= a {
		return
	}
	packets := 2 * (ticks(b, r.Inputs.PacketsPerSecond, c.packetPhase) - ticks(a, r.Inputs.PacketsPerSecond, c.packetPhase))
	r.result.Packets += packets
	r.result.RelayPackets += packets
	if c.far {
		r.result.RelayPackets += packets
	}
	checks := 1 / r.Inputs.CheckSeconds
	r.result.Checks += ticks(b, checks, c.checkPhase) - ticks(a, checks, c.checkPhase)
}

// ticks is how many ticks of a clock with a rate and a phase there were before t.
func ticks(t, rate, phase float64) float64 { return math.Floor(t*rate + phase) }

// nextTick is when the first one after t is.
func nextTick(t, rate, phase float64) float64 { return (math.Floor(t*rate+phase) + 1 - phase) / rate }

func (r *run) finish() Result {
	s := r.result
	hour := until - from
	s.Sessions = r.Sessions
	s.WritesPerFlow = s.Writes / s.SetUps
	for _, v := range []*float64{
		&s.SetUps, &s.Calls, &s.Flows, &s.Entries, &s.Packets, &s.RelayPackets, &s.Checks, &s.Writes,
	} {
		*v /= hour
	}
	return s
}
