package bridge_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pion/rtp"
	"github.com/pion/webrtc/v4"

	"github.com/usher-rtc/usher/relay"
	"github.com/usher-rtc/usher/transceiver"
	"github.com/usher-rtc/usher/transceiver/bridge"
	"github.com/usher-rtc/usher/transceiver/bridge/bridgetest"
	"github.com/usher-rtc/usher/ufrag"
)

const patience = time.Minute

// site is a relay and a Host in this process.
func site(t *testing.T, onSession func(*transceiver.Session) error) *transceiver.Host {
	t.Helper()
	key, err := ufrag.GenerateKey('a')
	if err != nil {
		t.Fatal(err)
	}
	keys, err := ufrag.NewKeyring('a', key)
	if err != nil {
		t.Fatal(err)
	}
	codec, inside := ufrag.NewCodec(keys), []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	front, err := relay.New(relay.Config{
		Ingresses: []relay.Ingress{{ID: 1, Listen: netip.MustParseAddrPort("127.0.0.1:0")}},
		Trunk:     netip.MustParseAddrPort("127.0.0.1:0"), Workers: 1,
		Codec: codec, TrunkKeys: keys, AllowUpstream: inside, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = front.Serve()
	}()
	t.Cleanup(func() {
		_ = front.Close()
		<-served
	})
	host, err := transceiver.NewHost(transceiver.Config{
		Listen: netip.MustParseAddrPort("127.0.0.1:0"), Codec: codec, TrunkKeys: keys, AllowRelays: inside,
		Ingresses: []transceiver.Ingress{{ID: 1, Advertise: front.Ingresses()[0].Advertise}},
		OnSession: onSession, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := host.Close(); err != nil {
			t.Error(err)
		}
	})
	return host
}

// caller is a stock Pion client with a microphone and a data channel.
type caller struct {
	pc     *webrtc.PeerConnection
	mic    *webrtc.TrackLocalStaticRTP
	page   *webrtc.DataChannel
	events chan string
	heard  chan []byte
	open   chan struct{}
	sent   uint16
}

func call(t *testing.T, host *transceiver.Host) *caller {
	t.Helper()
	var se webrtc.SettingEngine
	se.SetNetworkTypes([]webrtc.NetworkType{webrtc.NetworkTypeUDP4})
	se.SetIncludeLoopbackCandidate(true)
	se.SetICEMaxBindingRequests(1000) // or a client gives up on a busy machine after 1.5 s
	se.SetIPFilter(func(ip net.IP) bool { return ip.IsLoopback() })
	m := &webrtc.MediaEngine{}
	if err := m.RegisterDefaultCodecs(); err != nil {
		t.Fatal(err)
	}
	pc, err := webrtc.NewAPI(webrtc.WithSettingEngine(se), webrtc.WithMediaEngine(m)).NewPeerConnection(webrtc.Configuration{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pc.GracefulClose() })
	c := &caller{pc: pc, events: make(chan string, 100), heard: make(chan []byte, 1000), open: make(chan struct{})}
	c.mic, err = webrtc.NewTrackLocalStaticRTP(webrtc.RTPCodecCapability{MimeType: webrtc.MimeTypeOpus, ClockRate: 48000, Channels: 2}, "mic", "caller")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pc.AddTrack(c.mic); err != nil {
		t.Fatal(err)
	}
	if c.page, err = pc.CreateDataChannel("oai-events", nil); err != nil {
		t.Fatal(err)
	}
	c.page.OnOpen(func() { close(c.open) })
	c.page.OnMessage(func(m webrtc.DataChannelMessage) { c.events <- string(m.Data) })
	pc.OnTrack(func(track *webrtc.TrackRemote, _ *webrtc.RTPReceiver) {
		for {
			p, _, err := track.ReadRTP()
			if err != nil {
				return
			}
			if len(p.Payload) == 60 { // and not the Host's own silence
				c.heard <- p.Payload
			}
		}
	})
	offer, err := pc.CreateOffer(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := pc.SetLocalDescription(offer); err != nil {
		t.Fatal(err)
	}
	_, answer, err := host.Accept(context.Background(), offer.SDP, transceiver.AcceptOptions{Metadata: json.RawMessage(`{"voice":"calm"}`)})
	if err != nil {
		t.Fatal(err)
	}
	if err := pc.SetRemoteDescription(webrtc.SessionDescription{Type: webrtc.SDPTypeAnswer, SDP: answer}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.open:
	case <-time.After(patience):
		t.Fatal("the call is not set up")
	}
	return c
}

// say sends a packet of 20 ms.
func (c *caller) say(t *testing.T) {
	t.Helper()
	payload := make([]byte, 60)
	payload[0], payload[1] = 0x78, byte(c.sent)
	err := c.mic.WriteRTP(&rtp.Packet{
		Header:  rtp.Header{Version: 2, SequenceNumber: c.sent, Timestamp: uint32(c.sent) * 960},
		Payload: payload,
	})
	if err != nil {
		t.Fatal(err)
	}
	c.sent++
}

// hears speaks until something comes back.
func (c *caller) hears(t *testing.T) {
	t.Helper()
	limit := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-c.heard:
			return
		case <-tick.C:
			c.say(t)
		case <-limit:
			t.Fatal("nothing comes back")
		}
	}
}

// event waits for an event that holds a text.
func (c *caller) event(t *testing.T, want string) string {
	t.Helper()
	limit := time.After(patience)
	for {
		select {
		case ev := <-c.events:
			if strings.Contains(ev, want) {
				return ev
			}
		case <-limit:
			t.Fatalf("no event with %q", want)
		}
	}
}

