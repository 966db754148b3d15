package transceiver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/pion/webrtc/v4"
)

var (
	// ErrNotAnswered is what Offer, SetAnswer, Negotiate, RestartICE and
	// Renegotiate return before the client's first offer was answered, in OnSession
	// and Prepare for example.
	ErrNotAnswered = errors.New("transceiver: the client's first offer is not answered yet")
	// ErrNoOffer is what SetAnswer returns when there is nothing to answer: no
	// offer was made, or the client or the application has made another since.
	ErrNoOffer = errors.New("transceiver: no offer is waiting for an answer")
	// ErrNoSignalling is what Negotiate, RestartICE and Notify return when the
	// client cannot be reached: it has neither a WebSocket nor an events channel.
	ErrNoSignalling = errors.New("transceiver: the client has no signalling channel")
	// ErrRefused is wrapped by what Negotiate and RestartICE return when the
	// client said that it cannot answer the offer.
	ErrRefused = errors.New("transceiver: the client refuses the offer")

	errSuperseded = errors.New("transceiver: another offer was made")
)

// OfferOptions say what an offer of the Host's is for. The zero value offers
// what has changed on the PeerConnection: tracks, directions, data channels.
type OfferOptions struct {
	// ICERestart asks for an ICE restart under a fresh routed ufrag.
	ICERestart bool
	// Ingresses are advertised from this restart on instead of the session's,
	// which moves the client to them. Needs ICERestart. Empty keeps them.
	Ingresses []Ingress
}

func (o *OfferOptions) validate() error {
	if len(o.Ingresses) > 0 && !o.ICERestart {
		return &ConfigError{Field: "Ingresses", Problem: "a client changes its ingress by an ICE restart: set ICERestart"}
	}
	return validateIngresses("Ingresses", o.Ingresses)
}

// serverOffer is an offer of the Host's. Pion gets it together with its answer,
// not before: Pion knows no rollback, and an offer that Pion has not seen costs
// nothing to give up.
type serverOffer struct {
	id        uint64
	pion      webrtc.SessionDescription
	sdp       string      // for the client
	ice       credentials // of a restart: without the client's part
	restart   bool
	ingresses []Ingress
	answered  chan error // has room for the one result
}

// wanted is what Negotiate waits for the client to do.
type wanted struct {
	opts  OfferOptions
	asked bool // the client was asked for an offer, and told for what
	done  chan struct{}
}

// Offer makes an offer of the Host's, for an application with signalling of
// its own: after tracks were added to or removed from the PeerConnection, or
// for an ICE restart. Give it to the client and the client's answer to
// SetAnswer. DTLS goes on untouched; without ICERestart the ufrag stays too.
//
// The Host is the polite side (RFC 9429 section 1, "perfect negotiation"): an
// offer of the client's that comes meanwhile is answered, and this one is void.
// So is an offer that is followed by another call of Offer. An offer that is
// never answered changes nothing. Use Negotiate or RestartICE where the client
// uses this package's signalling.
func (s *Session) Offer(ctx context.Context, opts OfferOptions) (offerSDP string, err error) {
	if err := opts.validate(); err != nil {
		return "", err
	}
	p, err := s.offer(ctx, opts, nil)
	if err != nil {
		return "", err
	}
	return p.sdp, nil
}

// offer makes an offer, for w if that is not nil. It returns neither an offer
// nor an error when the client has done meanwhile what w is about.
func (s *Session) offer(ctx context.Context, opts OfferOptions, w *wanted) (*serverOffer, error) {
	if s.pc.CurrentLocalDescription() == nil {
		return nil, ErrNotAnswered // and OnSession holds the lock
	}
	s.negotiation.Lock()
	defer s.negotiation.Unlock()
	switch {
	case s.ending.Load():
		return nil, s.Err()
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case w != s.wanted && w != nil:
		return nil, nil //nolint:nilnil // as documented
	}
	s.supersede()
	// Pion would number new sections, as browsers do with theirs: a name of our
	// own never meets one of the client's.
	for _, t := range s.pc.GetTransceivers() {
		if t.Mid() == "" {
			s.offers++
			if err := t.SetMid("s" + strconv.FormatUint(s.offers, 10)); err != nil {
				return nil, err
			}
		}
	}
	local, err := s.pc.CreateOffer(nil)
	if err != nil {
		return nil, s.pionRefused(err)
	}
	s.offers++
	p := &serverOffer{
		id: s.offers, pion: local, ice: s.ice, restart: opts.ICERestart,
		ingresses: s.ingresses, answered: make(chan error, 1),
	}
	if len(opts.Ingresses) > 0 {
		p.ingresses = slices.Clone(opts.Ingresses)
	}
	if p.restart {
		p.ice = credentials{}
		if p.ice.ufrag, p.ice.password, p.ice.route, err = s.host.minter.Mint(); err != nil {
			return nil, err
		}
	}
	p.sdp, err = forClient(local.SDP, p.ice.ufrag, p.ice.password, p.ingresses)
	if err != nil {
		s.drop(p)
		return nil, err
	}
	s.pending = p
	return p, nil
}

