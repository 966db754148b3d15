package bridge

import (
	"sync"
	"time"

	"github.com/usher-rtc/usher/internal/opus"
)

const (
	// reportEvery is the time between `playback` messages while audio is queued.
	reportEvery = 500 * time.Millisecond
	// soonest is the shortest wait for a mark: frames leave every 20 ms, and
	// the host's timers have their own grain.
	soonest = 5 * time.Millisecond
	// maxMarks is how many marks may be pending.
	maxMarks = 64
	// maxSegments is how many jumps of a service's time stamps are remembered.
	// Beyond that a position is a guess.
	maxSegments = 64

	whatAudio = "audio"
	whatEvent = "event"
)

// playout follows the service's audio through the session's queue.
type playout struct {
	b     *Bridge
	timer *time.Timer

	mu       sync.Mutex
	ended    bool
	armed    bool
	written  time.Duration // what the session's queue took, ever
	done     time.Duration // of it, played or dropped, when last seen
	taken    time.Duration // what this connection sent, dropped audio included
	position time.Duration // where the client is, in the service's time stamps
	segments []segment
	marks    []pendingMark
	drops    []dropped
}

// segment is audio without a jump in its time stamps.
type segment struct {
	at   time.Duration // in written
	time time.Duration // the service's
}

type pendingMark struct {
	id uint64
	at time.Duration // in written
}

func (p *playout) init(b *Bridge) {
	p.b = b
	p.timer = time.AfterFunc(time.Hour, p.tick)
	p.timer.Stop()
}

func (p *playout) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	p.timer.Stop()
}

// detach forgets what belongs to a connection that is gone. Its audio is
// played on.
func (p *playout) detach() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refresh()
	p.taken, p.marks, p.drops = 0, nil, nil
}

// resume is what a service is told about the audio of the one before.
func (p *playout) resume(after string) *Resume {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refresh()
	r := &Resume{After: after, QueuedMS: millis(p.written - p.done), PositionMS: millis(p.position)}
	// The new one's time stamps are its own.
	p.segments, p.position = p.segments[:0], 0
	return r
}

// play queues a message of audio for the client. It never blocks.
func (p *playout) play(l *link, h *Header, payload []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var d time.Duration
	ok := false
	if l.codec == nil {
		d, ok = opus.Duration(payload)
		ok = ok && len(payload) <= opus.MaxFrame
	} else {
		d = pcmDuration(len(payload), l.codec.Rate())
		ok = len(payload) > 0 && len(payload)%2 == 0
	}
	if !ok {
		p.dropAudio("not audio in the connection's codec", 0)
		return
	}
	p.taken += d
	if p.written-p.done+d > p.b.cfg.Window {
		if p.refresh(); p.written-p.done+d > p.b.cfg.Window {
			p.dropAudio("window exceeded", d)
			return
		}
	}
	at := p.written
	if l.framer != nil {
		at += pcmDuration(len(l.framer.rest), l.codec.Rate())
	}
	p.note(segment{at: at, time: h.Time})
	var err error
	if l.framer == nil {
		err = p.emit(payload)
	} else {
		err = l.framer.add(payload, p.emit)
	}
	if err != nil {
		p.dropAudio("refused: "+err.Error(), d)
	}
	p.arm(reportEvery)
}

// emit queues one Opus packet. There is room for it, so it does not block.
func (p *playout) emit(packet []byte) error {
	if err := p.b.audio.Write(p.b.ctx, packet); err != nil {
		return err
	}
	d, _ := opus.Duration(packet)
	p.written += d
	return nil
}

// note remembers where a service's time stamps jump.
func (p *playout) note(s segment) {
	if n := len(p.segments); n > 0 {
		last := p.segments[n-1]
		if s.time-last.time == s.at-last.at {
			return
		}
		if last.at == s.at {
			p.segments[n-1] = s
			return
		}
	}
	if len(p.segments) == maxSegments {
		p.segments = append(p.segments[:0], p.segments[1:]...)
	}
	p.segments = append(p.segments, s)
}

// refresh learns how much has been played. The lock is held.
func (p *playout) refresh() {
	st := p.b.audio.Stats()
	p.advance(st.Played + st.Dropped)
}

// advance moves to a point in what was written.
func (p *playout) advance(done time.Duration) {
	p.done = min(done, p.written)
	for len(p.segments) > 1 && p.segments[1].at <= p.done {
		p.segments = append(p.segments[:0], p.segments[1:]...)
	}
	if len(p.segments) > 0 && p.segments[0].at <= p.done {
		p.position = p.segments[0].time + p.done - p.segments[0].at
	}
}

