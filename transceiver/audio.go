package transceiver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pion/sdp/v3"
	"github.com/pion/webrtc/v4"

	"github.com/usher-rtc/usher/internal/config"
)

var (
	// ErrOpen is what OpenAudio and OpenEvents return when they were called before.
	ErrOpen = errors.New("transceiver: is open already")
	// ErrAnswered is what OpenAudio and OpenEvents return outside OnSession
	// and Prepare: the answer has been made.
	ErrAnswered = errors.New("transceiver: the answer has been made already")
	// ErrNoOpus is what OpenAudio returns when the offer has no audio section
	// with Opus in it.
	ErrNoOpus = errors.New("transceiver: the offer has no Opus")
	// ErrFrame is what Audio.Write returns for bytes that are not one Opus
	// packet of at most 1,275 bytes.
	ErrFrame = errors.New("transceiver: not an Opus packet")
	// ErrNotListening is what Audio.Write returns when the client's offer says
	// that it takes no audio.
	ErrNotListening = errors.New("transceiver: the client takes no audio")
	// ErrInterrupted is what an Audio.Write returns that was waiting for room
	// when Interrupt was called. Its frame was dropped with the others.
	ErrInterrupted = errors.New("transceiver: interrupted")
)

// AudioConfig configures Session.OpenAudio. The zero value of every field is
// its documented default.
type AudioConfig struct {
	// JitterBuffer is how long a packet may be held back while an earlier one
	// is missing. Packets in order are never delayed, so that is also the
	// longest delay it causes. 0 means none: a gap is reported as lost with
	// the next packet, and what comes late is dropped. At most 1 s.
	JitterBuffer time.Duration
	// ReceiveQueue is how many frames may wait for Next. A reader that is too
	// slow loses the oldest, which the next frame reports as lost. 0 means 50:
	// 1 s of 20 ms frames.
	ReceiveQueue int
	// SendQueue is how much audio may wait to be sent before Write blocks. 0
	// means 10 s, at most 10 min. Whoever reads audio and interruptions from
	// one connection wants room for the longest answer here, since a blocked
	// Write would hold up the interruption behind it.
	SendQueue time.Duration
	// Comfort is how much silence is sent when the queue runs dry: 20 ms
	// frames of it, from 40 ms after the next frame was due, or at once after
	// Interrupt and Mute. A decoder that gets nothing in mid-speech
	// extrapolates, which sounds like a robot; a few frames of silence bring
	// it to rest. After that nothing is sent until the next frame, which
	// carries the marker bit and a timestamp that tells how long the silence
	// was. 0 means 100 ms. Negative: nothing is sent.
	Comfort time.Duration
}

const (
	defaultReceiveQueue = 50
	defaultSendQueue    = 10 * time.Second
	defaultComfort      = 100 * time.Millisecond
	maxJitterBuffer     = time.Second
	maxReceiveQueue     = 10000
	maxSendQueue        = 10 * time.Minute
)

// Validate returns what is wrong with the fields, as Session.OpenAudio would: a
// *ConfigError, or nil.
func (c AudioConfig) Validate() error { return c.validate() }

func (c *AudioConfig) validate() error {
	switch {
	case c.JitterBuffer < 0 || c.JitterBuffer > maxJitterBuffer:
		return config.Errorf("JitterBuffer", "%v is outside 0 to %v", c.JitterBuffer, maxJitterBuffer)
	case c.ReceiveQueue < 0 || c.ReceiveQueue > maxReceiveQueue:
		return config.Errorf("ReceiveQueue", "%d is outside 0 to %d", c.ReceiveQueue, maxReceiveQueue)
	case c.SendQueue < 0 || c.SendQueue > maxSendQueue:
		return config.Errorf("SendQueue", "%v is outside 0 to %v", c.SendQueue, maxSendQueue)
	}
	set(&c.ReceiveQueue, defaultReceiveQueue)
	set(&c.SendQueue, defaultSendQueue)
	set(&c.Comfort, defaultComfort)
	c.Comfort = max(c.Comfort, 0)
	return nil
}

