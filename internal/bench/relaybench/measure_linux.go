package main

import (
	"errors"
	"runtime/debug"
	"time"

	"github.com/usher-rtc/usher/internal/bench/load"
)

// sample is one measurement.
type sample struct {
	cpu            time.Duration // of the relay
	wall           time.Duration // drains: from resume to the last packet, if stamps are on
	sent, received uint64        // packets
	offered        float64       // packets a second that really left
	bundleUp       float64       // packets per datagram relay -> upstream
	bundleDown     float64       // packets per datagram upstream -> relay
}

// perSecond returns packets per processor-second.
func (s sample) perSecond() float64 {
	if s.cpu <= 0 {
		return 0
	}
	return float64(s.received) / s.cpu.Seconds()
}

func (s sample) loss() float64 {
	if s.sent == 0 {
		return 0
	}
	return 1 - float64(s.received)/float64(s.sent)
}

const (
	// quiet is how long nothing must arrive before a cell is over. Longer
	// than any delay that a relay is configured with.
	quiet = 20 * time.Millisecond
	// rest is how long a relay must use no processor before a drain is over.
	rest = 5 * time.Millisecond
	// burstFill is the share of a fill that bursts get, so that the queue, which
	// counts bytes and the kernel's own, holds them.
	burstFill = 4
	// patience bounds every wait.
	patience = 3 * time.Second
)

var errNothing = errors.New("no packet arrived")

// paced offers the cell's rate for a time, and returns what the relay used.
func (t *traffic) paced(rate int, warm, dur time.Duration) (sample, error) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	t.offer(rate, warm)
	t.tail()
	t.reset()
	before, err := t.cpu()
	if err != nil {
		return sample{}, err
	}
	took := t.offer(rate, dur)
	t.tail()
	after, err := t.cpu()
	if err != nil {
		return sample{}, err
	}
	s := t.sample(after - before)
	s.offered = float64(t.sent) / took.Seconds()
	if s.received == 0 {
		return s, errNothing
	}
	return s, nil
}

// cpu returns the relay's time, or 0 for the direct path, which has no relay.
func (t *traffic) cpu() (time.Duration, error) {
	if p := t.peer.Process(); p != nil {
		return p.CPU()
	}
	return 0, nil
}

// offer sends each packet when it is due, and empties the sinks meanwhile.
func (t *traffic) offer(rate int, dur time.Duration) time.Duration {
	group := t.cell.sizes.group()
	start := time.Now()
	made := 0
	for {
		gone := time.Since(start)
		if gone >= dur {
			return gone
		}
		due := int(gone.Seconds()*float64(rate)) - made
		if due -= due % group; due > 0 {
			due = min(due, load.Slots)
			t.emit(due)
			made += due
		}
		t.collect()
	}
}

// tail empties the sinks until nothing more comes and the relay rests: on a
// busy machine it may have to wait for its processor, and so may the harness.
// Hence the sinks are looked at once more after the relay was seen at rest.
func (t *traffic) tail() {
	last := time.Now()
	for end := last.Add(patience); time.Now().Before(end); {
		switch {
		case t.collect() > 0:
			last = time.Now()
		case time.Since(last) <= quiet:
		case !t.resting() || t.collect() > 0:
			last = time.Now()
		default:
			return
		}
	}
}

// resting reports whether the relay has nothing to do and no packet is on its way.
func (t *traffic) resting() bool {
	p := t.peer.Process()
	return (p == nil || p.Idle()) && !load.Runnable(t.env.Softirq)
}

// drain measures at saturation: it fills the queues of the stopped relay,
// resumes it and takes the time it uses until it rests, several times.
func (t *traffic) drain(fill, fills int) (sample, error) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	p := t.peer.Process()
	var used, wall time.Duration
	t.reset()
	if t.cell.sizes == burst {
		fill /= burstFill
	}
	for i := range fills + 1 {
		if i == 1 { // the first fill warms up
			t.reset()
			used, wall = 0, 0
		}
		if err := p.Freeze(); err != nil {
			return sample{}, err
		}
		before, err := p.CPU()
		if err != nil {
			return sample{}, err
		}
		for left := fill; left > 0; left -= load.Slots {
			t.emit(min(left, load.Slots))
		}
		resumed := load.Now()
		if err := p.Thaw(); err != nil {
			return sample{}, err
		}
		after, err := p.Settled(rest, patience)
		if err != nil {
			return sample{}, err
		}
		used += after - before
		t.lastStamp = 0
		t.tail()
		if t.lastStamp > resumed {
			wall += time.Duration(t.lastStamp - resumed)
		}
	}
	s := t.sample(used)
	s.wall = wall
	if s.received == 0 {
		return s, errNothing
	}
	return s, nil
}

func (t *traffic) sample(cpu time.Duration) sample {
	s := sample{cpu: cpu, sent: t.sent, received: t.received}
	if t.upDatagrams > 0 {
		s.bundleUp = float64(t.receivedUp) / float64(t.upDatagrams)
	}
	if t.downDatagrams > 0 {
		s.bundleDown = float64(t.sentDown) / float64(t.downDatagrams)
	}
	return s
}
