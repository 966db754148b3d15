package model

import (
	"math"

	"github.com/usher-rtc/usher/examples/fleetsim/internal/inputs"
)

const (
	week = 7 * 24 * 3600.0
	// ipUDP is the bytes of an IPv4 and a UDP header.
	ipUDP = 28
)

// Region is one region at the busiest moment of its day.
type Region struct {
	// Calls are how many last at this moment; SetUps begin in a second.
	Calls, SetUps float64
	// Flows are those in the relays' tables: of calls, and of calls that ended less
	// than the idle time ago.
	Flows float64
	// Packets a second of clients, in both directions together. RelayPackets are
	// what relays forward: packets of far calls count at both tiers.
	Packets, RelayPackets float64
	// Checks a second are the clients' STUN checks.
	Checks float64
	// ClientBits and TrunkBits a second, both directions together, with IPv4 and
	// UDP headers: between clients and relays, and behind the relays, where the
	// worst case is assumed that no two packets share a datagram.
	ClientBits, TrunkBits float64

	// Relays that are needed, and what they use together. Cores is by the cost
	// under load, RelayBytes the flows' memory.
	Relays                 int
	RelayCores, RelayBytes float64
	// Transceivers that are needed; their cores are what they use, for packets and
	// for setting calls up.
	Transceivers                       int
	TransceiverCores, TransceiverBytes float64

	// Redis: writes a second, writes a flow over its life, entries, and what they
	// use. Redises is how many primaries the writes need.
	Writes, WritesPerFlow, Entries float64
	RedisCores, RedisBytes         float64
	Redises                        int
}

// Fleet is all regions together, each of them like the others.
type Fleet struct {
	inputs.Inputs
	Region  Region
	Regions int
}

// Plan computes a fleet.
func Plan(in inputs.Inputs) Fleet {
	var r Region
	r.SetUps = in.WeeklyUsers / in.Regions * in.CallsPerWeek / week * in.PeakFactor
	// Little's law, at the busiest moment. The peak is taken to last longer than a
	// call does; where calls last hours it does not, and this is an upper bound.
	r.Calls = r.SetUps * in.CallSeconds
	flowLife := in.CallSeconds + in.FlowIdleSeconds
	r.Flows = r.SetUps * flowLife

	r.Packets = r.Calls * in.PacketsPerSecond * 2
	r.RelayPackets = r.Packets * (1 + in.FarShare)
	r.Checks = r.Calls / in.CheckSeconds
	r.ClientBits = r.Packets * (in.PayloadBytes + ipUDP) * 8
	r.TrunkBits = r.RelayPackets * (in.PayloadBytes + in.FrameBytes + ipUDP) * 8

	relays := max(
		r.RelayPackets/(in.RelayPacketsFull*in.RelayCores*in.RelayLoad),
		r.Flows/in.RelayFlows)
	r.Relays = overZones(relays, in.Zones)
	r.RelayCores = r.RelayPackets / in.RelayPacketsLoaded
	r.RelayBytes = r.Flows * in.FlowBytes

	r.TransceiverCores = r.Packets*in.HostPacketMicroseconds/1e6 + r.SetUps*in.HostSetupMilliseconds/1e3
	r.TransceiverBytes = r.Calls * in.SessionKBytes * 1024
	transceivers := max(
		r.TransceiverCores/(in.TransceiverCores*in.TransceiverLoad),
		r.Calls/in.HostSessions)
	r.Transceivers = overZones(transceivers, in.Zones)

	// A flow is written when its client has answered, and then whenever the walk
	// over the table comes by.
	period := in.StoreTTLSeconds / in.StoreRefreshes
	r.WritesPerFlow = 1 + flowLife/period
	r.Writes = r.SetUps * r.WritesPerFlow
	r.Entries = r.SetUps * (flowLife + in.StoreTTLSeconds - lastWriteAge(in.CallSeconds, in.FlowIdleSeconds, period))
	r.RedisCores = r.Writes / in.RedisWrites
	r.RedisBytes = r.Entries * in.RedisEntryBytes
	r.Redises = int(max(1, math.Ceil(r.RedisCores/in.RedisLoad)))
	return Fleet{Inputs: in, Region: r, Regions: int(in.Regions)}
}

// overZones is how many processes are needed, the same number in each zone, so
// that the other zones can do without any one of them.
func overZones(need, zones float64) int {
	return int(zones * max(1, math.Ceil(need/(zones-1))))
}

// lastWriteAge is the mean age of a flow's newest write when it leaves the table:
// the walk passed it a uniform part of a period ago, or not since it was made. The
// flow's life is idle plus an exponential time of mean call.
func lastWriteAge(call, idle, period float64) float64 {
	if idle >= period {
		return period / 2
	}
	rest := period - idle
	return idle - idle*idle/(2*period) + (rest*call-call*call*-math.Expm1(-rest/call))/period
}