// drop gives back what an offer had taken. The negotiation lock is held.
func (s *Session) drop(p *serverOffer) {
	if p.restart {
		s.discard(p.ice)
	}
}

// supersede voids the Host's own offer, if there is one without an answer. The
// negotiation lock is held.
func (s *Session) supersede() {
	if p := s.pending; p != nil {
		s.pending = nil
		s.drop(p)
		p.answered <- errSuperseded
	}
}

// withdraw voids the Host's own offer, which the client has not looked at
// because it was waiting for an answer to its own.
func (s *Session) withdraw() {
	s.negotiation.Lock()
	defer s.negotiation.Unlock()
	s.supersede()
}

// SetAnswer takes the client's answer to the newest Offer. An error that is
// the answer's fault is an *OfferError; the offer is void then, and everything
// as before. ErrNoOffer says that there is no offer to answer. The track of a
// media section that the client rejects is removed.
func (s *Session) SetAnswer(ctx context.Context, answerSDP string) error {
	return s.setAnswer(ctx, 0, answerSDP)
}

// setAnswer is SetAnswer for the offer with this id, 0 for any.
func (s *Session) setAnswer(ctx context.Context, id uint64, answerSDP string) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.pc.CurrentLocalDescription() == nil {
		return ErrNotAnswered // and OnSession holds the lock
	}
	s.negotiation.Lock()
	defer s.negotiation.Unlock()
	p := s.pending
	switch {
	case s.ending.Load():
		return s.Err()
	case p == nil || id != 0 && id != p.id:
		return ErrNoOffer
	}
	s.pending = nil
	defer func() {
		if v := recover(); v != nil {
			err = s.panicked(v)
		}
		if err != nil {
			s.drop(p)
		}
		p.answered <- err
	}()
	// Not before: an answer that nobody asked for costs nothing.
	o, err := parseOffer(answerSDP, s.host.cfg.MaxOfferBytes)
	if err != nil {
		return err
	}
	return s.applyAnswer(p, o)
}

func (s *Session) applyAnswer(p *serverOffer, o *offer) error {
	changed := o.ufrag != s.ice.remoteUfrag || o.password != s.ice.remotePassword
	switch {
	case o.fingerprint != s.first.fingerprint:
		return badOffer(ErrChangedIdentity, "")
	case p.restart && !changed:
		return badOffer(ErrNoICE, "the answer to an ICE restart has the old a=ice-ufrag and a=ice-pwd")
	case !p.restart && changed:
		return badOffer(ErrNoICE, "the answer has another a=ice-ufrag or a=ice-pwd, and no ICE restart was offered")
	}
	if err := o.completeFrom(p.pion.SDP); err != nil {
		return err
	}
	rejected := o.rejected()
	forPion, err := o.forPion(s.first.ufrag, s.first.password)
	if err != nil {
		return err
	}
	if err := s.pc.SetLocalDescription(p.pion); err != nil {
		return s.pionRefused(err)
	}
	for _, t := range s.pc.GetTransceivers() {
		// Pion would start to send, fail for want of a codec, and fail again in
		// every exchange after it.
		if slices.Contains(rejected, t.Mid()) && t.Sender() != nil {
			if err := s.pc.RemoveTrack(t.Sender()); err != nil {
				s.host.log.Debug("removing a rejected track", "session", s.id, "err", err)
			}
		}
	}
	err = s.pc.SetRemoteDescription(webrtc.SessionDescription{Type: webrtc.SDPTypeAnswer, SDP: forPion})
	if err != nil {
		err = s.pionRefused(err)
		if s.pc.SignalingState() != webrtc.SignalingStateStable {
			s.finish(ReasonRejected, err) // there is no way back
		}
		return err
	}
	p.ice.remoteUfrag, p.ice.remotePassword = o.ufrag, o.password
	s.negotiated(p.ice, p.ingresses, false)
	return nil
}

// nextIngresses returns the ingresses for an answer with these credentials: an
// ICE restart of the client's takes the ones that the Host wants it to move to.
// The negotiation lock is held.
func (s *Session) nextIngresses(ice credentials) []Ingress {
	if s.wanted != nil && len(s.wanted.opts.Ingresses) > 0 && ice != s.ice {
		return s.wanted.opts.Ingresses
	}
	return s.ingresses
}

