package transceiver

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pion/rtp"

	"github.com/usher-rtc/usher/internal/opus"
)

const (
	// stallAfter is how long after a frame was due silence takes its place:
	// decoders conceal that much well, and a live source is often that late.
	stallAfter = 40 * time.Millisecond
	// gapAfter is how late a source has to be for the RTP timestamp to jump.
	// Less is jitter, and jumps would make holes in the sound.
	gapAfter = 20 * time.Millisecond
	// utteranceGap is the silence that separates two utterances.
	utteranceGap = time.Second
	// catchUp is how late the Host itself may be before it gives up sending
	// the frames that it missed in a burst.
	catchUp = 100 * time.Millisecond
	// slewPart is the part of a frame by which each frame moves the schedule
	// towards a live source: two clocks differ, packets come in bursts, and
	// without it either would become a delay that stays.
	slewPart = 25
	// slewBelow is how little has to be queued for a source to be taken as
	// live. A source that is held up by a full queue is none, so half of what
	// Write takes is the other limit.
	slewBelow = 200 * time.Millisecond
)

// rtpWriter is where packets go. It returns how many bytes it wrote, 0 while
// there is no SRTP yet.
type rtpWriter interface {
	WriteRTP(header *rtp.Header, payload []byte) (int, error)
}

// audioOut is a paced queue of Opus packets. Its schedule and its RTP
// timestamps are one clock: the timestamp of the next frame belongs to due.
type audioOut struct {
	pacer   *pacer
	limit   time.Duration // of what is queued
	comfort time.Duration // how much silence follows when the queue runs dry
	stop    <-chan struct{}
	stopErr func() error
	up      func() bool         // SRTP can be expected to work
	sentNow func(now time.Time) // called after packets were sent, without the lock

	space, idle signal

	mu      sync.Mutex
	writer  rtpWriter  // nil until the track is negotiated
	header  rtp.Header // of the next packet
	queue   ring[sendFrame]
	queued  time.Duration
	due     time.Time // when the next frame begins; meaningless before the first
	started bool      // a frame was sent
	inDTX   bool      // the first packet without sound was sent
	muted   bool
	silence time.Duration // how much of the comfort is left
	quiet   time.Time     // when it begins
	cuts    uint64        // calls of interrupt

	armed    int64     // the tick that the pacer will poll at, 0 for none
	armedFor time.Time // what was asked of it

	utterance              time.Duration // played since it began
	played, dropped        time.Duration
	sent, comforts, octets uint64
	interrupts             uint64
}

// sendFrame is a packet that waits.
type sendFrame struct {
	buf   *opusBuffer
	ticks uint32
}

func (f *sendFrame) duration() time.Duration { return opus.Time(int64(f.ticks)) }

func (o *audioOut) init() {
	o.space, o.idle = newSignal(), newSignal()
	o.header = rtp.Header{Version: 2, SequenceNumber: uint16(rand.Uint32()), Timestamp: rand.Uint32(), Marker: true}
}

// bind gives the queue somewhere to send to.
func (o *audioOut) bind(w rtpWriter, ssrc uint32, payloadType uint8) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.writer, o.header.SSRC, o.header.PayloadType = w, ssrc, payloadType
	if o.queue.len() > 0 {
		now := time.Now()
		o.arm(now, now)
	}
}

// unbind takes it away.
func (o *audioOut) unbind() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.writer = nil
}

func (o *audioOut) ssrc() uint32 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.header.SSRC
}

// kick makes the pacer look at the queue soon: the client is connected. It takes
// no lock of the queue, because Pion calls it with a lock of its own held that
// the first WriteRTP needs.
func (o *audioOut) kick() {
	now := time.Now()
	o.pacer.schedule(o, now, now)
}

