package transceiver

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/pion/rtp"

	"github.com/usher-rtc/usher/internal/opus"
)

const (
	// reorderWindow is how many packets may be held back while one is missing.
	reorderWindow = 64
	// maxDropout is the jump in sequence numbers that is taken for a restart
	// of the sender, once a second packet confirms it (RFC 3550 appendix A.1).
	maxDropout = 3000
)

// audioIn puts the packets of a track in order and queues them for a reader.
//
// Pion's jitter buffer is not used: it counts packets where this counts time,
// holds back everything until it has seen its first 50, tells nobody of what is
// lost, and allocates for each packet.
type audioIn struct {
	hold    time.Duration // how long a packet waits for an earlier one
	limit   int           // of the queue
	stop    <-chan struct{}
	stopErr func() error

	arrived signal
	timer   *time.Timer // of next alone

	mu      sync.Mutex
	packet  rtp.Packet // of receive alone
	track   trackIn
	queue   ring[recvFrame]
	current *opusBuffer // what the reader has

	received, lost, late, overrun, ignored uint64
}

// trackIn is what is known of the present track.
type trackIn struct {
	ssrc        uint32
	payloadType uint8
	levelID     uint8 // of the header extension, 0: not negotiated

	started  bool
	last     uint16 // newest sequence number, of lastExt
	lastExt  int64  // the same, unwrapped
	first    int64  // the first one
	next     int64  // the one to deliver next
	restart  uint16 // where a restarted sender would go on
	restarts bool
	lastTS   uint32
	lastTime int64 // lastTS, unwrapped, in ticks since the first packet
	missing  int   // packets lost right before the next one to deliver

	window []recvFrame // by sequence number, while an earlier one is missing
	held   int

	packets uint64 // for receiver reports
	clock   arrivalClock
}

// recvFrame is a packet in order, or on its way there.
type recvFrame struct {
	buf     *opusBuffer // nil: holds no sound, but a place in the sequence
	seq     int64
	time    int64 // in ticks since the first packet
	ticks   uint32
	arrival time.Time
	lost    int
	level   uint8 // RFC 6464's byte
	leveled bool
	used    bool // the place in the window is taken
	end     bool // the track's end
}

func (in *audioIn) init() { in.arrived = newSignal() }

// begin makes the next packets those of a new track.
func (in *audioIn) begin(ssrc uint32, payloadType, levelID uint8) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.track = trackIn{ssrc: ssrc, payloadType: payloadType, levelID: levelID, window: in.track.window}
	if in.hold > 0 && in.track.window == nil {
		in.track.window = make([]recvFrame, reorderWindow)
	}
}

// finish ends the present track: what is held back follows, and then io.EOF.
func (in *audioIn) finish() {
	in.mu.Lock()
	defer in.mu.Unlock()
	for in.track.held > 0 {
		in.skipGap()
	}
	in.enqueue(recvFrame{end: true})
}

// receive takes one RTP packet of the track. b is not kept.
func (in *audioIn) receive(now time.Time, b []byte) {
	in.mu.Lock()
	defer in.mu.Unlock()
	p, t := &in.packet, &in.track
	if p.Unmarshal(b) != nil {
		in.ignored++
		return
	}
	f := recvFrame{arrival: now, used: true}
	if !in.place(p, &f) {
		return
	}
	t.packets++
	ticks, ok := opus.Ticks(p.Payload)
	if ok && p.PayloadType == t.payloadType {
		in.received++
		t.clock.arrive(now, p.Timestamp)
		f.ticks, f.buf = ticks, newOpusBuffer(p.Payload)
		if level := p.GetExtension(t.levelID); t.levelID != 0 && len(level) == 1 {
			f.level, f.leveled = level[0], true
		}
	} else {
		in.ignored++ // padding, telephone events: it has its place in the sequence
	}
	in.sort(now, f)
}

// place finds where a packet belongs, and reports whether it belongs anywhere.
func (in *audioIn) place(p *rtp.Packet, f *recvFrame) bool {
	t := &in.track
	if !t.started {
		t.started = true
		t.last, t.lastTS = p.SequenceNumber, p.Timestamp
		t.lastExt, t.first, t.next, t.lastTime = int64(p.SequenceNumber), int64(p.SequenceNumber), int64(p.SequenceNumber), 0
	}
	step := int64(int16(p.SequenceNumber - t.last))
	if step > maxDropout || step < -maxDropout {
		if !t.restarts || p.SequenceNumber != t.restart {
			t.restarts, t.restart = true, p.SequenceNumber+1
			in.ignored++
			return false
		}
		// The sender started again. What its timestamps were is no help: the
		// time goes on by a frame.
		for t.held > 0 {
			in.skipGap()
		}
		t.lastExt = t.next + int64(reorderWindow)
		t.next, t.first, t.packets = t.lastExt, t.lastExt, 0
		t.last, t.lastTS = p.SequenceNumber, p.Timestamp
		t.lastTime += int64(opus.SilenceDuration * (opus.Rate / 1000) / time.Millisecond)
		step = 0
	}
	t.restarts = false
	f.seq = t.lastExt + step
	f.time = t.lastTime + int64(int32(p.Timestamp-t.lastTS))
	if step > 0 {
		t.last, t.lastExt = p.SequenceNumber, f.seq
		t.lastTS, t.lastTime = p.Timestamp, f.time
	}
	return true
}

