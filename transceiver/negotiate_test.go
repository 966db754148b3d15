package transceiver

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pion/rtp"
	"github.com/pion/webrtc/v4"

	"github.com/usher-rtc/usher/internal/trunk"
)

// answerTo lets the client take an offer of the Host's and returns its answer.
func (c *client) answerTo(offerSDP string) string {
	c.t.Helper()
	err := c.pc.SetRemoteDescription(webrtc.SessionDescription{Type: webrtc.SDPTypeOffer, SDP: offerSDP})
	if err != nil {
		c.t.Fatalf("the client refuses the offer: %v\n%s", err, offerSDP)
	}
	a, err := c.pc.CreateAnswer(nil)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := c.pc.SetLocalDescription(a); err != nil {
		c.t.Fatal(err)
	}
	return a.SDP
}

// packets reports that the client has got RTP.
func (c *client) packets() <-chan struct{} {
	got := make(chan struct{}, 1)
	c.pc.OnTrack(func(track *webrtc.TrackRemote, _ *webrtc.RTPReceiver) {
		for {
			if _, _, err := track.ReadRTP(); err != nil {
				return
			}
			select {
			case got <- struct{}{}:
			default:
			}
		}
	})
	return got
}

// speak adds a track to a session and sends on it until the test ends.
func speak(t *testing.T, s *Session) *webrtc.RTPSender {
	t.Helper()
	track, err := webrtc.NewTrackLocalStaticRTP(webrtc.RTPCodecCapability{MimeType: webrtc.MimeTypeOpus}, "voice", "server")
	if err != nil {
		t.Fatal(err)
	}
	sender, err := s.pc.AddTrack(track)
	if err != nil {
		t.Fatal(err)
	}
	s.Go(func(ctx context.Context) {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for n := uint16(0); ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				_ = track.WriteRTP(silence(n))
			}
		}
	})
	return sender
}

// countHandshakes counts the DTLS handshake packets in both directions.
func countHandshakes(r *stubRelay) *atomic.Int32 {
	var n atomic.Int32
	in := func(b []byte) bool {
		if len(b) > 0 && b[0] == 22 {
			n.Add(1)
		}
		return false
	}
	out := func(f *trunk.Frame) bool { return in(f.Payload) }
	r.dropIn.Store(&in)
	r.dropOut.Store(&out)
	return &n
}