// Frame is one Opus packet of the client's.
type Frame struct {
	// Payload is one Opus packet (RFC 6716). It is valid until the next call
	// of Next on the same Audio.
	Payload []byte
	// Time is the media time of its beginning since the first frame of the
	// track, from the RTP timestamps. A frame that begins later than the one
	// before ended, with none lost between, follows a silence that the client
	// did not send (DTX).
	Time time.Duration
	// Duration is how much sound it holds.
	Duration time.Duration
	// Lost is how many packets are missing right before it: lost on the way,
	// too late, or dropped because the reader was too slow.
	Lost int
	// Level is the loudness in -dBov, 0 (loudest) to 127 (silence), as the
	// client measured it (RFC 6464), so that voice activity costs no decoder.
	// Browsers send it; HasLevel is false for a client that does not.
	Level uint8
	// Voice is the client's own judgement of whether somebody speaks.
	Voice bool
	// HasLevel tells whether Level and Voice mean anything.
	HasLevel bool
}

// Interrupted is what Audio.Interrupt cut off.
type Interrupted struct {
	// Played is how much of the present utterance had left: all frames since
	// the last Interrupt, or since the queue was last empty for a second. The
	// client's own jitter buffer holds the last of it, often 40 to 100 ms,
	// when Interrupt returns.
	Played time.Duration
	// Dropped is how much was queued and will never be sent.
	Dropped time.Duration
}

// AudioStats are the numbers of a session's audio.
type AudioStats struct {
	// RoundTrip is the time to the client's RTP stack and back, from its
	// newest receiver report (RFC 3550 section 6.4.1), 0 until there was one.
	// SessionStats.RTT has the round trip of the ICE checks, which comes sooner.
	RoundTrip time.Duration

	Received   uint64        // Opus packets that came, in time or not
	Lost       uint64        // packets that never came, or too late
	Late       uint64        // of these, the ones that came too late, or twice
	Overrun    uint64        // packets dropped because the reader was too slow
	Ignored    uint64        // packets that hold no Opus: padding, another payload type, malformed
	JitterIn   time.Duration // of the packets' arrival (RFC 3550 section 6.4.1)
	QueuedIn   int           // frames that wait for Next
	Sent       uint64        // Opus packets sent, comfort included
	Comfort    uint64        // of these, silence that filled a stall
	LostOut    uint64        // of these, lost, as the client reports
	JitterOut  time.Duration // as the client reports
	QueuedOut  time.Duration // audio that waits to be sent
	Played     time.Duration // audio that was sent, or its time passed while muted
	Dropped    time.Duration // audio that Interrupt dropped
	Interrupts uint64        // calls of Interrupt that dropped something
}

// Audio is the audio of a session: the client's microphone as a stream of Opus
// frames, and a paced queue to its loudspeaker. All methods are safe for
// concurrent use, but Next and Frames are for one goroutine at a time.
type Audio struct {
	s       *Session
	in      audioIn
	out     audioOut
	reports audioReports
	reading atomic.Bool // a track of the client's is being read
	listens bool        // the client takes audio
}

