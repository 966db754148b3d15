package bridge

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/usher-rtc/usher/internal/config"
	"github.com/usher-rtc/usher/transceiver"
)

// audioPort is what a bridge needs of a transceiver.Audio.
type audioPort interface {
	Next(context.Context) (transceiver.Frame, error)
	Write(context.Context, []byte) error
	Interrupt() transceiver.Interrupted
	Stats() transceiver.AudioStats
}

// eventPort is what a bridge needs of a transceiver.Events.
type eventPort interface {
	Next(context.Context) (transceiver.Event, error)
	Send(context.Context, transceiver.Event) error
}

// sessionPort is what a bridge needs of a transceiver.Session.
type sessionPort struct {
	id        string
	ctx       context.Context
	connected <-chan struct{}
	run       func(func(context.Context)) // on a goroutine of the session
	reason    func() string               // why it ended
	close     func()
	describe  func(*start)
}

// Bridge connects one session to a service. All methods are safe for
// concurrent use.
type Bridge struct {
	cfg     Config
	pick    func(ctx context.Context, attempt int) (Target, error)
	session sessionPort
	audio   audioPort
	events  eventPort
	token   string

	ctx    context.Context
	cancel context.CancelFunc
	taken  atomic.Bool // somebody sees to the end
	done   chan struct{}

	link    atomic.Pointer[link] // the connection that is ready, or nil
	gap     gap
	playout playout
	down    downlink

	mu          sync.Mutex
	state       State
	err         error
	connections int
	up          chan struct{} // closed while a connection is ready
	changes     []Change      // that OnState has not had
	changed     chan struct{} // there is one
	telling     atomic.Bool   // somebody calls OnState
	told        chan struct{} // closed when OnState has had the last one
	openAudio   *transceiver.Audio
	openEvents  *transceiver.Events

	framesToService, framesMissed, framesUnconfirmed atomic.Uint64
	framesFromService, framesDropped                 atomic.Uint64
	eventsToService                                  atomic.Uint64
	eventsFromService, eventsDropped                 atomic.Uint64
	roundTrip                                        atomic.Int64
}

// Attach gives a session to a service: it opens the session's audio and
// events, connects when the client has, and passes everything on until the
// session ends. Call it in transceiver.Config.OnSession or Prepare, and neither
// read nor write the session's audio besides. It returns a *ConfigError, or
// what Session.OpenAudio and OpenEvents return. It costs three goroutines, and
// one more with OnState.
func Attach(s *transceiver.Session, cfg Config) (*Bridge, error) {
	if err := cfg.validate(); err != nil {
		return nil, config.In("bridge.Config", err)
	}
	if n := len(s.Metadata()); n > maxMetadata {
		// The client's fault, and signalling tells it so.
		return nil, fmt.Errorf("%w (%w)", config.Errorf("Metadata", "of the session has %d bytes, a service takes at most %d", n, maxMetadata),
			&transceiver.StatusError{Status: http.StatusRequestEntityTooLarge, Reason: fmt.Sprintf("session data of at most %d bytes are taken", maxMetadata)})
	}
	audio, err := s.OpenAudio(cfg.Audio)
	if err != nil {
		return nil, err
	}
	events, err := s.OpenEvents(cfg.Events)
	if err != nil {
		return nil, err
	}
	pick := func(context.Context, int) (Target, error) { return cfg.Target, nil }
	if cfg.Select != nil {
		pick = func(ctx context.Context, attempt int) (Target, error) { return cfg.Select(ctx, s, attempt) }
	}
	b := newBridge(cfg, sessionPort{
		id:        s.ID(),
		ctx:       s.Context(),
		connected: s.Connected(),
		run:       s.Go,
		reason:    func() string { return s.CloseReason().String() },
		close:     func() { _ = s.Close() },
		describe: func(m *start) {
			m.Session, m.Metadata = s.ID(), s.Metadata()
			m.Route, m.Ingress = routeInfo(s.Route()), s.Stats().Ingress
			if addr := s.ClientAddr(); addr.IsValid() {
				m.Client = addr.String()
			}
		},
	}, audio, events, pick)
	b.openAudio, b.openEvents = audio, events
	b.begin()
	return b, nil
}

func newBridge(cfg Config, s sessionPort, audio audioPort, events eventPort, pick func(context.Context, int) (Target, error)) *Bridge {
	b := &Bridge{
		cfg: cfg, pick: pick, session: s, audio: audio, events: events,
		token: rand.Text(), done: make(chan struct{}), up: make(chan struct{}), changed: make(chan struct{}, 1), told: make(chan struct{}),
	}
	b.ctx, b.cancel = context.WithCancel(s.ctx)
	b.playout.init(b)
	b.down.b = b
	return b
}