func TestServerAddsAndRemovesTracks(t *testing.T) {
	host, relay := setup(t, withEcho)
	c := newClient(t, nil)
	ch, got := c.channel(), c.packets()
	s := c.call(host, AcceptOptions{})
	ch.echo(t, "before")
	handshakes, first := countHandshakes(relay), s.Ufrag()
	ctx := patient(t)
	sections := 0
	for range 3 {
		sender := speak(t, s)
		for _, remove := range []bool{false, true} {
			if remove {
				if err := s.pc.RemoveTrack(sender); err != nil {
					t.Fatal(err)
				}
			}
			offer, err := s.Offer(ctx, OfferOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range sdpLines(offer, "a=ice-ufrag:") {
				if line != "a=ice-ufrag:"+first {
					t.Errorf("%q in an offer that is no restart", line)
				}
			}
			if len(sdpLines(offer, "a=ice-lite")) != 1 || len(sdpLines(offer, "a=candidate:")) != 1 {
				t.Errorf("offer:\n%s", offer)
			}
			sections = len(sdpLines(offer, "m="))
			if err := s.SetAnswer(ctx, c.answerTo(offer)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if sections > 3 {
		t.Errorf("%d media sections after adding and removing one track at a time: none is used again", sections)
	}
	speak(t, s)
	offer, err := s.Offer(ctx, OfferOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SetAnswer(ctx, c.answerTo(offer)); err != nil {
		t.Fatal(err)
	}
	for len(got) > 0 {
		<-got
	}
	wait(t, "audio on the new track", got)
	ch.echo(t, "after")
	if s.Ufrag() != first || host.Stats().Restarts != 0 {
		t.Error("the ufrag changed without a restart")
	}
	if n := handshakes.Load(); n != 0 {
		t.Errorf("%d DTLS handshake packets", n)
	}
}

// A restart moves the client to the ingress that the Host wants, and DTLS does
// not notice.
func TestServerMovesTheClientToAnotherIngress(t *testing.T) {
	host, relay := setup(t, withEcho)
	other := newStubRelay(t, relay.keys, 2)
	other.host.Store(host.Addr())
	c := newClient(t, nil)
	ch := c.channel()
	s := c.call(host, AcceptOptions{})
	ch.echo(t, "before")
	handshakes, first := countHandshakes(relay), s.Ufrag()
	ctx := patient(t)
	for i, to := range []*stubRelay{other, relay, other} {
		seen := s.Ufrag()
		offer, err := s.Offer(ctx, OfferOptions{ICERestart: true, Ingresses: []Ingress{{ID: to.id, Advertise: to.addr()}}})
		if err != nil {
			t.Fatal(err)
		}
		if s.Ufrag() != seen {
			t.Error("an offer without an answer has changed the ufrag")
		}
		if err := s.SetAnswer(ctx, c.answerTo(offer)); err != nil {
			t.Fatal(err)
		}
		if s.Ufrag() == seen || sdpLines(offer, "a=ice-ufrag:")[0] != "a=ice-ufrag:"+s.Ufrag() {
			t.Errorf("restart %d: %s after %s", i, s.Ufrag(), seen)
		}
		eventually(t, "the move", func() bool { st := s.Stats(); return st.Ingress == to.id && st.Validated })
		ch.echo(t, "after")
	}
	if n := handshakes.Load(); n != 0 {
		t.Errorf("%d DTLS handshake packets", n)
	}
	if host.sessions.find([]byte(first)) != nil {
		t.Error("the first ufrag is still answered to after three restarts")
	}
	_ = s.Close()
	wait(t, "the end", s.Done())
	if ufrags, numbers := host.sessions.len(); ufrags+numbers+host.paths.len()+host.minter.Live() != 0 {
		t.Errorf("left behind: %d ufrags, %d numbers, %d minted", ufrags, numbers, host.minter.Live())
	}
}

// What a client may answer wrongly leaves the session as it was, and the next
// offer works.
func TestSetAnswerRefuses(t *testing.T) {
	host, _ := setup(t, func(c *Config) {
		c.OnSession = func(s *Session) error {
			s.OnDataChannel(func(d *webrtc.DataChannel) {
				d.OnMessage(func(m webrtc.DataChannelMessage) { _ = d.SendText("echo " + string(m.Data)) })
			})
			return nil
		}
	})
	c := newClient(t, nil)
	ch := c.channel()
	s := c.call(host, AcceptOptions{})
	ch.echo(t, "before")
	ctx := patient(t)
	mine := c.pc.CurrentLocalDescription().SDP // with the credentials of now
	for name, a := range map[string]struct {
		restart bool
		answer  string
		want    error
	}{
		"no SDP":             {false, "hello", ErrNotSDP},
		"too few sections":   {false, strings.Replace(mine, "m=application", "x=", 1), ErrNotSDP},
		"too many sections":  {false, mine + "m=audio 0 RTP/AVP 0\r\nc=IN IP4 0.0.0.0\r\n", ErrNotSDP},
		"other section":      {false, strings.NewReplacer("a=mid:0", "a=mid:7", "BUNDLE 0", "BUNDLE 7").Replace(mine), ErrNotSDP},
		"other identity":     {false, browserOffer(), ErrChangedIdentity},
		"restart not done":   {true, mine, ErrNoICE},
		"restart not wanted": {false, strings.ReplaceAll(mine, "a=ice-ufrag:", "a=ice-ufrag:x"), ErrNoICE},
	} {
		t.Run(name, func(t *testing.T) {
			live := host.minter.Live()
			if _, err := s.Offer(ctx, OfferOptions{ICERestart: a.restart}); err != nil {
				t.Fatal(err)
			}
			var bad *OfferError
			if err := s.SetAnswer(ctx, a.answer); !errors.Is(err, a.want) || !errors.As(err, &bad) {
				t.Errorf("got %v, want %v", err, a.want)
			}
			if err := s.SetAnswer(ctx, mine); !errors.Is(err, ErrNoOffer) {
				t.Errorf("the offer is not void: %v", err)
			}
			if n := host.minter.Live(); n != live {
				t.Errorf("%d ufrags, %d before", n, live)
			}
		})
	}
	offer, err := s.Offer(ctx, OfferOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SetAnswer(ctx, c.answerTo(offer)); err != nil {
		t.Fatal(err)
	}
	ch.echo(t, "after")
}

func TestOfferRefuses(t *testing.T) {
	host, relay := setup(t, nil)
	c := newClient(t, nil)
	c.channel()
	ctx := patient(t)
	s := c.call(host, AcceptOptions{Prepare: func(s *Session) error {
		for name, f := range map[string]func() error{
			"Offer":       func() error { _, err := s.Offer(ctx, OfferOptions{}); return err },
			"SetAnswer":   func() error { return s.SetAnswer(ctx, browserOffer()) },
			"Renegotiate": func() error { _, err := s.Renegotiate(ctx, browserOffer()); return err },
			"Negotiate":   func() error { return s.Negotiate(ctx) },
			"RestartICE":  func() error { return s.RestartICE(ctx) },
		} {
			result := make(chan error, 1)
			go func() { result <- f() }()
			select {
			case err := <-result:
				if !errors.Is(err, ErrNotAnswered) {
					t.Errorf("%s before the first answer: %v", name, err)
				}
			case <-time.After(patience):
				t.Errorf("%s waits for the answer that waits for it", name)
			}
		}
		return nil
	}})
	if err := s.SetAnswer(ctx, "v=0"); !errors.Is(err, ErrNoOffer) {
		t.Errorf("an answer to nothing: %v", err)
	}
	var ce *ConfigError
	if _, err := s.Offer(ctx, OfferOptions{Ingresses: []Ingress{{2, relay.addr()}}}); !errors.As(err, &ce) || ce.Field != "Ingresses" {
		t.Errorf("ingresses without a restart: %v", err)
	}
	if err := s.RestartICE(ctx, Ingress{}); !errors.As(err, &ce) || ce.Field != "Ingresses[0].ID" {
		t.Errorf("a bad ingress: %v", err)
	}
	if err := s.RestartICE(ctx); !errors.Is(err, ErrNoSignalling) {
		t.Errorf("without a way to the client: %v", err)
	}
	if err := s.Notify("x"); !errors.Is(err, ErrNoSignalling) {
		t.Errorf("Notify: %v", err)
	}
	_ = s.Close()
	wait(t, "the end", s.Done())
	if _, err := s.Offer(ctx, OfferOptions{}); !errors.Is(err, ErrSessionClosed) {
		t.Errorf("after the end: %v", err)
	}
	if err := s.Negotiate(ctx); !errors.Is(err, ErrSessionClosed) {
		t.Errorf("after the end: %v", err)
	}
}

// A client that rejects a new track keeps its call, and the next offer works.
func TestClientRejectsATrack(t *testing.T) {
	host, _ := setup(t, withEcho)
	c := newClient(t, nil)
	ch, got := c.channel(), c.packets()
	s := c.call(host, AcceptOptions{})
	ch.echo(t, "before")
	ctx := patient(t)
	offer, err := s.Offer(ctx, OfferOptions{}) // with the echo's track, which the client has not seen yet
	if err != nil {
		t.Fatal(err)
	}
	rejection := c.pc.CurrentLocalDescription().SDP + "m=audio 0 UDP/TLS/RTP/SAVPF 111\r\nc=IN IP4 0.0.0.0\r\n"
	if n := len(sdpLines(offer, "m=")); n != 2 {
		t.Fatalf("%d sections in\n%s", n, offer)
	}
	if err := s.SetAnswer(ctx, rejection); err != nil {
		t.Fatal(err)
	}
	for _, sender := range s.pc.GetSenders() {
		if sender.Track() != nil {
			t.Error("the rejected track is still there")
		}
	}
	ch.echo(t, "without it")
	speak(t, s)
	if offer, err = s.Offer(ctx, OfferOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.SetAnswer(ctx, c.answerTo(offer)); err != nil {
		t.Fatal(err)
	}
	wait(t, "audio on the new track", got)
	ch.echo(t, "after")
}

// The Host is polite: an offer of the client's goes first, and the Host's own
// is void. (Its restart takes effect nowhere.)
func TestClientsOfferGoesFirst(t *testing.T) {
	host, _ := setup(t, withEcho)
	c := newClient(t, nil)
	ch := c.channel()
	s := c.call(host, AcceptOptions{})
	ch.echo(t, "before")
	ctx := patient(t)
	first, live := s.Ufrag(), host.minter.Live()
	speak(t, s)
	if _, err := s.Offer(ctx, OfferOptions{ICERestart: true}); err != nil {
		t.Fatal(err)
	}
	// The client has not seen it and adds a track of its own.
	c.microphone()
	answer, err := s.Renegotiate(ctx, c.offer(nil))
	if err != nil {
		t.Fatal(err)
	}
	c.answer(answer)
	if err := s.SetAnswer(ctx, answer); !errors.Is(err, ErrNoOffer) {
		t.Errorf("the Host's offer is not void: %v", err)
	}
	if s.Ufrag() != first || host.minter.Live() != live {
		t.Errorf("%s, %d ufrags; before %s, %d", s.Ufrag(), host.minter.Live(), first, live)
	}
	offer, err := s.Offer(ctx, OfferOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SetAnswer(ctx, c.answerTo(offer)); err != nil {
		t.Fatal(err)
	}
	ch.echo(t, "after")
}

// A client without a WebSocket is asked, over its events, to offer by itself.
func TestNegotiateOverEvents(t *testing.T) {
	host, relay := setup(t, nil)
	other := newStubRelay(t, relay.keys, 2)
	other.host.Store(host.Addr())
	server := serve(t, host, SignallingConfig{})
	c := newEventClient(t, "oai-events")
	s, _ := c.events(host, EventsConfig{})
	at := server.URL + s.Location("/whip")
	ctx := patient(t)
	got := c.packets()
	request := func() (r negotiateRequest) {
		t.Helper()
		if err := json.Unmarshal(c.receive().Data, &r); err != nil || r.Type != "usher.negotiate" {
			t.Fatalf("%+v: %v", r, err)
		}
		return r
	}
	patch := func(opts *webrtc.OfferOptions) {
		t.Helper()
		res := do(t, "PATCH", at, "application/sdp", c.offer(opts))
		if res.StatusCode != 200 {
			t.Fatalf("%d %s", res.StatusCode, res.body)
		}
		c.answer(res.body)
	}
	result := make(chan error, 1)

	// A track is added.
	wait(t, "the channel", c.open)
	speak(t, s)
	go func() { result <- s.Negotiate(ctx) }()
	if r := request(); r.Restart || r.Audio != 1 || r.Video != 0 {
		t.Errorf("%+v", r)
	}
	recvonly := webrtc.RTPTransceiverInit{Direction: webrtc.RTPTransceiverDirectionRecvonly}
	if _, err := c.pc.AddTransceiverFromKind(webrtc.RTPCodecTypeAudio, recvonly); err != nil {
		t.Fatal(err)
	}
	patch(nil)
	if err := receive(t, "the result", result); err != nil {
		t.Fatal(err)
	}
	wait(t, "audio on the new track", got)

	// A restart moves the client. An offer that is none changes nothing.
	first := s.Ufrag()
	go func() { result <- s.RestartICE(ctx, Ingress{2, other.addr()}) }()
	if r := request(); !r.Restart || r.Audio != 0 {
		t.Errorf("%+v", r)
	}
	now := c.pc.CurrentLocalDescription().SDP
	trickle := sdpLines(now, "a=ice-ufrag:")[0] + "\r\n" + sdpLines(now, "a=ice-pwd:")[0] + "\r\n"
	if res := do(t, "PATCH", at, typeFragment, trickle, "If-Match", s.etag()); res.StatusCode != 204 {
		t.Errorf("trickle: %d %s", res.StatusCode, res.body)
	}
	if s.Ufrag() != first || len(result) > 0 {
		t.Error("candidates count as a restart")
	}
	patch(&webrtc.OfferOptions{ICERestart: true})
	if err := receive(t, "the result", result); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the move", func() bool { st := s.Stats(); return st.Ingress == 2 && st.Validated })

	// WHIP's fragment does as well.
	go func() { result <- s.RestartICE(ctx, Ingress{1, relay.addr()}) }()
	request()
	res := do(t, "PATCH", at, typeFragment, "a=ice-ufrag:newone\r\na=ice-pwd:0123456789abcdefghijkl\r\n", "If-Match", "*")
	if lines := sdpLines(res.body, "a=candidate:"); res.StatusCode != 200 || len(lines) != 1 || !strings.Contains(lines[0], relay.addr().Addr().String()+" ") {
		t.Errorf("%d %s", res.StatusCode, res.body)
	}
	if err := receive(t, "the result", result); err != nil {
		t.Fatal(err)
	}

	// A client that does not do as it is asked costs the deadline and no more.
	before := slices.Clone(s.ingresses)
	short, cancel := context.WithCancel(ctx)
	go func() { result <- s.RestartICE(short, Ingress{2, other.addr()}) }()
	request()
	cancel()
	if err := receive(t, "the result", result); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if !slices.Equal(s.ingresses, before) {
		t.Errorf("%v", s.ingresses)
	}
}

func silence(n uint16) *rtp.Packet {
	return &rtp.Packet{Header: rtp.Header{Version: 2, SequenceNumber: n, Timestamp: uint32(n) * 960}, Payload: []byte{0xf8, 0xff, 0xfe}}
}