// negotiated makes the outcome of an exchange the current state, and tells who
// waits for it. byClient says that the client offered media sections of its
// own. The negotiation lock is held.
func (s *Session) negotiated(ice credentials, ingresses []Ingress, byClient bool) {
	restarted := ice != s.ice
	s.restart(ice)
	s.ingresses = ingresses
	w := s.wanted
	if w == nil {
		return
	}
	if w.opts.ICERestart && restarted || !w.opts.ICERestart && w.asked && byClient {
		s.wanted = nil
		close(w.done)
	}
}

// Negotiate brings the client to where the PeerConnection is, after tracks or
// data channels were added or removed. It returns when the client has followed.
//
// A client with a WebSocket (docs/signalling.md) gets an offer. One without is
// asked, over the data channel of OpenEvents, to make an offer itself and to
// PATCH it: the event is {"type":"usher.negotiate"}, with "audio" and "video" for
// the number of sections that it must add to receive what is new. A client with
// neither is ErrNoSignalling. Give a context with a deadline: a client may
// never answer. It may then still do so later, unless another offer was made.
//
// An offer of the client's that comes at the same time goes first, and the
// Host's is made anew after it. An error that is the client's fault is an
// *OfferError or wraps ErrRefused.
func (s *Session) Negotiate(ctx context.Context) error {
	return s.renegotiate(ctx, OfferOptions{})
}

// RestartICE has the client restart ICE, in the same ways as Negotiate (the
// event says "restart":true), and returns when its new credentials are known.
// With ingresses the client moves to these: it is the way to take clients off
// an ingress that is to go, or that failed for those browsers that do not fail
// over in mid-call. Media flow on the old path until the new one is proven.
func (s *Session) RestartICE(ctx context.Context, ingresses ...Ingress) error {
	return s.renegotiate(ctx, OfferOptions{ICERestart: true, Ingresses: slices.Clone(ingresses)})
}

func (s *Session) renegotiate(ctx context.Context, opts OfferOptions) error {
	if err := opts.validate(); err != nil {
		return err
	}
	if s.pc.CurrentLocalDescription() == nil {
		return ErrNotAnswered
	}
	leave, err := s.signals.enter(ctx, s.ctx)
	if err == nil {
		defer leave()
		err = s.Err()
	}
	if err != nil {
		return err
	}
	w := &wanted{opts: opts, done: make(chan struct{})}
	s.setWanted(w)
	defer s.setWanted(nil)
	var p *serverOffer // made here, and not void
	var asked *Events
	for {
		k, changed := s.signals.current()
		events := s.handlers.events.Load()
		switch {
		case k != nil:
			if p == nil {
				if p, err = s.offer(ctx, opts, w); p == nil {
					return err
				}
			}
			// To a new socket the same offer: the client may have answered it,
			// and repeats its answer then.
			k.send(&message{Type: typeOffer, ID: p.id, SDP: p.sdp})
		case events == nil && asked == nil && p == nil:
			return ErrNoSignalling
		case events != nil && asked == nil && p == nil:
			asked = events
			if err := s.ask(ctx, w, events); err != nil {
				return err
			}
		}
		var answered chan error
		if p != nil {
			answered = p.answered
		}
		select {
		case <-w.done:
			return nil
		case err := <-answered:
			if !errors.Is(err, errSuperseded) {
				return err
			}
			p = nil
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ctx.Done():
			return s.Err()
		}
	}
}

func (s *Session) setWanted(w *wanted) {
	s.negotiation.Lock()
	s.wanted = w
	s.negotiation.Unlock()
}

// negotiateRequest is the event that asks a client for an offer.
type negotiateRequest struct {
	Type    string `json:"type"`
	Restart bool   `json:"restart,omitempty"`
	// Audio and Video are the sections that the client has to add.
	Audio int `json:"audio,omitempty"`
	Video int `json:"video,omitempty"`
}

// ask sends the client the event that makes it offer.
func (s *Session) ask(ctx context.Context, w *wanted, events *Events) error {
	r := negotiateRequest{Type: "usher.negotiate", Restart: w.opts.ICERestart}
	for _, t := range s.pc.GetTransceivers() {
		if t.Mid() != "" || t.Sender() == nil || t.Sender().Track() == nil {
			continue
		}
		if t.Kind() == webrtc.RTPCodecTypeVideo {
			r.Video++
		} else {
			r.Audio++
		}
	}
	s.negotiation.Lock()
	w.asked = true
	s.negotiation.Unlock()
	if err := events.SendJSON(ctx, r); err != nil {
		return fmt.Errorf("%w: %w", ErrNoSignalling, err)
	}
	return nil
}
