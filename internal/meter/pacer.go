package meter

import (
	"sync"
	"time"
)

// Interval is the time between two audio packets of a call.
const Interval = 20 * time.Millisecond

const (
	// phases spread the calls over the interval, as those of independent
	// clients are; one of them is due each millisecond.
	phases = int(Interval / time.Millisecond)
	// behind is the most phases that are made up for after a pause of the whole
	// machine; a burst of more would lose packets that no relay has lost.
	behind = 4 * phases
)

// Pacer calls the senders of many calls, each once an Interval, from one
// goroutine: a timer for each call would cost more than the calls. Make it with
// NewPacer and Close it.
type Pacer struct {
	stop chan struct{}
	done sync.WaitGroup

	mu      sync.Mutex
	senders [phases]map[*sender]struct{}
	next    int
	late    time.Duration
}

type sender struct{ send func() }

// NewPacer starts one.
func NewPacer() *Pacer {
	p := &Pacer{stop: make(chan struct{})}
	for i := range p.senders {
		p.senders[i] = make(map[*sender]struct{})
	}
	p.done.Go(p.run)
	return p
}

// Add calls send once an Interval until the returned function is called or the
// Pacer is closed. send must not block, nor call the Pacer. After remove has
// returned it is not called again.
func (p *Pacer) Add(send func()) (remove func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	phase := p.senders[p.next%phases]
	p.next++
	s := &sender{send}
	phase[s] = struct{}{}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(phase, s)
	}
}

// Late returns the most that a call's packet has been late for since Late was last
// called: what the machine, busy with something else, has held this process up for.
func (p *Pacer) Late() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	late := p.late
	p.late = 0
	return late
}

// Close ends the Pacer and waits for its goroutine.
func (p *Pacer) Close() {
	close(p.stop)
	p.done.Wait()
}

func (p *Pacer) run() {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for begin, done := time.Now(), 0; ; {
		select {
		case <-tick.C:
		case <-p.stop:
			return
		}
		elapsed := time.Since(begin)
		p.note(elapsed - time.Duration(done)*time.Millisecond)
		due := int(elapsed / time.Millisecond)
		for done = max(done, due-behind); done < due; done++ {
			p.turn(done % phases)
		}
	}
}

func (p *Pacer) note(late time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.late = max(p.late, late)
}

func (p *Pacer) turn(phase int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.senders[phase] {
		s.send()
	}
}