// TestServiceKilledBehindARealCall: from a client through relay, Host and bridge
// to a service and back; the service dies, the page says so, the call goes on
// with another one.
func TestServiceKilledBehindARealCall(t *testing.T) {
	killed := errors.New("killed")
	var kill atomic.Pointer[func()]
	serve := func(ctx context.Context, c *bridge.Call) error {
		ctx, cancel := context.WithCancelCause(ctx)
		stop := func() { cancel(killed) }
		kill.Store(&stop)
		err := bridgetest.Echo(ctx, c)
		if context.Cause(ctx) == killed {
			return killed
		}
		return err
	}
	handler, err := bridge.NewHandler(bridge.HandlerConfig{Serve: serve, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	service := httptest.NewServer(handler)
	t.Cleanup(service.Close)
	bridges := make(chan *bridge.Bridge, 1)
	host := site(t, func(s *transceiver.Session) error {
		b, err := bridge.Attach(s, bridge.Config{
			Target:     bridge.Target{URL: service.URL},
			HTTPClient: &http.Client{Transport: &http.Transport{}},
			Logger:     slog.New(slog.DiscardHandler),
			OnState: func(b *bridge.Bridge, c bridge.Change) {
				s.Go(func(ctx context.Context) {
					_ = b.Events().SendJSON(ctx, map[string]any{"type": "service", "state": c.State})
				})
			},
		})
		bridges <- b
		return err
	})
	c := call(t, host)
	b := <-bridges
	c.hears(t)
	_ = c.page.SendText("!session")
	var known bridgetest.Session
	if err := json.Unmarshal([]byte(c.event(t, `"token"`)), &known); err != nil {
		t.Fatal(err)
	}
	if string(known.Metadata) != `{"voice":"calm"}` || known.Connection != 1 || !strings.HasPrefix(known.Client, "127.0.0.1:") {
		t.Errorf("%+v", known)
	}
	_ = c.page.SendText("!interrupt")
	c.event(t, "interrupted ")

	(*kill.Load())()
	c.event(t, `"reconnecting"`) // the page says so
	c.event(t, `"ready"`)
	for len(c.heard) > 0 {
		<-c.heard
	}
	c.hears(t)
	_ = c.page.SendText("!session")
	token := known.Token
	if err := json.Unmarshal([]byte(c.event(t, `"token"`)), &known); err != nil {
		t.Fatal(err)
	}
	if known.Token != token || known.Connection != 2 || known.After == "" {
		t.Errorf("%+v", known)
	}
	if st := b.Stats(); st.State != bridge.StateReady || st.Connections != 2 {
		t.Errorf("%+v", st)
	}
	// The service hangs up.
	_ = c.page.SendText("!hangup")
	<-b.Done()
	var ended *bridge.EndError
	if !errors.As(b.Err(), &ended) || ended.Reason != "asked" {
		t.Errorf("%v", b.Err())
	}
	if live := host.Sessions(); len(live) > 0 {
		<-live[0].Done()
	}
}

func TestAttachRefuses(t *testing.T) {
	target := bridge.Config{Target: bridge.Target{URL: "ws://127.0.0.1:1"}}
	host := site(t, func(s *transceiver.Session) error {
		_, err := bridge.Attach(s, target)
		return err
	})
	pc, err := webrtc.NewPeerConnection(webrtc.Configuration{})
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	if _, err := pc.CreateDataChannel("x", nil); err != nil {
		t.Fatal(err)
	}
	silent, err := pc.CreateOffer(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := host.Accept(context.Background(), silent.SDP, transceiver.AcceptOptions{}); !errors.Is(err, transceiver.ErrNoOpus) {
		t.Errorf("an offer without audio: %v", err)
	}
	long := json.RawMessage(`"` + strings.Repeat("x", 50<<10) + `"`)
	var bad *bridge.ConfigError
	_, _, err = host.Accept(context.Background(), voiceOffer(), transceiver.AcceptOptions{Metadata: long})
	if !errors.As(err, &bad) || bad.Field != "Metadata" {
		t.Errorf("long metadata: %v", err)
	}
	var status *transceiver.StatusError
	if !errors.As(err, &status) || status.Status != http.StatusRequestEntityTooLarge {
		t.Errorf("the client is not told: %v", err)
	}
}

// TestAgent runs the program of the README by hand: a turn is noticed and said
// back, and a second turn interrupts.
func TestAgent(t *testing.T) {
	c := bridgetest.NewCaller(t, bridgetest.CallerConfig{Service: bridgetest.Service{Handler: bridge.Handler(agent)}})
	n := 0
	speak := func(frames int, level uint8) {
		for range frames {
			c.Say(transceiver.Frame{Payload: []byte{0x78, byte(n)}, HasLevel: true, Level: level})
			n++
		}
	}
	event := func(want string) {
		t.Helper()
		if got := c.Event(); string(got.Data) != want {
			t.Fatalf("%s, want %s", got.Data, want)
		}
	}
	speak(5, 127)
	speak(10, 30)
	event(`{"cut_off":"0s","type":"listening"}`)
	speak(30, 127)
	event(`{"frames":10,"type":"answering"}`)
	heard := c.Hear(200 * time.Millisecond)
	for i, packet := range heard {
		if want := []byte{0x78, byte(5 + i)}; !bytes.Equal(packet, want) {
			t.Errorf("it says % x back, want % x", packet, want)
		}
	}
	speak(10, 30)
	event(`{"cut_off":"0s","type":"listening"}`)
	speak(30, 127)
	event(`{"frames":10,"type":"answering"}`)
	c.Hear(40 * time.Millisecond)
	speak(1, 30)
	if cut := c.Interrupted(); cut.Played != 40*time.Millisecond || cut.Dropped == 0 {
		t.Errorf("%+v", cut)
	} else {
		event(`{"cut_off":"` + cut.Dropped.String() + `","type":"listening"}`)
	}
}
