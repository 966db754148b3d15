package bridge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/usher-rtc/usher/transceiver"
)

// gap is what the service is not sent while it is away or does not read.
type gap struct {
	mu       sync.Mutex // held while a frame is written, so that order is kept
	frames   uint64
	duration time.Duration
	overrun  uint64 // frames that the session's own queue dropped, when last seen
	// What was sent on connections that broke, with no pong after it.
	unconfirmedFrames, unconfirmedEvents uint64
	carry                                uint32        // packets missing before the next frame
	position                             time.Duration // where the audio is, for events
}

// miss counts a frame that is not sent. The lock is held.
func (g *gap) miss(b *Bridge, f *transceiver.Frame) {
	g.frames++
	g.duration += f.Duration
	g.carry = addLost(g.carry, f.Lost+1)
	b.framesMissed.Add(1)
}

func addLost(carry uint32, n int) uint32 {
	return uint32(min(uint64(carry)+uint64(max(n, 0)), 1<<32-1))
}

// overran adds what the session's queue dropped because nobody read it. The
// next frame says so by itself. The lock is held.
func (g *gap) overran(b *Bridge) {
	now := b.audio.Stats().Overrun
	n := now - g.overrun
	g.overrun = now
	g.frames += n
	g.duration += time.Duration(n) * frameDuration
	b.framesMissed.Add(n)
}

// tell sends `missed` and begins anew. The lock is held.
func (g *gap) tell(l *link, reason string) error {
	m := missed{Type: typeMissed, Missed: Missed{
		Reason: reason, Frames: g.frames, MS: millis(g.duration),
		UnconfirmedFrames: g.unconfirmedFrames, UnconfirmedEvents: g.unconfirmedEvents,
	}}
	g.frames, g.duration, g.unconfirmedFrames, g.unconfirmedEvents = 0, 0, 0, 0
	return l.sock.writeJSON(&m)
}

// pumpAudio passes the client's audio on for the life of the session.
func (b *Bridge) pumpAudio() {
	var base, end time.Duration
	for {
		f, err := b.audio.Next(b.ctx)
		if errors.Is(err, io.EOF) {
			base = end // the next track begins at 0 again
			continue
		}
		if err != nil {
			return
		}
		f.Time += base
		end = f.Time + f.Duration
		b.forward(&f)
	}
}

// forward sends one frame. Without a service it waits: the session's own queue
// holds the newest second of audio meanwhile, so that a short absence costs
// nothing.
func (b *Bridge) forward(f *transceiver.Frame) {
	var dead *link
	for {
		l := b.ready(dead)
		if l == nil || b.tryForward(f) {
			return
		}
		dead = l
	}
}

// tryForward sends a frame or counts it as missed. It reports false when there
// is no service; a frame that could not be written whole was not received.
func (b *Bridge) tryForward(f *transceiver.Frame) bool {
	g := &b.gap
	g.mu.Lock()
	defer g.mu.Unlock()
	l := b.link.Load()
	if l == nil {
		return false
	}
	if l.stalled() {
		g.miss(b, f)
		return true
	}
	if f.Lost > 0 {
		g.overran(b)
	}
	err := error(nil)
	if g.frames > 0 {
		err = g.tell(l, missedNotReading)
	}
	if err == nil {
		err = l.sendFrame(f, g)
	}
	if err != nil {
		l.fail(err)
		return false
	}
	g.carry, g.position = 0, f.Time+f.Duration
	b.framesToService.Add(1)
	l.framesSent.Add(1)
	return true
}

