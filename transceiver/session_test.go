package transceiver

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pion/rtp"
	"github.com/pion/webrtc/v4"

	"github.com/usher-rtc/usher/internal/stun"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/ufrag"
)

// echoSession sends data channel messages and audio back.
func echoSession(s *Session) error {
	s.OnDataChannel(func(d *webrtc.DataChannel) {
		d.OnMessage(func(m webrtc.DataChannelMessage) {
			defer s.Recover()
			_ = d.SendText("echo " + string(m.Data))
		})
	})
	back, err := webrtc.NewTrackLocalStaticRTP(webrtc.RTPCodecCapability{MimeType: webrtc.MimeTypeOpus}, "audio", "echo")
	if err != nil {
		return err
	}
	if _, err := s.PeerConnection().AddTrack(back); err != nil {
		return err
	}
	s.OnTrack(func(track *webrtc.TrackRemote, _ *webrtc.RTPReceiver) {
		for {
			p, _, err := track.ReadRTP()
			if err != nil {
				return
			}
			_ = back.WriteRTP(p)
		}
	})
	return nil
}

func withEcho(c *Config) { c.OnSession = echoSession }

// channel is a data channel of a client with what came back over it.
type channel struct {
	*webrtc.DataChannel
	open chan struct{}
	got  chan string
}

func (c *client) channel() *channel {
	c.t.Helper()
	d, err := c.pc.CreateDataChannel("events", nil)
	if err != nil {
		c.t.Fatal(err)
	}
	ch := &channel{d, make(chan struct{}), make(chan string, 100)}
	d.OnOpen(func() { close(ch.open) })
	d.OnMessage(func(m webrtc.DataChannelMessage) { ch.got <- string(m.Data) })
	return ch
}

func (ch *channel) echo(t testing.TB, text string) {
	t.Helper()
	wait(t, "the data channel", ch.open)
	if err := ch.SendText(text); err != nil {
		t.Fatal(err)
	}
	select {
	case m := <-ch.got:
		if m != "echo "+text {
			t.Errorf("got %q, want the echo of %q", m, text)
		}
	case <-time.After(patience):
		t.Fatalf("no echo of %q", text)
	}
}

// microphone sends numbered Opus packets until the test ends and reports what
// comes back.
func (c *client) microphone() <-chan uint16 {
	c.t.Helper()
	mic, err := webrtc.NewTrackLocalStaticRTP(webrtc.RTPCodecCapability{MimeType: webrtc.MimeTypeOpus}, "audio", "mic")
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.pc.AddTrack(mic); err != nil {
		c.t.Fatal(err)
	}
	back := make(chan uint16, 1000)
	c.pc.OnTrack(func(track *webrtc.TrackRemote, _ *webrtc.RTPReceiver) {
		for {
			p, _, err := track.ReadRTP()
			if err != nil {
				return
			}
			select {
			case back <- binary.BigEndian.Uint16(p.Payload):
			default:
			}
		}
	})
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for n := uint16(1); ; n++ {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			p := &rtp.Packet{Header: rtp.Header{Version: 2, SequenceNumber: n, Timestamp: uint32(n) * 960}, Payload: make([]byte, 80)}
			binary.BigEndian.PutUint16(p.Payload, n)
			_ = mic.WriteRTP(p)
		}
	}()
	c.t.Cleanup(func() {
		close(stop)
		<-stopped
	})
	return back
}

func TestCallCarriesDataAndAudioBothWays(t *testing.T) {
	host, _ := setup(t, withEcho)
	c := newClient(t, nil)
	ch := c.channel()
	back := c.microphone()
	s := c.call(host, AcceptOptions{})
	wait(t, "DTLS", s.Connected())
	ch.echo(t, "hello")
	for range 3 {
		select {
		case <-back:
		case <-time.After(patience):
			t.Fatalf("no audio came back; %+v", host.Stats())
		}
	}
	st := s.Stats()
	if !st.Validated || st.RTT <= 0 || st.Ingress != 1 || st.ClientAddr != s.ClientAddr() {
		t.Errorf("%+v", st)
	}
	pair, err := c.pc.SCTP().Transport().ICETransport().GetSelectedCandidatePair()
	if err != nil || pair == nil {
		t.Fatal(err)
	}
	if int(pair.Local.Port) != int(s.ClientAddr().Port()) {
		t.Errorf("the Host sees the client at %v, its port is %d", s.ClientAddr(), pair.Local.Port)
	}
	if got := host.Stats(); got.Live != 1 || got.Connected != 1 || got.Accepted != 1 {
		t.Errorf("%+v", got)
	}
}

