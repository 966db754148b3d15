package transceiver

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pion/webrtc/v4"

	"github.com/usher-rtc/usher/ufrag"
)

// teardownLimit is how long the end of a session waits for the application's
// callbacks and goroutines before it is logged and the rest goes on without them.
const teardownLimit = 5 * time.Second

// Session is one client's call. All methods are safe for concurrent use.
//
// Application code that runs through OnTrack, OnDataChannel and Go is
// protected: a panic in it ends this session with ReasonPanic. Handlers set on
// the PeerConnection itself run on Pion's goroutines, where a panic ends the
// process, unless they begin with `defer session.Recover()`.
type Session struct {
	host      *Host
	shard     *shard
	id        string
	token     string // makes the signalling resource unguessable
	resource  string // the ufrag of the first answer, in the resource's path
	metadata  json.RawMessage
	ingresses []Ingress

	ctx    context.Context
	cancel context.CancelFunc
	pc     *webrtc.PeerConnection
	conn   *virtualConn

	front front // the client's side: ICE, paths, timers

	handlers handlers // of the client's tracks and data channels
	bounds   bounds

	negotiation sync.Mutex // one offer at a time; guards the next four
	ice         credentials
	pending     *serverOffer // the Host's own offer that has no answer yet
	wanted      *wanted      // what the Host waits for the client to do
	offers      uint64       // ever made by the Host
	first       identity     // what the first offer said; written before the session is shared
	signals     signals

	connected     chan struct{}
	connectedOnce sync.Once
	connectedAt   atomic.Int64 // nanoseconds since created, 0 until DTLS is up

	ending  atomic.Bool
	endMu   sync.Mutex
	end     *EndError
	done    chan struct{}
	work    sync.WaitGroup // the application's goroutines
	handler sync.Mutex     // guards work.Add against the end
	created time.Time
}

// ID returns a random name of the session for logs, not a secret.
func (s *Session) ID() string { return s.id }

// PeerConnection returns the Pion PeerConnection, for tracks, data channels
// and statistics. Its remote address is a stand-in: use ClientAddr. Use Close
// of the Session to end it.
func (s *Session) PeerConnection() *webrtc.PeerConnection { return s.pc }

// Context is done when the session begins to end, for whatever reason.
func (s *Session) Context() context.Context { return s.ctx }

// Done is closed when the session has ended and everything that belongs to it
// has stopped.
func (s *Session) Done() <-chan struct{} { return s.done }

// Connected is closed when the DTLS association is up: media and data flow.
// It stays open if the session ends before.
func (s *Session) Connected() <-chan struct{} { return s.connected }

// Metadata returns what came with the offer: AcceptOptions.Metadata, or the
// `session` field of the signalling request. It must not be changed.
func (s *Session) Metadata() json.RawMessage { return s.metadata }

// CloseReason returns why the session ended, ReasonNone while it has not.
func (s *Session) CloseReason() Reason {
	s.endMu.Lock()
	defer s.endMu.Unlock()
	if s.end == nil {
		return ReasonNone
	}
	return s.end.Reason
}

// Err returns nil until the session ends, then an *EndError.
func (s *Session) Err() error {
	s.endMu.Lock()
	defer s.endMu.Unlock()
	if s.end == nil {
		return nil
	}
	return s.end
}

// Close ends the session with ReasonServer. It returns at once, so it may be
// called from anywhere, also from a callback; wait for Done to know that
// everything has stopped. Further calls do nothing.
func (s *Session) Close() error {
	s.finish(ReasonServer, nil)
	return nil
}

// CloseWithReason is Close, and tells the client why over its signalling
// (docs/signalling.md): one line, of which 200 bytes are sent.
func (s *Session) CloseWithReason(reason string) {
	s.finish(ReasonServer, errors.New(oneLine(reason)))
}

// Route returns the route in the newest ufrag.
func (s *Session) Route() ufrag.Route {
	s.front.mu.Lock()
	defer s.front.mu.Unlock()
	return s.front.route
}

// Ufrag returns the newest routed ufrag, as in the last answer.
func (s *Session) Ufrag() string {
	s.front.mu.Lock()
	defer s.front.mu.Unlock()
	return s.front.ufrag
}