func (b *Bridge) begin() {
	// A session that has ended meanwhile runs nothing any more.
	context.AfterFunc(b.session.ctx, func() {
		if b.taken.CompareAndSwap(false, true) {
			b.finish(b.over())
		}
	})
	b.session.run(func(context.Context) { b.run() })
	if b.cfg.OnState != nil {
		b.session.run(func(context.Context) { b.tellChanges() })
	}
	b.session.run(func(context.Context) { b.pumpAudio() })
	b.session.run(func(context.Context) { b.pumpEvents() })
}

// Audio returns the session's audio, for its statistics and to mute it.
func (b *Bridge) Audio() *transceiver.Audio { return b.openAudio }

// Events returns the session's data channel, for events of the application's
// own, such as "the service is reconnecting". What the client sends goes to
// the service; do not call Next.
func (b *Bridge) Events() *transceiver.Events { return b.openEvents }

// Done is closed when the bridge has ended: with its session, because the
// service said so, or because none could be reached.
func (b *Bridge) Done() <-chan struct{} { return b.done }

// Err returns nil until Done is closed, and then why: an *EndError when the
// service ended the session, an error that wraps ErrGivenUp, or what the
// session's Err says.
func (b *Bridge) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// State returns the present state.
func (b *Bridge) State() State {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}

// Close takes the session away from the service, which is told so, and leaves
// the session alone. It returns at once; wait for Done.
func (b *Bridge) Close() error {
	b.mu.Lock()
	b.cfg.KeepSession = true
	b.mu.Unlock()
	b.cancel()
	return nil
}

// Stats returns the numbers as of now.
func (b *Bridge) Stats() Stats {
	b.mu.Lock()
	st := Stats{State: b.state, Connections: b.connections}
	b.mu.Unlock()
	st.RoundTrip = time.Duration(b.roundTrip.Load())
	st.FramesToService, st.FramesMissed, st.FramesUnconfirmed = b.framesToService.Load(), b.framesMissed.Load(), b.framesUnconfirmed.Load()
	st.FramesFromService, st.FramesDropped = b.framesFromService.Load(), b.framesDropped.Load()
	st.EventsToService, st.EventsFromService, st.EventsDropped = b.eventsToService.Load(), b.eventsFromService.Load(), b.eventsDropped.Load()
	return st
}

func (b *Bridge) change(c Change) {
	b.mu.Lock()
	b.state = c.State
	c.Connection = b.connections
	if len(b.changes) == maxChanges {
		b.changes = append(b.changes[:0], b.changes[1:]...)
	}
	b.changes = append(b.changes, c)
	b.mu.Unlock()
	wake(b.changed)
}

// tellChanges calls OnState until the bridge has ended, if nobody does so yet.
func (b *Bridge) tellChanges() {
	if !b.telling.CompareAndSwap(false, true) {
		return
	}
	defer close(b.told)
	for {
		<-b.changed
		for {
			b.mu.Lock()
			if len(b.changes) == 0 {
				b.mu.Unlock()
				break
			}
			c := b.changes[0]
			b.changes = append(b.changes[:0], b.changes[1:]...)
			b.mu.Unlock()
			b.cfg.OnState(b, c)
			if c.State == StateEnded {
				return
			}
		}
	}
}

// run keeps a connection to a service until the session is over.
func (b *Bridge) run() {
	if b.taken.CompareAndSwap(false, true) {
		b.finish(b.keepConnected())
	}
}

// finish is the end of the bridge, for a reason.
func (b *Bridge) finish(err error) {
	defer close(b.done)
	b.cancel()
	b.playout.stop()
	b.mu.Lock()
	b.err = err
	keep := b.cfg.KeepSession
	b.mu.Unlock()
	b.change(Change{State: StateEnded, Err: err})
	if b.cfg.OnState != nil {
		go b.tellChanges() // a session that has ended runs nothing any more
		limit := time.NewTimer(lastWord)
		defer limit.Stop()
		select {
		case <-b.told:
		case <-limit.C:
		}
	}
	if !keep {
		b.session.close() // does nothing if it has ended
	}
}