// sort delivers a packet, holds it back, or drops it as late.
func (in *audioIn) sort(now time.Time, f recvFrame) {
	t := &in.track
	for t.held > 0 && f.seq >= t.next+reorderWindow {
		in.skipGap()
	}
	switch {
	case f.seq < t.next, in.hold > 0 && f.seq < t.next+reorderWindow && t.window[f.seq%reorderWindow].used:
		in.late++
		f.buf.free()
		return
	case f.seq > t.next && (in.hold == 0 || f.seq >= t.next+reorderWindow):
		in.miss(f.seq - t.next)
	case f.seq > t.next:
		t.window[f.seq%reorderWindow] = f
		t.held++
		in.expire(now)
		return
	}
	in.deliver(f)
	in.drain()
	in.expire(now)
}

// miss gives up on n packets before the next one.
func (in *audioIn) miss(n int64) {
	in.track.next += n
	in.track.missing += int(n)
	in.lost += uint64(n)
}

// deliver queues the packet that is next in order.
func (in *audioIn) deliver(f recvFrame) {
	t := &in.track
	t.next = f.seq + 1
	if f.buf == nil {
		return
	}
	f.lost, t.missing = t.missing, 0
	in.enqueue(f)
}

// drain delivers what was held back only because of the packets before it.
func (in *audioIn) drain() {
	for t := &in.track; t.held > 0; {
		slot := &t.window[t.next%reorderWindow]
		if !slot.used {
			return
		}
		f := *slot
		*slot = recvFrame{}
		t.held--
		in.deliver(f)
	}
}

// skipGap gives up on what is missing before the first packet that is held.
func (in *audioIn) skipGap() {
	t := &in.track
	for i := t.next; i < t.next+reorderWindow; i++ {
		if t.window[i%reorderWindow].used {
			in.miss(i - t.next)
			in.drain()
			return
		}
	}
}

// deadline returns when the present gap is given up, the zero time if there is none.
func (in *audioIn) deadline() (at time.Time) {
	if in.track.held == 0 {
		return at
	}
	for i := range in.track.window {
		if f := &in.track.window[i]; f.used {
			at = earlier(at, f.arrival)
		}
	}
	return at.Add(in.hold)
}

// expire gives up on gaps that have lasted too long.
func (in *audioIn) expire(now time.Time) {
	for in.track.held > 0 && !now.Before(in.deadline()) {
		in.skipGap()
	}
}

// enqueue makes room if need be: the oldest frame goes, and counts as lost.
func (in *audioIn) enqueue(f recvFrame) {
	if in.queue.len() >= in.limit {
		old := in.queue.pop()
		if !old.end {
			in.overrun++
			old.buf.free()
			if in.queue.len() > 0 {
				in.queue.at(0).lost += old.lost + 1
			} else {
				f.lost += old.lost + 1
			}
		}
	}
	in.queue.push(f)
	in.arrived.raise()
}

// next implements Audio.Next.
func (in *audioIn) next(ctx context.Context) (Frame, error) {
	for {
		in.mu.Lock()
		in.current.free()
		in.current = nil
		if in.track.held > 0 {
			in.expire(time.Now())
		}
		if in.queue.len() > 0 {
			f := in.queue.pop()
			in.current = f.buf
			in.mu.Unlock()
			if f.end {
				return Frame{}, io.EOF
			}
			return f.frame(), nil
		}
		var gap <-chan time.Time
		if at := in.deadline(); !at.IsZero() {
			if in.timer == nil {
				in.timer = time.NewTimer(time.Until(at))
			} else {
				in.timer.Reset(time.Until(at))
			}
			gap = in.timer.C
		}
		in.mu.Unlock()
		select {
		case <-in.arrived:
		case <-gap:
		case <-ctx.Done():
			return Frame{}, endOf(ctx, in.stopErr)
		case <-in.stop:
			if !in.waiting() {
				return Frame{}, in.stopErr()
			}
		}
	}
}

// endOf returns why a call that waited for ctx ends: the session's end, which
// ends the contexts that come from it, or else the context's.
func endOf(ctx context.Context, stopErr func() error) error {
	if err := stopErr(); err != nil {
		return err
	}
	return ctx.Err()
}

// waiting reports whether there are frames that the reader has not had.
func (in *audioIn) waiting() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	for in.track.held > 0 {
		in.skipGap()
	}
	return in.queue.len() > 0
}

func (f *recvFrame) frame() Frame {
	return Frame{
		Payload:  f.buf.b,
		Time:     opus.Time(f.time),
		Duration: opus.Time(int64(f.ticks)),
		Lost:     f.lost,
		Level:    f.level & 0x7f,
		Voice:    f.level&0x80 != 0,
		HasLevel: f.leveled,
	}
}

func (in *audioIn) stats(st *AudioStats) {
	in.mu.Lock()
	defer in.mu.Unlock()
	st.Received, st.Lost, st.Late, st.Overrun, st.Ignored = in.received, in.lost, in.late, in.overrun, in.ignored
	st.JitterIn = opus.Time(int64(in.track.clock.jitter))
	st.QueuedIn = in.queue.len()
}