// write implements Audio.Write.
func (o *audioOut) write(ctx context.Context, packet []byte) error {
	ticks, ok := opus.Ticks(packet)
	if !ok || len(packet) > opus.MaxFrame {
		return ErrFrame
	}
	duration := opus.Time(int64(ticks))
	o.mu.Lock()
	for cuts := o.cuts; o.queue.len() > 0 && o.queued+duration > o.limit; {
		o.mu.Unlock()
		select {
		case <-o.space:
		case <-ctx.Done():
			return endOf(ctx, o.stopErr)
		case <-o.stop:
			return o.stopErr()
		}
		o.mu.Lock()
		if o.cuts != cuts {
			o.mu.Unlock()
			o.space.raise()
			return ErrInterrupted
		}
	}
	select {
	case <-o.stop:
		o.mu.Unlock()
		return o.stopErr()
	default:
	}
	now := time.Now()
	if o.queue.len() == 0 && o.started {
		o.resume(now)
	}
	o.queue.push(sendFrame{newOpusBuffer(packet), ticks})
	o.queued += duration
	room := o.queued < o.limit
	sent := o.run(now)
	o.mu.Unlock()
	if room {
		o.space.raise()
	}
	if sent {
		o.sentNow(now)
	}
	return nil
}

// resume is for a frame that finds the queue empty: if the source was late,
// the time that has passed becomes silence, or the schedule gives in a little.
func (o *audioOut) resume(now time.Time) {
	late := now.Sub(o.due)
	if late >= utteranceGap {
		o.utterance = 0
	}
	o.skip(late, true)
	if late > 0 && late < gapAfter {
		o.due = o.due.Add(min(late, gapAfter/slewPart))
	}
}

// skip lets whole 20 ms of the clock pass unused.
func (o *audioOut) skip(late time.Duration, marker bool) {
	if late < gapAfter {
		return
	}
	late -= late % gapAfter
	o.due = o.due.Add(late)
	o.header.Timestamp += uint32(late * (opus.Rate / 1000) / time.Millisecond)
	o.header.Marker = o.header.Marker || marker
}

// poll implements paced.
func (o *audioOut) poll(now time.Time) {
	o.mu.Lock()
	if o.armed != 0 && o.pacer.tickOf(now) >= o.armed {
		o.armed = 0
	}
	sent := o.run(now)
	o.mu.Unlock()
	if sent {
		o.sentNow(now)
	}
}

// run sends what is due and arms the pacer for the rest. It reports whether
// anything was sent.
func (o *audioOut) run(now time.Time) (sent bool) {
	select {
	case <-o.stop:
		return false
	default:
	}
	for o.queue.len() > 0 {
		if o.started {
			if late := now.Sub(o.due); late > catchUp {
				o.due = now
			} else if late < -paceLead {
				break
			}
		}
		if !o.sendNext(now) {
			if o.writer != nil && o.up() {
				o.arm(now, now) // it is a matter of moments
			}
			return sent
		}
		sent = true
	}
	switch {
	case o.queue.len() > 0:
		o.arm(now, o.due.Add(-paceLead))
	case o.started && o.silence > 0:
		return o.fill(now) || sent
	}
	return sent
}

// sendNext sends the oldest frame, and reports whether it could.
func (o *audioOut) sendNext(now time.Time) bool {
	f := *o.queue.at(0)
	d := f.duration()
	dtx := opus.IsDTX(f.buf.b)
	switch {
	case o.muted && (o.writer == nil || !o.up()):
		return false
	case o.muted:
		if o.silence > 0 && o.transmit(opus.Silence()) {
			o.silence -= opus.SilenceDuration
			o.comforts++
		}
		o.header.Marker = true
	case dtx && o.inDTX:
		o.header.Marker = true
	case !o.transmit(f.buf.b):
		return false
	}
	o.inDTX = dtx && !o.muted
	o.queue.pop()
	f.buf.free()
	o.queued -= d
	o.played += d
	o.utterance += d
	if !o.started {
		o.started, o.due = true, now
	}
	early := now.Before(o.due)
	o.due = o.due.Add(d)
	o.header.Timestamp += f.ticks
	if early && o.queued < min(slewBelow, o.limit/2) {
		o.due = o.due.Add(-d / slewPart)
	}
	if !o.muted {
		o.silence, o.quiet = o.comfort, o.due.Add(stallAfter)
	}
	o.space.raise()
	if o.queue.len() == 0 {
		o.idle.raise()
	}
	return true
}