// interrupt drops the session's queue and answers the service.
func (p *playout) interrupt(l *link, id uint64) {
	p.mu.Lock()
	cut := p.b.audio.Interrupt()
	st := p.b.audio.Stats()
	p.advance(st.Played + st.Dropped - cut.Dropped) // where the client was
	p.done = p.written
	p.segments = p.segments[:0]
	if l.framer != nil {
		l.framer.clear()
	}
	marks := p.marks
	p.marks = nil
	answer := interrupted{
		Type: typeInterrupted, ID: id,
		PlayedMS: millis(cut.Played), DroppedMS: millis(cut.Dropped), PositionMS: millis(p.position),
	}
	report := p.report()
	p.mu.Unlock()
	for _, m := range marks {
		l.say(&marked{Type: typeMarked, ID: m.id, Interrupted: true})
	}
	l.say(&answer)
	l.say(&report)
}

// mark answers when the audio up to here has been sent.
func (p *playout) mark(l *link, id uint64) error {
	p.mu.Lock()
	if len(p.marks) == maxMarks {
		p.mu.Unlock()
		return violation("more than %d marks are pending", maxMarks)
	}
	if l.framer != nil {
		if err := l.framer.flush(p.emit); err != nil {
			p.dropAudio("refused: "+err.Error(), frameDuration)
		}
	}
	p.refresh()
	queued := p.written - p.done
	if queued > 0 || len(p.marks) > 0 {
		p.marks = append(p.marks, pendingMark{id: id, at: p.written})
		p.rearm(max(queued, soonest))
		p.mu.Unlock()
		return nil
	}
	p.mu.Unlock()
	l.say(&marked{Type: typeMarked, ID: id})
	return nil
}

func (p *playout) report() playback {
	return playback{Type: typePlayback, TakenMS: millis(p.taken), QueuedMS: millis(p.written - p.done), PositionMS: millis(p.position)}
}

// dropAudio counts a message of audio that the client will not get. The lock
// is held.
func (p *playout) dropAudio(reason string, d time.Duration) {
	p.b.framesDropped.Add(1)
	p.count(whatAudio, reason, d)
}

// drop tells the service about something that the client will not get.
func (p *playout) drop(what, reason string, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count(what, reason, d)
}

// count collects drops, so that a flood of them is one message.
func (p *playout) count(what, reason string, d time.Duration) {
	p.arm(reportEvery)
	for i := range p.drops {
		if have := &p.drops[i]; have.What == what && have.Reason == reason {
			have.Count++
			have.MS += millis(d)
			return
		}
	}
	p.drops = append(p.drops, dropped{Type: typeDropped, What: what, Reason: reason, Count: 1, MS: millis(d)})
}

// arm makes tick run after a while, unless it will do so anyway.
func (p *playout) arm(d time.Duration) {
	if !p.armed && !p.ended {
		p.armed = true
		p.timer.Reset(d)
	}
}

// rearm makes tick run after a while, if it would later.
func (p *playout) rearm(d time.Duration) {
	if d < reportEvery && p.armed && p.timer.Stop() {
		p.armed = false
	}
	p.arm(min(d, reportEvery))
}

// tick reports what has happened, on the timer's goroutine.
func (p *playout) tick() {
	l := p.b.link.Load()
	p.mu.Lock()
	p.refresh()
	drops, n := p.drops, 0
	p.drops = nil
	for n < len(p.marks) && p.marks[n].at <= p.done {
		n++
	}
	marks := p.marks[:n:n]
	p.marks = p.marks[n:]
	report := p.report()
	p.mu.Unlock()
	if l != nil {
		for i := range drops {
			l.say(&drops[i])
		}
		for _, m := range marks {
			l.say(&marked{Type: typeMarked, ID: m.id})
		}
		l.say(&report)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = false
	if queued := p.written - p.done; queued > 0 || len(p.marks) > 0 || len(p.drops) > 0 {
		next := reportEvery
		if len(p.marks) > 0 {
			next = min(next, max(p.marks[0].at-p.done, soonest))
		}
		p.arm(min(next, max(queued, soonest)))
	}
}

// say sends a text message. A connection that cannot take it is over.
func (l *link) say(m any) {
	if err := l.sock.writeJSON(m); err != nil {
		l.fail(err)
	}
}