func (b *Bridge) keepConnected() error {
	select {
	case <-b.session.connected:
	case <-b.ctx.Done():
		return b.over()
	}
	var last error
	var downSince time.Time // zero: the last connection was good
	attempt := 0
	for {
		state := StateConnecting
		if b.Stats().Connections > 0 {
			state = StateReconnecting
		}
		b.change(Change{State: state, Attempt: attempt, Err: last})
		lasted, err := b.connection(attempt, last)
		var ended *EndError
		switch {
		case b.ctx.Err() != nil:
			return b.over()
		case errors.As(err, &ended):
			b.cfg.Logger.Info("a session's service ended it", "session", b.session.id, "reason", ended.Reason)
			return err
		}
		b.cfg.Logger.Info("a session's service was lost", "session", b.session.id, "attempt", attempt, "err", err)
		if lasted >= stableAfter {
			attempt, downSince = 0, time.Time{}
		}
		if downSince.IsZero() {
			downSince = time.Now()
		} else if time.Since(downSince) >= b.cfg.GiveUpAfter {
			return fmt.Errorf("%w for %v: %w", ErrGivenUp, b.cfg.GiveUpAfter, err)
		}
		wait := time.NewTimer(backoff(attempt, err))
		select {
		case <-wait.C:
		case <-b.ctx.Done():
			wait.Stop()
			return b.over()
		}
		last = err
		attempt++
	}
}

// over is the error of a bridge that ended with its session, or by Close.
func (b *Bridge) over() error {
	if b.session.ctx.Err() == nil {
		return context.Canceled
	}
	return &EndError{Reason: b.session.reason()}
}

// backoff is the wait before the next attempt. Whoever announced a restart has
// another instance in its place already.
func backoff(attempt int, err error) time.Duration {
	if attempt == 0 && errors.Is(err, ErrRestart) {
		return 0
	}
	d := min(firstBackoff<<min(attempt, 16), maxBackoff)
	return d/2 + mathrand.N(d/2)
}

// connection makes one connection and serves it until it ends, which is always
// an error. It returns how long the service was ready.
func (b *Bridge) connection(attempt int, last error) (lasted time.Duration, err error) {
	ctx, cancel := context.WithTimeout(b.ctx, b.cfg.DialTimeout)
	defer cancel()
	target, err := b.pick(ctx, attempt)
	if err != nil {
		return 0, err
	}
	l := &link{b: b, gone: make(chan struct{})}
	l.sock, err = dial(ctx, b.cfg.HTTPClient, target, l.pong)
	if err != nil {
		return 0, err
	}
	// A session that ends says so, whatever the connection is doing.
	stop := context.AfterFunc(b.ctx, l.goodbye)
	defer stop()
	if err := l.handshake(last); err != nil {
		l.close(err)
		return 0, err
	}
	began := time.Now()
	b.attachLink(l)
	err = l.serve()
	b.detachLink(l)
	l.close(err)
	return time.Since(began), err
}

// attachLink makes a connection the one that is used. What was missed is the
// first that it carries.
func (b *Bridge) attachLink(l *link) {
	b.mu.Lock()
	b.connections++
	n := b.connections
	up := b.up
	b.mu.Unlock()
	l.keepalive.begin(l)
	b.gap.mu.Lock()
	b.gap.overran(b)
	reason := missedReconnecting
	if n == 1 {
		reason = missedConnecting
	}
	if n > 1 || b.gap.frames > 0 {
		_ = b.gap.tell(l, reason) // an error shows in serve
	}
	b.link.Store(l)
	b.gap.mu.Unlock()
	close(up)
	b.change(Change{State: StateReady})
}

func (b *Bridge) detachLink(l *link) {
	l.keepalive.end()
	b.mu.Lock()
	b.up = make(chan struct{})
	b.mu.Unlock()
	b.link.Store(nil)
	b.playout.detach()
	// A pump may still be writing, to a service that does not read.
	limit := time.AfterFunc(closeLimit, func() { _ = l.sock.raw.Close() })
	b.gap.mu.Lock()
	limit.Stop()
	defer b.gap.mu.Unlock()
	frames, events := l.unconfirmed()
	b.framesUnconfirmed.Add(frames)
	b.gap.unconfirmedFrames += frames
	b.gap.unconfirmedEvents += events
}

// ready waits for a connection other than the one given, nil when the bridge
// has ended.
func (b *Bridge) ready(other *link) *link {
	for {
		b.mu.Lock()
		up := b.up
		b.mu.Unlock()
		select {
		case <-up:
		case <-b.ctx.Done():
			return nil
		}
		l := b.link.Load()
		if l != nil && l != other {
			return l
		}
		if l == nil {
			continue // it was lost this moment; up is a new channel now
		}
		select {
		case <-l.gone:
		case <-b.ctx.Done():
			return nil
		}
	}
}