// OpenAudio adds an outgoing Opus track to the answer and takes the client's
// first Opus track; OnTrack gets the others. Call it in OnSession or Prepare.
// It returns ErrNoOpus when the offer has no audio section with Opus. It costs
// two goroutines: one reads the track, the other the client's reports.
//
// A Config.MediaEngine of your own has to register the audio level extension
// (RFC 6464) for Frame.Level.
func (s *Session) OpenAudio(cfg AudioConfig) (*Audio, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if s.pc.SignalingState() != webrtc.SignalingStateHaveRemoteOffer || s.pc.CurrentLocalDescription() != nil {
		return nil, ErrAnswered
	}
	listens, ok := s.offersOpus()
	if !ok {
		return nil, ErrNoOpus
	}
	p, err := s.host.pacerFor(s.shard)
	if err != nil {
		return nil, err
	}
	a := &Audio{s: s, listens: listens}
	a.in = audioIn{hold: cfg.JitterBuffer, limit: cfg.ReceiveQueue, stop: s.ctx.Done(), stopErr: s.Err}
	a.in.init()
	a.out = audioOut{
		pacer: p, limit: cfg.SendQueue, comfort: cfg.Comfort, stop: s.ctx.Done(), stopErr: s.Err,
		up: func() bool { return s.connectedAt.Load() != 0 }, sentNow: a.reports.packet,
	}
	a.out.init()
	a.reports = audioReports{
		enabled: s.host.cfg.NewAPI == nil, cname: s.id, write: s.pc.WriteRTCP,
		in: &a.in, out: &a.out, created: s.created,
	}
	if !s.handlers.audio.CompareAndSwap(nil, a) {
		return nil, ErrOpen
	}
	if listens {
		sender, err := s.pc.AddTrack(audioTrack{a})
		if err != nil {
			return nil, fmt.Errorf("transceiver: add the audio track: %w", err)
		}
		s.Go(func(context.Context) { a.readReports(sender) })
	}
	s.pc.OnTrack(s.onTrack)
	return a, nil
}

// offersOpus looks for the first audio section of the offer that Opus can be
// answered to, and tells whether the client wants to hear something there.
func (s *Session) offersOpus() (listens, ok bool) {
	offer := s.pc.PendingRemoteDescription()
	for _, t := range s.pc.GetTransceivers() {
		if offer == nil || t.Kind() != webrtc.RTPCodecTypeAudio || t.Receiver() == nil {
			continue
		}
		for _, c := range t.Receiver().GetParameters().Codecs {
			if strings.EqualFold(c.MimeType, webrtc.MimeTypeOpus) {
				return takesMedia(offer.SDP, t.Mid()), true
			}
		}
	}
	return false, false
}

// takesMedia reads the direction of a section (RFC 8866 section 6.7).
func takesMedia(offer, mid string) bool {
	var desc sdp.SessionDescription
	if desc.UnmarshalString(offer) != nil {
		return false
	}
	for _, m := range desc.MediaDescriptions {
		if v, ok := m.Attribute("mid"); ok && v == mid {
			_, sends := m.Attribute("sendonly")
			_, inactive := m.Attribute("inactive")
			return !sends && !inactive
		}
	}
	return false
}

// take reads a track of the client's, if it is the one for the Audio, and
// reports whether it was.
func (a *Audio) take(track *webrtc.TrackRemote, receiver *webrtc.RTPReceiver) bool {
	if !strings.EqualFold(track.Codec().MimeType, webrtc.MimeTypeOpus) || !a.reading.CompareAndSwap(false, true) {
		return false
	}
	defer a.reading.Store(false)
	if !a.s.enter() {
		return true
	}
	defer a.s.work.Done()
	level := uint8(0)
	for _, e := range receiver.GetParameters().HeaderExtensions {
		if e.URI == audioLevelURI {
			level = uint8(e.ID)
		}
	}
	a.in.begin(uint32(track.SSRC()), uint8(track.PayloadType()), level)
	defer a.in.finish()
	for buf := make([]byte, slotSize); ; {
		n, _, err := track.Read(buf)
		if n == 0 && err != nil {
			return true
		}
		// An error with data is about a payload type that was not negotiated.
		now := time.Now()
		a.in.receive(now, buf[:n])
		a.reports.packet(now)
	}
}

// readReports reads the client's reports, which is also what makes Pion's
// interceptors see them, if there are any.
func (a *Audio) readReports(sender *webrtc.RTPSender) {
	for buf := make([]byte, slotSize); ; {
		n, _, err := sender.Read(buf)
		if err != nil {
			return
		}
		a.reports.handle(time.Now(), buf[:n], a.out.ssrc())
	}
}