// sendFrame writes a frame in the connection's codec.
func (l *link) sendFrame(f *transceiver.Frame, g *gap) error {
	h := Header{Kind: KindAudio, Duration: f.Duration, Lost: addLost(g.carry, f.Lost), Time: f.Time}
	if f.HasLevel {
		h.Flags, h.Level = FlagLevel, f.Level
		if f.Voice {
			h.Flags |= FlagVoice
		}
	}
	if l.codec == nil {
		return l.sock.writeFrame(&h, f.Payload)
	}
	if h.Lost > 0 && h.Lost <= maxConcealed && g.position > 0 {
		if err := l.conceal(f, g.position, int(h.Lost)); err != nil {
			return err
		}
		h.Lost = 0
	}
	var err error
	if l.pcm, err = l.decoder.Decode(l.pcm[:0], f.Payload); err != nil {
		// A client's packet that is no Opus is as good as lost.
		l.pcm, h.Flags = l.pcm[:0], FlagConcealed
		if l.pcm, err = l.decoder.Conceal(l.pcm, nil); err != nil {
			return fmt.Errorf("bridge: decoder: %w", err)
		}
	}
	h.Duration = pcmDuration(len(l.pcm), l.codec.Rate())
	return l.sock.writeFrame(&h, l.pcm)
}

// conceal sends what a decoder makes up for lost packets, as much of it as
// there is room for in time.
func (l *link) conceal(f *transceiver.Frame, position time.Duration, lost int) error {
	h := Header{Kind: KindAudio, Flags: FlagConcealed, Duration: frameDuration}
	for i := lost; i > 0; i-- {
		h.Time = f.Time - time.Duration(i)*frameDuration
		if h.Time < position {
			continue
		}
		var next []byte
		if i == 1 {
			next = f.Payload
		}
		var err error
		if l.pcm, err = l.decoder.Conceal(l.pcm[:0], next); err != nil {
			return nil // the time stamps tell of the hole
		}
		if err := l.sock.writeFrame(&h, l.pcm); err != nil {
			return err
		}
	}
	return nil
}

// pumpEvents passes the client's events on. While no service has the session
// they wait, and hold the client up.
func (b *Bridge) pumpEvents() {
	for {
		if b.ready(nil) == nil {
			return
		}
		ev, err := b.events.Next(b.ctx)
		if err != nil {
			return
		}
		// One that could not be written whole was not received either.
		var l, dead *link
		for {
			if l = b.ready(dead); l == nil {
				return
			}
			if err = l.sendEvent(&ev); err == nil {
				break
			}
			l.fail(err)
			dead = l
		}
		b.eventsToService.Add(1)
		l.eventsSent.Add(1)
	}
}

func (l *link) sendEvent(ev *transceiver.Event) error {
	h := Header{Kind: KindEventBinary}
	if ev.Text {
		h.Kind = KindEventText
	}
	l.b.gap.mu.Lock()
	h.Time = l.b.gap.position
	l.b.gap.mu.Unlock()
	return l.sock.writeFrame(&h, ev.Data)
}

// The downlink holds events for a client that reads slowly, so that neither
// audio nor an interruption waits behind them.
const (
	maxDownEvents = 256
	maxDownBytes  = 256 << 10
)

type downlink struct {
	b *Bridge

	mu      sync.Mutex
	waiting []transceiver.Event
	bytes   int
	running bool
}

// send queues an event for the client, or drops it when there is no room.
func (d *downlink) send(text bool, payload []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.waiting) >= maxDownEvents || d.bytes+len(payload) > maxDownBytes {
		d.b.eventsDropped.Add(1)
		d.b.playout.drop(whatEvent, "the client does not read", 0)
		return
	}
	d.waiting = append(d.waiting, transceiver.Event{Text: text, Data: append([]byte(nil), payload...)})
	d.bytes += len(payload)
	if !d.running {
		d.running = true
		d.b.session.run(func(context.Context) { d.run() })
	}
}

// run sends until nothing waits.
func (d *downlink) run() {
	for {
		d.mu.Lock()
		if len(d.waiting) == 0 {
			d.running, d.waiting = false, nil
			d.mu.Unlock()
			return
		}
		ev := d.waiting[0]
		d.waiting = d.waiting[1:]
		d.bytes -= len(ev.Data)
		d.mu.Unlock()
		if err := d.b.events.Send(d.b.ctx, ev); err != nil {
			d.b.eventsDropped.Add(1)
			d.b.playout.drop(whatEvent, "the client's data channel is closed", 0)
		}
	}
}