// ClientAddr returns the client's address as the outermost relay sees it now,
// the zero value until its first authenticated check.
func (s *Session) ClientAddr() netip.AddrPort {
	path := s.front.selected()
	return path.Client
}

// Go runs f on a goroutine of the session. f must return soon after its
// context is done. A panic ends the session with ReasonPanic. After the end f
// is not run at all.
func (s *Session) Go(f func(ctx context.Context)) {
	if !s.enter() {
		return
	}
	go func() {
		defer s.work.Done()
		defer s.Recover()
		f(s.ctx)
	}()
}

// enter makes the end of the session wait for work.Done. It reports false if
// the end has begun.
func (s *Session) enter() bool {
	s.handler.Lock()
	defer s.handler.Unlock()
	if s.ending.Load() {
		return false
	}
	s.work.Add(1)
	return true
}

// Recover is for `defer session.Recover()` at the top of a handler that is set
// on the PeerConnection: it stops a panic and ends the session with ReasonPanic.
func (s *Session) Recover() {
	if v := recover(); v != nil {
		_ = s.panicked(v) // whoever waits for the session gets it
	}
}

func (s *Session) panicked(v any) error {
	err := fmt.Errorf("%w: %v", ErrPanic, v)
	s.host.log.Error("panic in a session's callback", "session", s.id, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	s.finish(ReasonPanic, err)
	return err
}

// handlers share out what the client opens.
type handlers struct {
	track   atomic.Pointer[func(*webrtc.TrackRemote, *webrtc.RTPReceiver)]
	channel atomic.Pointer[func(*webrtc.DataChannel)]
	audio   atomic.Pointer[Audio]
	events  atomic.Pointer[Events]
}

// OnTrack sets the handler for the client's tracks, except what OpenAudio
// takes. It runs on a goroutine of its own for each track and may block until
// the track ends.
func (s *Session) OnTrack(f func(*webrtc.TrackRemote, *webrtc.RTPReceiver)) {
	s.handlers.track.Store(&f)
	s.pc.OnTrack(s.onTrack)
}

func (s *Session) onTrack(t *webrtc.TrackRemote, r *webrtc.RTPReceiver) {
	defer s.Recover()
	if a := s.handlers.audio.Load(); a != nil && a.take(t, r) {
		return
	}
	if f := s.handlers.track.Load(); f != nil && *f != nil {
		(*f)(t, r)
	}
}

// OnDataChannel sets the handler for data channels that the client opens,
// except what OpenEvents takes. Handlers that f sets on the channel need
// `defer session.Recover()` of their own.
func (s *Session) OnDataChannel(f func(*webrtc.DataChannel)) {
	s.handlers.channel.Store(&f)
	s.pc.OnDataChannel(s.onDataChannel)
}

func (s *Session) onDataChannel(d *webrtc.DataChannel) {
	defer s.Recover()
	if e := s.handlers.events.Load(); e != nil && e.take(d) {
		return
	}
	if f := s.handlers.channel.Load(); f != nil && *f != nil {
		(*f)(d)
	}
}

func (h *Host) newSession(o *offer, opts AcceptOptions, ingresses []Ingress) (*Session, error) {
	local, password, route, err := h.minter.Mint()
	if err != nil {
		return nil, err
	}
	made := false
	defer func() {
		if !made {
			h.minter.Release(route.Session)
		}
	}()
	s := &Session{
		host:      h,
		shard:     h.shards[route.Session%uint32(len(h.shards))],
		id:        rand.Text()[:16],
		token:     rand.Text(),
		resource:  local,
		metadata:  opts.Metadata,
		ingresses: ingresses,
		first:     o.identity(),
		connected: make(chan struct{}),
		done:      make(chan struct{}),
		created:   time.Now(),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.ice = credentials{s.first.ufrag, s.first.password, local, password, route}
	s.conn = newVirtualConn(s.first.ufrag, s.first.password, s.fromPion)
	s.front.init(s, s.ice)
	s.bounds.exceeded = func() { s.finish(ReasonTooMany, nil) }
	s.pc, err = h.engine.peerConnection(&h.cfg, s, o.setup != setupActive)
	if err != nil {
		s.cancel()
		return nil, err
	}
	made = true
	s.pc.SCTP().Transport().OnStateChange(s.dtlsState)
	s.pc.SCTP().OnDataChannelOpened(s.bounds.channel)
	return s, nil
}

// dtlsState is called by Pion with a lock held.
func (s *Session) dtlsState(state webrtc.DTLSTransportState) {
	switch state {
	case webrtc.DTLSTransportStateConnected:
		s.connectedOnce.Do(func() {
			s.connectedAt.Store(max(int64(time.Since(s.created)), 1))
			s.host.connected.Add(1)
			close(s.connected)
			if a := s.handlers.audio.Load(); a != nil {
				a.out.kick()
			}
		})
	case webrtc.DTLSTransportStateFailed, webrtc.DTLSTransportStateClosed:
		// A handshake that is given up on may show as either.
		switch {
		case s.connectedAt.Load() != 0:
			s.finish(ReasonClientClosed, nil)
		case s.front.dtlsOverdue(time.Now()):
			s.finish(ReasonDTLSTimeout, nil)
		default:
			s.finish(ReasonDTLSFailed, nil)
		}
	default:
	}
}

// finish begins the end of the session, once. It never blocks and may be
// called from anywhere.
func (s *Session) finish(reason Reason, cause error) {
	s.handler.Lock()
	first := s.ending.CompareAndSwap(false, true)
	s.handler.Unlock()
	if !first {
		return
	}
	s.endMu.Lock()
	s.end = &EndError{Reason: reason, Cause: cause}
	s.endMu.Unlock()
	s.cancel()
	s.host.ended[reason].Add(1)
	go s.teardown(reason)
}

// teardown stops everything. The client's paths stay known until Pion has
// closed DTLS, so that the client hears of the end.
func (s *Session) teardown(reason Reason) {
	defer close(s.done)
	defer s.host.forget(s)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		defer s.Recover()
		s.farewell(reason)
		if err := s.pc.GracefulClose(); err != nil {
			s.host.log.Debug("closing a PeerConnection", "session", s.id, "err", err)
		}
		_ = s.conn.Close()
		s.work.Wait()
	}()
	limit := time.NewTimer(teardownLimit)
	defer limit.Stop()
	select {
	case <-stopped:
	case <-limit.C:
		s.host.log.Warn("a session's callbacks did not return after its end", "session", s.id, "reason", reason)
	}
	_ = s.conn.Close()
	s.front.close()
	if s.connectedAt.Load() != 0 {
		s.host.connected.Add(-1)
	}
}

// Renegotiate answers a further offer of the client: tracks added or removed,
// or an ICE restart, which is an offer with a new client ufrag and gets a
// fresh routed ufrag. DTLS goes on untouched in both. An error leaves the
// session as it was where the offer itself is bad (*OfferError); offers are
// answered one at a time, in milliseconds. A context that is done by the offer's
// turn makes it go unanswered. An offer of the Host's that is unanswered is given
// up: see Offer. It returns ErrNotAnswered in OnSession and Prepare.
func (s *Session) Renegotiate(ctx context.Context, offerSDP string) (answer string, err error) {
	return s.takeOffer(ctx, offerSDP, nil, nil)
}

// takeOffer is Renegotiate, if match holds. It hands the outcome to deliver, if
// that is not nil, before the Host can make an offer of its own: a client ignores
// one that comes while it waits for an answer.
func (s *Session) takeOffer(ctx context.Context, offerSDP string, match ifMatch, deliver func(answer string, err error)) (answer string, err error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if s.pc.CurrentLocalDescription() == nil {
		return "", ErrNotAnswered // and OnSession holds the lock
	}
	s.negotiation.Lock()
	defer s.negotiation.Unlock()
	answer, err = s.answerOffer(ctx, offerSDP, match)
	if deliver != nil {
		deliver(answer, err)
	}
	return answer, err
}

// answerOffer is takeOffer with the negotiation lock held.
func (s *Session) answerOffer(ctx context.Context, offerSDP string, match ifMatch) (answer string, err error) {
	switch {
	case s.ending.Load():
		return "", s.Err()
	case ctx.Err() != nil:
		return "", ctx.Err()
	case !match.holds(s.etag()):
		return "", errStale
	}
	s.supersede()
	o, err := parseOffer(offerSDP, s.host.cfg.MaxOfferBytes)
	if err != nil {
		return "", err
	}
	if o.fingerprint != s.first.fingerprint {
		// RFC 8842 section 4: another identity is another association, and
		// that takes a new session.
		return "", badOffer(ErrChangedIdentity, "")
	}
	return s.negotiate(o, nil)
}

// credentials are a generation of the session's ICE: what the client's
// newest offer says, and what the answer to it says.
type credentials struct {
	remoteUfrag, remotePassword string
	ufrag, password             string
	route                       ufrag.Route
}

// credentialsFor returns the current credentials if the client's are known
// already, or else mints fresh ones for an ICE restart, which take effect with
// restart or go back with discard. The negotiation lock is held.
func (s *Session) credentialsFor(remoteUfrag, remotePassword string) (c credentials, err error) {
	if remoteUfrag == s.ice.remoteUfrag && remotePassword == s.ice.remotePassword {
		return s.ice, nil
	}
	c = credentials{remoteUfrag: remoteUfrag, remotePassword: remotePassword}
	c.ufrag, c.password, c.route, err = s.host.minter.Mint()
	return c, err
}

func (s *Session) discard(c credentials) {
	if c != s.ice {
		s.host.minter.Release(c.route.Session)
	}
}

// restart makes credentials the current ones.
func (s *Session) restart(c credentials) {
	if c == s.ice {
		return
	}
	s.ice = c
	s.front.restart(c)
	s.host.restarts.Add(1)
}

// negotiate puts an offer to Pion and makes the client's answer.
func (s *Session) negotiate(o *offer, prepare func() error) (answer string, err error) {
	defer func() {
		if v := recover(); v != nil {
			answer, err = "", s.panicked(v)
		}
	}()
	forPion, err := o.forPion(s.first.ufrag, s.first.password)
	if err != nil {
		return "", err
	}
	err = s.pc.SetRemoteDescription(webrtc.SessionDescription{Type: webrtc.SDPTypeOffer, SDP: forPion})
	if err != nil {
		return "", s.pionRefused(err)
	}
	defer func() {
		if err != nil {
			s.settle()
		}
	}()
	if prepare != nil {
		if err := prepare(); err != nil {
			return "", err
		}
	}
	local, err := s.pc.CreateAnswer(nil)
	if err != nil {
		return "", s.pionRefused(err)
	}
	ice, err := s.credentialsFor(o.ufrag, o.password)
	if err != nil {
		return "", err
	}
	ingresses := s.nextIngresses(ice)
	answer, err = forClient(local.SDP, ice.ufrag, ice.password, ingresses)
	if err != nil {
		s.discard(ice)
		return "", err
	}
	if err := s.pc.SetLocalDescription(local); err != nil {
		s.discard(ice)
		return "", s.pionRefused(err)
	}
	s.negotiated(ice, ingresses, true) // last: an offer that is refused changes nothing
	return answer, nil
}

// settle brings Pion back to where it takes a further offer, after a
// renegotiation that was refused. Pion knows no rollback (RFC 9429 section
// 5.7), so it gets its own answer, which nobody else sees.
func (s *Session) settle() {
	if s.pc.CurrentRemoteDescription() == nil || s.pc.SignalingState() != webrtc.SignalingStateHaveRemoteOffer {
		return
	}
	if local, err := s.pc.CreateAnswer(nil); err == nil {
		_ = s.pc.SetLocalDescription(local)
	}
}

// pionRefused tells an offer that Pion cannot answer from a session that ended
// meanwhile.
func (s *Session) pionRefused(err error) error {
	if s.ending.Load() {
		return errors.Join(ErrSessionClosed, err)
	}
	return badOffer(ErrUnsupported, "%v", err)
}