func TestSessionsLeaveNothingBehind(t *testing.T) {
	t.Parallel() // consent takes its time to run out
	for name, c := range map[string]struct {
		reason Reason
		end    func(*client, *Session)
	}{
		"client closes DTLS":  {ReasonClientClosed, func(c *client, _ *Session) { _ = c.pc.Close() }},
		"application closes":  {ReasonServer, func(_ *client, s *Session) { _ = s.Close() }},
		"callback panics":     {ReasonPanic, func(_ *client, s *Session) { s.Go(func(context.Context) { panic("x") }) }},
		"consent runs out":    {ReasonConsentLost, func(_ *client, _ *Session) {}},
		"closed by a handler": {ReasonServer, func(_ *client, s *Session) { s.Go(func(context.Context) { _ = s.Close() }) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			host, relay := setup(t, func(c *Config) {
				c.OnSession = echoSession
				if name == "consent runs out" {
					c.ConsentTimeout = 8 * time.Second // the Host's own checks, 5 s apart, renew it until then
				}
			})
			cl := newClient(t, nil)
			ch := cl.channel()
			s := cl.call(host, AcceptOptions{})
			ch.echo(t, "hello")
			if c.reason == ReasonConsentLost {
				all := func([]byte) bool { return true }
				relay.dropIn.Store(&all)
			}
			c.end(cl, s)
			wait(t, "the end", s.Done())
			if s.CloseReason() != c.reason {
				t.Errorf("ended because of %q, want %q", s.CloseReason(), c.reason)
			}
			if !errors.Is(s.Err(), net.ErrClosed) || !errors.Is(s.Err(), ErrSessionClosed) {
				t.Errorf("Err: %v", s.Err())
			}
			if s.Context().Err() == nil {
				t.Error("the context is not done")
			}
			if n := host.Stats().Live; n != 0 {
				t.Errorf("%d sessions are alive", n)
			}
			ufrags, numbers := host.sessions.len()
			if n := host.paths.len(); ufrags+numbers+n+host.minter.Live() != 0 {
				t.Errorf("left behind: %d ufrags, %d numbers, %d paths, %d minted", ufrags, numbers, n, host.minter.Live())
			}
			if st := host.Stats(); st.Ended[c.reason] != 1 || st.Connected != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

func TestNeverConnectedEndsByItself(t *testing.T) {
	t.Parallel()
	// Long enough for the answer to be made before it.
	host, _ := setup(t, func(c *Config) { c.ConnectTimeout = 3 * time.Second })
	c := newClient(t, nil)
	c.channel()
	s, _, err := host.Accept(context.Background(), c.offer(nil), AcceptOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wait(t, "the end", s.Done())
	if s.CloseReason() != ReasonNeverConnected {
		t.Errorf("ended because of %q", s.CloseReason())
	}
}

func TestICEWithoutDTLSEndsByItself(t *testing.T) {
	host, relay := setup(t, func(c *Config) { c.DTLSTimeout = 100 * time.Millisecond })
	dtls := func(b []byte) bool { return stun.Classify(b) == stun.ClassDTLS }
	relay.dropIn.Store(&dtls)
	c := newClient(t, nil)
	c.channel()
	s := c.call(host, AcceptOptions{})
	wait(t, "the end", s.Done())
	if s.CloseReason() != ReasonDTLSTimeout {
		t.Errorf("ended because of %q", s.CloseReason())
	}
}

// Pion repeats its ClientHello with another record number, and late: copies
// that are the same to the byte are ours.
func TestHelloIsRepeatedUntilTheClientAnswers(t *testing.T) {
	copies := make(chan string, 1000)
	host, relay := setup(t, withEcho)
	hellos := func(f *trunk.Frame) bool {
		if isClientHello(f.Payload) {
			copies <- string(f.Payload)
			return true // none arrives
		}
		return false
	}
	relay.dropOut.Store(&hellos)
	c := newClient(t, nil)
	ch := c.channel()
	s := c.call(host, AcceptOptions{})
	first := receive(t, "the first hello", copies)
	for n := 0; n < len(helloRepeats); {
		if receive(t, "the first hello again", copies) == first {
			n++ // and not Pion's own, which comes earlier than ours on a busy machine
		}
	}
	relay.dropOut.Store(nil)
	wait(t, "DTLS", s.Connected())
	ch.echo(t, "hello")
}

func TestWrongCertificateEndsTheSession(t *testing.T) {
	host, _ := setup(t, nil)
	c := newClient(t, nil)
	c.channel()
	o := c.offer(nil)
	print := sdpLines(o, "a=fingerprint:sha-256 ")[0]
	other := print[:len(print)-2] + "00"
	if other == print {
		other = print[:len(print)-2] + "01"
	}
	s, answer, err := host.Accept(context.Background(), strings.ReplaceAll(o, print, other), AcceptOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.answer(answer)
	wait(t, "the end", s.Done())
	if s.CloseReason() != ReasonDTLSFailed {
		t.Errorf("ended because of %q", s.CloseReason())
	}
}

// The answer to an offer that is active itself is passive, and works.
func TestClientThatIsDTLSClient(t *testing.T) {
	host, _ := setup(t, withEcho)
	c := newClient(t, nil)
	ch := c.channel()
	o := strings.ReplaceAll(c.offer(nil), "a=setup:actpass", "a=setup:active")
	s, answer, err := host.Accept(context.Background(), o, AcceptOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(sdpLines(answer, "a=setup:passive")) == 0 {
		t.Fatalf("the answer is not passive:\n%s", answer)
	}
	c.answer(answer)
	wait(t, "DTLS", s.Connected())
	ch.echo(t, "hello")
}

// A ClientHello that comes with the very first check, before Pion's agent has
// started, is kept for it. C15.
func TestHelloWithTheFirstCheckIsKept(t *testing.T) {
	conn := newVirtualConn("clnt", "clientPasswordclientPassword", func([]byte) {})
	hello := []byte{22, 254, 253, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1}
	conn.inject(time.Now())
	if !conn.deliver(hello) {
		t.Fatal("refused")
	}
	buf := make([]byte, slotSize)
	n, from, err := conn.ReadFromAddrPort(buf)
	if err != nil || from != virtualRemote {
		t.Fatal(n, from, err)
	}
	var m stun.Message
	if p := stun.Parse(buf[:n], &m); p != stun.OK {
		t.Fatal(p)
	}
	if !m.UseCandidate || !m.Controlling || string(m.Username) != conn.pionUfrag+":clnt" {
		t.Errorf("%+v", m)
	}
	if !new(stun.Authenticator).Check(&m, []byte(conn.pionPassword)) {
		t.Error("wrong integrity")
	}
	select {
	case p := <-conn.queue:
		t.Fatalf("%x came before the check was answered", p.bytes())
	default:
	}
	var b stun.Builder
	b.Reset(nil, stun.BindingSuccess, m.TransactionID)
	if _, err := conn.WriteToAddrPort(b.Bytes(), virtualRemote); err != nil {
		t.Fatal(err)
	}
	n, _, err = conn.ReadFromAddrPort(buf)
	if err != nil || string(buf[:n]) != string(hello) {
		t.Errorf("%x %v", buf[:n], err)
	}
	if at := conn.nextCheck(); !at.IsZero() {
		t.Error("the check would still be repeated")
	}
	_ = conn.Close()
	if _, _, err := conn.ReadFromAddrPort(buf); !errors.Is(err, net.ErrClosed) {
		t.Errorf("read after Close: %v", err)
	}
}

func TestRestartGetsAFreshUfragAndKeepsDTLS(t *testing.T) {
	var hellos atomic.Int32
	host, relay := setup(t, withEcho)
	hello := func(f *trunk.Frame) bool {
		if isClientHello(f.Payload) {
			hellos.Add(1)
		}
		return false
	}
	relay.dropOut.Store(&hello)
	c := newClient(t, nil)
	ch := c.channel()
	s := c.call(host, AcceptOptions{})
	ch.echo(t, "before")
	before, first := hellos.Load(), s.Ufrag()
	seen := []string{first}
	for i := range 3 {
		answer, err := s.Renegotiate(context.Background(), c.offer(&webrtc.OfferOptions{ICERestart: true}))
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(seen, s.Ufrag()) {
			t.Fatalf("restart %d did not change the ufrag", i)
		}
		seen = append(seen, s.Ufrag())
		if got := sdpLines(answer, "a=ice-ufrag:"); len(got) == 0 || got[0] != "a=ice-ufrag:"+s.Ufrag() {
			t.Errorf("the answer says %v", got)
		}
		c.answer(answer)
		ch.echo(t, "after")
		eventually(t, "a check with the new ufrag", func() bool {
			s.front.mu.Lock()
			defer s.front.mu.Unlock()
			for _, p := range s.front.agent.Paths() {
				if p.Current && p.Generation == i+2 && p.Validated {
					return true
				}
			}
			return false
		})
	}
	ch.echo(t, "at last")
	if n := hellos.Load(); n != before {
		t.Errorf("%d ClientHellos after the restarts, %d before", n, before)
	}
	if host.sessions.find([]byte(first)) != nil {
		t.Error("the first ufrag is still answered to after three restarts")
	}
	if n := host.Stats().Restarts; n != 3 {
		t.Errorf("%d restarts counted", n)
	}
	_ = s.Close()
	wait(t, "the end", s.Done())
	ufrags, numbers := host.sessions.len()
	if n := host.paths.len(); ufrags+numbers+n+host.minter.Live() != 0 {
		t.Errorf("left behind: %d ufrags, %d numbers, %d paths, %d minted", ufrags, numbers, n, host.minter.Live())
	}
}

// C31.
func TestRenegotiationWithoutRestartKeepsTheUfrag(t *testing.T) {
	host, _ := setup(t, withEcho)
	c := newClient(t, nil)
	ch := c.channel()
	s := c.call(host, AcceptOptions{})
	ch.echo(t, "before")
	first := s.Ufrag()
	for range 5 {
		track, err := webrtc.NewTrackLocalStaticSample(webrtc.RTPCodecCapability{MimeType: webrtc.MimeTypeOpus}, "a", "b")
		if err != nil {
			t.Fatal(err)
		}
		sender, err := c.pc.AddTrack(track)
		if err != nil {
			t.Fatal(err)
		}
		for _, remove := range []bool{false, true} {
			if remove {
				if err := c.pc.RemoveTrack(sender); err != nil {
					t.Fatal(err)
				}
			}
			answer, err := s.Renegotiate(context.Background(), c.offer(nil))
			if err != nil {
				t.Fatal(err)
			}
			c.answer(answer)
			if s.Ufrag() != first {
				t.Fatal("the ufrag changed without a restart")
			}
		}
	}
	ch.echo(t, "after")
}

func TestRenegotiationRefusesAnotherIdentity(t *testing.T) {
	host, _ := setup(t, withEcho)
	c := newClient(t, nil)
	ch := c.channel()
	s := c.call(host, AcceptOptions{})
	ch.echo(t, "before")
	_, err := s.Renegotiate(context.Background(), browserOffer())
	if !errors.Is(err, ErrChangedIdentity) {
		t.Errorf("got %v", err)
	}
	if _, err := s.Renegotiate(context.Background(), "v=1"); !errors.Is(err, ErrNotSDP) {
		t.Errorf("got %v", err)
	}
	ch.echo(t, "after")
}

// An offer that leaves nothing to answer changes nothing, and the next offer
// is answered. (Pion's client stops sending when it makes a restart offer.)
func TestRefusedRenegotiationChangesNothing(t *testing.T) {
	host, _ := setup(t, withEcho)
	c := newClient(t, nil)
	ch := c.channel()
	s := c.call(host, AcceptOptions{})
	ch.echo(t, "before")
	offer := c.offer(&webrtc.OfferOptions{ICERestart: true})
	section := offer[strings.Index(offer, "m=application"):]
	transport := strings.Join(slices.Concat(sdpLines(section, "a=ice-"), sdpLines(offer, "a=fingerprint")), "\r\n")
	bad := strings.Replace(offer, "m=application 9", "m=application 0", 1)
	bad = strings.Replace(bad, "a=group:BUNDLE 0", "a=group:BUNDLE v", 1)
	bad += "m=video 9 UDP/TLS/RTP/SAVPF 96\r\nc=IN IP4 0.0.0.0\r\na=mid:v\r\na=sendonly\r\na=rtcp-mux\r\na=setup:actpass\r\na=rtpmap:96 VP8/90000\r\n" + transport + "\r\n"
	before := s.Ufrag()
	if _, err := s.Renegotiate(context.Background(), bad); !errors.Is(err, ErrUnsupported) {
		t.Fatalf("got %v", err)
	}
	if s.Ufrag() != before || s.CloseReason() != ReasonNone {
		t.Fatalf("the refused offer had an effect: %v", s.Err())
	}
	answer, err := s.Renegotiate(context.Background(), offer)
	if err != nil {
		t.Fatal(err)
	}
	if s.Ufrag() == before {
		t.Error("the second try did not restart ICE")
	}
	c.answer(answer)
	ch.echo(t, "after the restart")
}

// A NAT gives the client another port in the middle of a call with audio: the
// relay guesses the owner and says so, the Host proves the new path. C29.
func TestRebindingFollowsTheClient(t *testing.T) {
	host, relay := setup(t, withEcho)
	c := newClient(t, nil)
	ch := c.channel()
	back := c.microphone()
	s := c.call(host, AcceptOptions{})
	ch.echo(t, "before")
	<-back
	eventually(t, "a proven path", func() bool { return s.Stats().Validated })
	from := s.ClientAddr()
	to := netip.AddrPortFrom(from.Addr(), from.Port()^0x0101)
	// The relay marks packets from an unknown port as a guess and names the session.
	guess := func(b []byte) bool {
		if stun.Classify(b) == stun.ClassSTUN {
			return b[0] == 0 // the client's own checks are lost: only the Host's can prove the path
		}
		if s.ClientAddr() != to {
			relay.toHost(&trunk.Frame{Flags: trunk.Unverified, Ingress: 1, Client: to, Route: s.Route(), Payload: b})
			return true
		}
		return false
	}
	relay.dropIn.Store(&guess)
	relay.rebind(from, to)
	eventually(t, "the session to move", func() bool { return s.ClientAddr() == to })
	for len(back) > 0 {
		<-back
	}
	select {
	case <-back:
	case <-time.After(patience):
		t.Fatal("no audio after the move")
	}
	ch.echo(t, "after")
	if st := s.Stats(); st.PathChanges != 1 {
		t.Errorf("%+v", st)
	}
}

func TestFramesTeachTheRelay(t *testing.T) {
	host, relay := setup(t, withEcho)
	c := newClient(t, nil)
	ch := c.channel()
	back := c.microphone()
	s := c.call(host, AcceptOptions{})
	ch.echo(t, "hello")
	<-back
	eventually(t, "media with route and SSRC", func() bool {
		relay.framesMu.Lock()
		defer relay.framesMu.Unlock()
		return slices.ContainsFunc(relay.frames, func(f trunk.Frame) bool {
			return f.Flags&trunk.Validated != 0 && f.Route == s.Route() && f.NSSRC == 1 && f.SSRCs[0] != 0 && f.Payload[0] >= 128
		})
	})
	relay.framesMu.Lock()
	defer relay.framesMu.Unlock()
	for _, f := range relay.frames {
		if f.Flags&trunk.Validated == 0 && f.Route.IsValid() {
			t.Error("an unproven path teaches a route")
		}
	}
}

func TestAcceptRefuses(t *testing.T) {
	host, _ := setup(t, func(c *Config) {
		c.MaxSessions = 1
		c.RequireAudio = true
	})
	c := newClient(t, nil)
	c.channel()
	if _, _, err := host.Accept(context.Background(), c.offer(nil), AcceptOptions{}); !errors.Is(err, ErrNoAudio) {
		t.Errorf("without audio: %v", err)
	}
	c = newClient(t, nil)
	c.microphone()
	o := c.offer(nil)
	boom := errors.New("boom")
	_, _, err := host.Accept(context.Background(), o, AcceptOptions{Prepare: func(*Session) error { return boom }})
	if !errors.Is(err, boom) {
		t.Errorf("Prepare's error: %v", err)
	}
	_, _, err = host.Accept(context.Background(), o, AcceptOptions{Prepare: func(*Session) error { panic("boom") }})
	if !errors.Is(err, ErrPanic) {
		t.Errorf("Prepare's panic: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	_, _, err = host.Accept(ctx, o, AcceptOptions{Prepare: func(*Session) error { cancel(); return nil }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled context: %v", err)
	}
	var ce *ConfigError
	if _, _, err := host.Accept(context.Background(), o, AcceptOptions{Metadata: []byte("{")}); !errors.As(err, &ce) {
		t.Errorf("bad metadata: %v", err)
	}
	if _, _, err := host.Accept(context.Background(), o, AcceptOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := host.Accept(context.Background(), o, AcceptOptions{}); !errors.Is(err, ErrFull) {
		t.Errorf("when full: %v", err)
	}
	if n := host.Stats().Refused; n != 6 {
		t.Errorf("%d refused", n)
	}
}

func TestVideoIsRejectedByDefaultAndTheRestWorks(t *testing.T) {
	host, _ := setup(t, withEcho)
	c := newClient(t, nil)
	recvonly := webrtc.RTPTransceiverInit{Direction: webrtc.RTPTransceiverDirectionRecvonly}
	if _, err := c.pc.AddTransceiverFromKind(webrtc.RTPCodecTypeVideo, recvonly); err != nil {
		t.Fatal(err)
	}
	ch := c.channel()
	s, answer, err := host.Accept(context.Background(), c.offer(nil), AcceptOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(sdpLines(answer, "m=video 0 ")) != 1 {
		t.Errorf("video is not rejected:\n%s", answer)
	}
	c.answer(answer)
	wait(t, "DTLS", s.Connected())
	ch.echo(t, "hello")
}

// C93.
func TestRejectedSectionWithAnotherUfragIsIgnored(t *testing.T) {
	host, _ := setup(t, withEcho)
	c := newClient(t, nil)
	ch := c.channel()
	o := c.offer(nil) + "m=audio 0 UDP/TLS/RTP/SAVPF 111\r\nc=IN IP4 0.0.0.0\r\na=rtpmap:111 opus/48000/2\r\na=ice-ufrag:other\r\na=ice-pwd:otherotherotherotherother\r\n"
	s, answer, err := host.Accept(context.Background(), o, AcceptOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(sdpLines(answer, "m=audio 0 ")) != 1 {
		t.Errorf("no rejected section in the answer:\n%s", answer)
	}
	c.answer(answer[:strings.Index(answer, "m=audio 0")]) // Pion's own client did not offer it
	wait(t, "DTLS", s.Connected())
	ch.echo(t, "hello")
}

func TestRouteLeadsToTheHost(t *testing.T) {
	host, _ := setup(t, func(c *Config) { c.AdvertiseTrunk = netip.MustParseAddrPort("10.1.2.3:0") })
	c := newClient(t, nil)
	c.channel()
	s, answer, err := host.Accept(context.Background(), c.offer(nil), AcceptOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got := strings.TrimPrefix(sdpLines(answer, "a=ice-ufrag:")[0], "a=ice-ufrag:")
	r, err := host.cfg.Codec.Decode([]byte(got))
	if err != nil {
		t.Fatal(err)
	}
	want := netip.AddrPortFrom(netip.MustParseAddr("10.1.2.3"), host.Addr().Port())
	if a, ok := r.AddrPort(); !ok || a != want || r != s.Route() || r.Session != s.Route().Session {
		t.Errorf("the ufrag leads to %v, want %v", a, want)
	}
	if len(got) != ufrag.Length {
		t.Errorf("%d characters", len(got))
	}
}
