package model

import (
	"math"
	"testing"

	"github.com/usher-rtc/usher/examples/fleetsim/internal/inputs"
)

// TestPlanByHand follows a fleet that can be computed in the head.
func TestPlanByHand(t *testing.T) {
	in, _ := inputs.Default()
	in.WeeklyUsers, in.Regions, in.CallsPerWeek = 604800, 1, 1 // a call a second
	in.PeakFactor, in.CallSeconds, in.FlowIdleSeconds = 2, 100, 50
	in.PacketsPerSecond, in.PayloadBytes, in.FrameBytes, in.FarShare = 50, 72, 25, 0.5
	in.RelayPacketsFull, in.RelayCores, in.RelayLoad, in.Zones = 1000, 4, 0.5, 3
	in.HostPacketMicroseconds, in.HostSetupMilliseconds = 100, 500
	in.TransceiverCores, in.TransceiverLoad = 1, 0.5
	in.StoreTTLSeconds, in.StoreRefreshes, in.RedisWrites, in.RedisLoad = 600, 4, 1, 1
	r := Plan(in).Region
	for _, tt := range []struct {
		name      string
		got, want float64
	}{
		{"set-ups", r.SetUps, 2},
		{"calls", r.Calls, 200},
		{"flows", r.Flows, 300},
		{"packets", r.Packets, 20_000},
		{"relay packets", r.RelayPackets, 30_000},
		{"client bits", r.ClientBits, 20_000 * 100 * 8},
		{"trunk bits", r.TrunkBits, 30_000 * 125 * 8},
		{"relays", float64(r.Relays), 24}, // 15 are needed: 8 in each of the two zones left
		{"transceiver cores", r.TransceiverCores, 2 + 1},
		{"transceivers", float64(r.Transceivers), 9}, // 6 are needed
		{"writes a flow", r.WritesPerFlow, 2},
		{"writes", r.Writes, 4},
		{"Redis primaries", float64(r.Redises), 4},
	} {
		if math.Abs(tt.got-tt.want) > 1e-9*tt.want {
			t.Errorf("%s: %v, want %v", tt.name, tt.got, tt.want)
		}
	}
}

// TestLimitsThatAreNotProcessors: a relay's table and a Host's sessions limit, too.
func TestLimitsThatAreNotProcessors(t *testing.T) {
	in, _ := inputs.Default()
	in.Regions, in.RelayFlows, in.HostSessions = 1, 1000, 10
	r := Plan(in).Region
	if per := r.Flows / (float64(r.Relays) * 2 / 3); per > 1000 {
		t.Errorf("%v flows a relay with a zone lost", per)
	}
	if per := r.Calls / (float64(r.Transceivers) * 2 / 3); per > 10 {
		t.Errorf("%v sessions a transceiver with a zone lost", per)
	}
}

// TestLastWriteAge integrates P(age > u) numerically.
func TestLastWriteAge(t *testing.T) {
	for _, tt := range []struct{ call, idle, period float64 }{
		{300, 30, 150}, {20, 0, 150}, {5, 149, 150}, {5, 200, 150}, {10_000, 30, 150},
	} {
		const steps = 100_000
		want := 0.0
		for i := range steps {
			u := (float64(i) + 0.5) / steps * tt.period
			alive := 1.0
			if u > tt.idle {
				alive = math.Exp(-(u - tt.idle) / tt.call)
			}
			want += alive * (1 - u/tt.period) * tt.period / steps
		}
		if got := lastWriteAge(tt.call, tt.idle, tt.period); math.Abs(got-want) > 1e-4*want {
			t.Errorf("%+v: %v, want %v", tt, got, want)
		}
	}
}

// TestDrainLimits: with hardly any look-ups calls wait for their checks, with few
// calls for the look-ups alone.
func TestDrainLimits(t *testing.T) {
	in, _ := inputs.Default()
	f := Plan(in)
	if mean, last, asked := f.drain(1e6, 1); math.Abs(mean-f.CheckSeconds/2) > 1e-3 || math.Abs(last-f.CheckSeconds) > 1e-3 || asked > 3 {
		t.Errorf("many calls: mean %v, last %v, asked %v", mean, last, asked)
	}
	if mean, last, asked := f.drain(10, 1000); math.Abs(mean-0.005) > 1e-4 || math.Abs(last-0.01) > 1e-4 || math.Abs(asked-10) > 0.05 {
		t.Errorf("few calls: mean %v, last %v, asked %v", mean, last, asked)
	}
}