// fill sends silence while the source stalls.
func (o *audioOut) fill(now time.Time) (sent bool) {
	for o.silence > 0 {
		at := o.due
		if at.Before(o.quiet) {
			at = o.quiet
		}
		if at = at.Add(-paceLead); now.Before(at) {
			o.arm(now, at)
			break
		}
		if now.Before(o.quiet) {
			o.skip(o.quiet.Sub(o.due), false)
		} else {
			o.skip(now.Sub(o.due), false)
		}
		o.header.Marker = false
		if !o.transmit(opus.Silence()) {
			break
		}
		o.comforts++
		o.silence -= opus.SilenceDuration
		o.due = o.due.Add(opus.SilenceDuration)
		o.header.Timestamp += opus.Rate / 1000 * 20
		o.header.Marker = true // whatever comes next begins to speak
		sent = true
	}
	return sent
}

// transmit writes one packet and reports whether there was anything to write
// to. What fails later than the first packet is a loss like any other.
func (o *audioOut) transmit(payload []byte) bool {
	if o.writer == nil {
		return false
	}
	n, err := o.writer.WriteRTP(&o.header, payload)
	if n == 0 && err == nil && o.sent == 0 {
		return false
	}
	o.header.SequenceNumber++
	o.header.Marker = false
	o.sent++
	o.octets += uint64(len(payload))
	return true
}

// arm makes the pacer poll at a time, or sooner.
func (o *audioOut) arm(now, at time.Time) {
	if at.Before(now) {
		at = now
	}
	if o.armed != 0 && !at.Before(o.armedFor) {
		return
	}
	o.armed, o.armedFor = o.pacer.schedule(o, now, at), at
}

// interrupt implements Audio.Interrupt.
func (o *audioOut) interrupt() Interrupted {
	o.mu.Lock()
	defer o.mu.Unlock()
	cut := Interrupted{Played: o.utterance, Dropped: o.queued}
	for o.queue.len() > 0 {
		f := o.queue.pop()
		f.buf.free()
	}
	o.queued, o.utterance = 0, 0
	o.cuts++
	if cut.Dropped > 0 {
		o.dropped += cut.Dropped
		o.interrupts++
	}
	o.space.raise()
	o.idle.raise()
	o.hush(time.Now())
	return cut
}

// hush begins the silence at once if there is sound to end.
func (o *audioOut) hush(now time.Time) {
	if o.started && o.silence > 0 {
		o.quiet = now
		o.arm(now, o.due.Add(-paceLead))
	}
}

// mute implements Audio.Mute.
func (o *audioOut) mute(muted bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.muted == muted {
		return
	}
	o.muted = muted
	if muted {
		o.hush(time.Now())
	}
}

// wait implements Audio.Wait.
func (o *audioOut) wait(ctx context.Context) error {
	for {
		o.mu.Lock()
		empty, rest := o.queue.len() == 0, time.Duration(0)
		if empty && o.started {
			rest = time.Until(o.due)
		}
		o.mu.Unlock()
		var over <-chan time.Time
		if empty {
			o.idle.raise() // for the next one who waits
			if rest <= 0 {
				return nil
			}
			over = time.After(rest)
		}
		idle := o.idle
		if empty {
			idle = nil
		}
		select {
		case <-idle:
		case <-over:
		case <-ctx.Done():
			return endOf(ctx, o.stopErr)
		case <-o.stop:
			return o.stopErr()
		}
	}
}

func (o *audioOut) stats(st *AudioStats) {
	o.mu.Lock()
	defer o.mu.Unlock()
	st.Sent, st.Comfort = o.sent, o.comforts
	st.QueuedOut, st.Played, st.Dropped = o.queued, o.played, o.dropped
	st.Interrupts = o.interrupts
}

// clock returns what a sender report says (RFC 3550 section 6.4.1): the RTP
// time of now and what was sent so far; false before the first packet.
func (o *audioOut) clock(now time.Time) (ssrc, rtpTime, packets, octets uint32, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	ahead := now.Sub(o.due) * (opus.Rate / 1000) / time.Millisecond
	return o.header.SSRC, o.header.Timestamp + uint32(ahead), uint32(o.sent), uint32(o.octets), o.sent > 0
}