// audioTrack is the webrtc.TrackLocal of an Audio. Pion's own ones copy each
// packet's header and allocate for each write.
type audioTrack struct{ a *Audio }

// Bind implements webrtc.TrackLocal.
func (t audioTrack) Bind(c webrtc.TrackLocalContext) (webrtc.RTPCodecParameters, error) {
	for _, codec := range c.CodecParameters() {
		if strings.EqualFold(codec.MimeType, webrtc.MimeTypeOpus) {
			t.a.out.bind(c.WriteStream(), uint32(c.SSRC()), uint8(codec.PayloadType))
			return codec, nil
		}
	}
	return webrtc.RTPCodecParameters{}, webrtc.ErrUnsupportedCodec
}

// Unbind implements webrtc.TrackLocal.
func (t audioTrack) Unbind(webrtc.TrackLocalContext) error {
	t.a.out.unbind()
	return nil
}

// ID implements webrtc.TrackLocal.
func (t audioTrack) ID() string { return "audio" }

// RID implements webrtc.TrackLocal.
func (t audioTrack) RID() string { return "" }

// StreamID implements webrtc.TrackLocal. It is also the RTCP CNAME.
func (t audioTrack) StreamID() string { return t.a.s.id }

// Kind implements webrtc.TrackLocal.
func (t audioTrack) Kind() webrtc.RTPCodecType { return webrtc.RTPCodecTypeAudio }

// Next returns the client's next frame. It waits for one, until ctx is done,
// the session ends (its *EndError, once all frames that came have been
// returned), or the track ended: io.EOF. After io.EOF it waits for the client's
// next Opus track, which begins at Time 0 again.
func (a *Audio) Next(ctx context.Context) (Frame, error) { return a.in.next(ctx) }

// Frames ranges over Next. The last pair holds the error that ended it, except
// io.EOF, which just ends it.
func (a *Audio) Frames(ctx context.Context) iter.Seq2[Frame, error] {
	return func(yield func(Frame, error) bool) {
		for {
			f, err := a.Next(ctx)
			if errors.Is(err, io.EOF) {
				return
			}
			if !yield(f, err) || err != nil {
				return
			}
		}
	}
}

// Write queues a copy of one Opus packet of any duration. Packets leave in
// order, each as long after the one before as that one lasts: at once if
// nothing is queued and it is time. It blocks while the queue is full, until
// ctx is done or the session ends. An interruption ends the wait with
// ErrInterrupted. Before the client is connected packets just queue up.
//
// Write returns ErrFrame for bytes that are no Opus packet, and ErrNotListening
// if the client's offer was to send only.
//
// A packet of one or two bytes is an encoder's sign that there is nothing to
// say (DTX). Its time passes, but only the first of several is sent.
func (a *Audio) Write(ctx context.Context, opus []byte) error {
	if !a.listens {
		return ErrNotListening
	}
	return a.out.write(ctx, opus)
}

// Interrupt drops everything that is queued and tells how much was played and
// dropped: barge-in. Once it has returned nothing that was written before is
// sent. The next Write begins a new utterance.
func (a *Audio) Interrupt() Interrupted { return a.out.interrupt() }

// Wait returns when everything that was queued has been sent and its time has
// passed, or Interrupt has dropped it; with an error when ctx is done or the
// session ends before.
func (a *Audio) Wait(ctx context.Context) error { return a.out.wait(ctx) }

// Mute makes the queue play on without a sound: its time passes, but nothing
// is sent. It does not touch what comes in.
func (a *Audio) Mute(mute bool) { a.out.mute(mute) }

// Stats returns the numbers as of now.
func (a *Audio) Stats() AudioStats {
	var st AudioStats
	a.in.stats(&st)
	a.out.stats(&st)
	a.reports.stats(&st)
	return st
}
