package sim

// bucket lets through rate a second, and burst at once.
type bucket struct{ tokens, rate, burst, at float64 }

func (b *bucket) take(now float64) bool {
	b.tokens = min(b.burst, b.tokens+(now-b.at)*b.rate)
	b.at = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// survivor is a relay that gets clients of a lost one. Like relay.Server it lets
// sources ask that it hears for the first time, and those that it has heard
// before, from a bucket each.
type survivor struct{ fresh, seen bucket }

// waiting is a call whose packets come to a relay that does not know it.
type waiting struct {
	relay int
	seen  bool
	back  float64 // when it is through; 0 if not yet
}

// loseRelays loses each relay in turn at a moment, and adds the mean to the result.
func (r *run) loseRelays(now float64) {
	for lost := range r.Relays {
		r.lose(now, func(relay int) bool { return relay == lost }, &r.result.Relay, float64(r.Relays))
	}
}

// loseZones does so with each zone. The transceivers go with it, and the calls
// that they own; their clients do not know and send on.
func (r *run) loseZones(now float64) {
	zones := int(r.Inputs.Zones)
	d := &r.result.Zone
	for lost := range zones {
		r.lose(now, func(relay int) bool { return relay%zones == lost }, d, float64(zones))
		ended := 0.0
		redials := 0.0
		for _, id := range r.live {
			if int(r.calls[id].zone) != lost {
				continue
			}
			ended++
			// Its user calls again; counted is who does so in the first second.
			if r.rng.Float64()*r.Inputs.RedialSeconds < 1 {
				redials++
			}
		}
		d.Ended += ended / float64(zones) / drills
		d.RedialSetUp += redials / float64(zones) / drills
	}
}

// lose plays what the clients of lost relays see, packet by packet, from the
// moment on at which the balancer leads them to others; weight is how many such
// losses make one drill.
func (r *run) lose(now float64, lost func(relay int) bool, d *Drill, weight float64) {
	in := &r.Inputs
	var left []int
	for relay := range r.Relays {
		if !lost(relay) {
			left = append(left, relay)
		}
	}
	half := in.StoreLookups / 2
	full := bucket{tokens: in.StoreLookups, rate: half, burst: in.StoreLookups, at: now}
	relays := make(map[int]*survivor)
	for _, relay := range left {
		relays[relay] = &survivor{fresh: full, seen: full}
	}
	calls := make(map[int32]*waiting)
	var q queue
	var bare float64
	for _, id := range r.live {
		c := &r.calls[id]
		if !lost(int(c.relay)) {
			continue
		}
		calls[id] = &waiting{relay: left[r.rng.IntN(len(left))]}
		check := nextTick(now, 1/in.CheckSeconds, c.checkPhase)
		bare += check - now
		q.push(event{at: check, call: id, kind: checkSent})
		q.push(event{at: nextTick(now, in.PacketsPerSecond, c.packetPhase), call: id, kind: packetSent})
	}
	if len(calls) == 0 {
		return
	}
	var lookUps, gaps float64
	for len(q) > 0 {
		e := q.pop()
		w := calls[e.call]
		if w.back > 0 {
			continue
		}
		switch e.kind {
		case checkSent:
			w.back = e.at
		case packetSent:
			s := relays[w.relay]
			may := &s.fresh
			if w.seen {
				may = &s.seen
			}
			w.seen = true
			if !may.take(e.at) {
				q.push(event{at: e.at + 1/in.PacketsPerSecond, call: e.call, kind: packetSent})
				continue
			}
			lookUps++
			w.back = e.at + in.StoreMilliseconds/1000 // the packet waits, and is not lost
		}
		gaps += w.back - now
	}
	n := float64(len(calls))
	share := 1 / weight / drills
	d.Flows += n * share
	d.LookUps += lookUps * share
	d.Mean += gaps / n * share
	d.BareMean += bare / n * share
}
