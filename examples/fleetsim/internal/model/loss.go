package model

import "math"

// Outage is the loss of some relays of a region for good, at its busiest moment.
// Times begin when the balancer has given their clients to the other relays:
// until then nothing gets through, whatever a relay does.
type Outage struct {
	// Lost and Left are relays.
	Lost, Left int
	// Flows of calls were on the lost ones; each of the others gets Each.
	Flows, Each float64
	// Load of those left, as a share of saturation.
	Load float64

	// LookUps is how many questions Redis gets from all relays, with Mean the mean
	// gap in seconds that a call has, Last how long the last call waits.
	LookUps, Mean, Last float64
	// ByCheck is the share of calls whose own check was faster.
	ByCheck float64
	// BareMean and BareLast are the same without Redis.
	BareMean, BareLast float64
	// Checks a second still come to the relays left; none of them is extra.
	Checks float64
	// Enough is the limit of look-ups of a relay with which every call would be
	// back after two packets.
	Enough float64
}

// LoseRelays computes the loss of n relays of a region. At least one is left.
func (f *Fleet) LoseRelays(n int) Outage {
	r := &f.Region
	o := Outage{Lost: n, Left: r.Relays - n, Checks: r.Checks}
	o.Flows = r.Calls * float64(n) / float64(r.Relays)
	o.Each = o.Flows / float64(o.Left)
	o.Load = r.RelayPackets / (float64(o.Left) * f.RelayCores * f.RelayPacketsFull)
	o.BareMean, o.BareLast = f.CheckSeconds/2, f.CheckSeconds

	if o.Each == 0 {
		return o
	}
	_, _, o.Last = f.wait(o.Each)
	var sum, asked float64
	poisson(o.Each, func(n, p float64) {
		total, questions, _ := f.wait(n)
		sum += p * total
		asked += p * questions
	})
	o.Mean = sum / o.Each
	o.ByCheck = 1 - asked/o.Each
	o.LookUps = asked * float64(o.Left)
	o.Enough = o.Each / 2
	return o
}

// wait is what n calls wait for in all, in seconds, that come to a relay at once,
// how many of them Redis is asked about, and how long the last one waits. A relay
// lets as many sources ask at once as its limit is when it hears them for the
// first time, as many again for the second, and half as many a second all along.
func (f *Fleet) wait(n float64) (total, asked, longest float64) {
	rate, packet, answer := f.StoreLookups/2, 1/f.PacketsPerSecond, f.StoreMilliseconds/1000
	burst := f.StoreLookups + rate*packet
	first := min(n, burst)
	second := min(n-first, burst)
	rest := n - first - second
	total = first*(packet/2+answer) + second*(packet*3/2+answer)
	asked, longest = first+second, packet+answer
	if second > 0 {
		longest += packet
	}
	if rest > 0 {
		mean, last, more := f.drain(rest, rate)
		total += rest * (2*packet + mean)
		asked += more
		longest = 2*packet + last
	}
	return total, asked, longest
}

// poisson visits the numbers that a Poisson variable takes, and their weights:
// a balancer's hash does not give every relay the same number of calls, and just
// above a limit it is those with more that decide.
func poisson(mean float64, visit func(n, weight float64)) {
	reach := math.Ceil(6*math.Sqrt(mean) + 6)
	var sum float64
	weight := func(n float64) float64 {
		gamma, _ := math.Lgamma(n + 1)
		return math.Exp(n*math.Log(mean) - mean - gamma)
	}
	low, high := max(0, math.Floor(mean-reach)), mean+reach
	for n := low; n <= high; n++ {
		sum += weight(n)
	}
	for n := low; n <= high; n++ {
		visit(n, weight(n)/sum)
	}
}

// drain is the mean wait of n flows that come back by look-ups at a rate, or by
// their own check, which is due at a uniform moment of the next T seconds. Those
// left at time t obey w' = -rate - w/(T-t); it ends at T(1-exp(-n/(rate T))).
func (f *Fleet) drain(n, rate float64) (mean, last, byLookup float64) {
	t := f.CheckSeconds
	a := n / (rate * t)
	mean = t * (0.5 + math.Expm1(-2*a)/(4*a))
	last = t * -math.Expm1(-a)
	return mean, last, rate * last
}

// ZoneLoss is the loss of a zone of a region: its relays, and the calls that its
// transceivers own.
type ZoneLoss struct {
	Outage
	// Ended calls were owned there. Their users call again: SetUps a second for the
	// redial time, the ordinary ones included, which cost Cores.
	Ended, SetUps, Cores float64
	// HostLoad is the share of their cores that the transceivers left use once
	// everybody is back.
	HostLoad float64
}

// LoseZone computes it.
func (f *Fleet) LoseZone() ZoneLoss {
	r := &f.Region
	z := ZoneLoss{Outage: f.LoseRelays(r.Relays / int(f.Zones))}
	z.Ended = r.Calls / f.Zones
	z.SetUps = r.SetUps + z.Ended/f.RedialSeconds
	z.Cores = z.SetUps * f.HostSetupMilliseconds / 1000
	left := float64(r.Transceivers) * (1 - 1/f.Zones)
	z.HostLoad = r.TransceiverCores / (left * f.TransceiverCores)
	return z
}

// RedisLoss is the loss of a region's Redis.
type RedisLoss struct {
	// Entries are gone. Those of live flows are written again within the refill time, at Refill
	// writes a second.
	Entries, Refill float64
}

// LoseRedis computes it.
func (f *Fleet) LoseRedis() RedisLoss {
	r := &f.Region
	return RedisLoss{Entries: r.Entries, Refill: r.Flows/f.StoreRefill + r.SetUps}
}
