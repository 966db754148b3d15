package pcm

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/pion/webrtc/v4"
	"github.com/pion/webrtc/v4/pkg/media"

	"github.com/usher-rtc/usher/examples/internal/local"
	"github.com/usher-rtc/usher/transceiver"
	"github.com/usher-rtc/usher/transceiver/bridge"
)

// patience is how long a test waits for what must come; it is no expectation of
// speed.
const patience = time.Minute

const (
	clientHertz, serviceHertz = 440.0, 880.0
	// mostPackets are forty seconds, in which the tone must have been heard.
	mostPackets = 2000
)

// isTone checks that PCM is one tone and no silence.
func isTone(c Codec, pcm []byte, hertz float64) error {
	part, rms := power(c, pcm, hertz)
	if part < 0.8 || rms < 3000 {
		return fmt.Errorf("%.0f %% of it is %.0f Hz, its level is %.0f", 100*part, hertz, rms)
	}
	return nil
}

// TestCall: a service that takes samples hears a client's tone and answers with
// another one, over a relay, a transceiver and the bridge.
func TestCall(t *testing.T) {
	for _, c := range Both() {
		rate, _ := c.(Codec)
		t.Run(rate.String(), func(t *testing.T) { call(t, rate) })
	}
}

func call(t *testing.T, rate Codec) {
	t.Helper()
	heard := make(chan error, 1) // by the service
	h, err := bridge.NewHandler(bridge.HandlerConfig{
		Codec: rate.String(), Logger: slog.New(slog.DiscardHandler),
		Serve: func(ctx context.Context, c *bridge.Call) error {
			heard <- listen(ctx, c, rate)
			for ctx.Err() == nil {
				if err := speak(ctx, c, rate); err != nil {
					return err
				}
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	service := httptest.NewServer(h)
	t.Cleanup(service.Close)

	network, err := local.Start(t.Context(), local.Config{Relay: netip.MustParseAddrPort("127.0.0.1:0")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(network.Close)
	cfg := network.Host()
	cfg.Logger = slog.New(slog.DiscardHandler)
	cfg.OnSession = func(s *transceiver.Session) error {
		_, err := bridge.Attach(s, bridge.Config{Target: bridge.Target{URL: service.URL}, Codecs: Both()})
		return err
	}
	host, err := transceiver.NewHost(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = host.Close() })

	answered := client(t, host)
	for who, result := range map[string]<-chan error{"the service": heard, "the client": answered} {
		select {
		case err := <-result:
			if err != nil {
				t.Errorf("%s: %v", who, err)
			}
		case <-time.After(patience):
			t.Errorf("%s hears nothing", who)
		}
	}
}

// listening looks for a tone that lasts a fifth of a second. On a busy machine a
// stream has holes, which cost the tone its phase.
type listening struct {
	codec Codec
	hertz float64
	pcm   []byte
	best  error
}

const tonePackets = 10

// hears takes a packet's PCM and reports whether the tone was there.
func (l *listening) hears(pcm []byte) bool {
	l.pcm = append(l.pcm, pcm...)
	if n := tonePackets * 2 * l.codec.Frame(); len(l.pcm) >= n {
		l.best = isTone(l.codec, l.pcm[:n], l.hertz)
		l.pcm = l.pcm[:0]
		return l.best == nil
	}
	return false
}

// listen waits for the client's tone.
func listen(ctx context.Context, c *bridge.Call, rate Codec) error {
	l := listening{codec: rate, hertz: clientHertz}
	for range mostPackets {
		f, err := c.Next(ctx)
		if err != nil {
			return err
		}
		if len(f.Payload) != 2*rate.Frame() || f.Duration != 20*time.Millisecond {
			return fmt.Errorf("%d bytes, %v", len(f.Payload), f.Duration)
		}
		if l.hears(f.Payload) {
			return nil
		}
	}
	return l.best
}

// speak answers with two seconds of a tone, in pieces that are no frames.
func speak(ctx context.Context, c *bridge.Call, rate Codec) error {
	var pcm []byte
	for range 2 {
		for _, frame := range tone(rate, serviceHertz) {
			pcm = append(pcm, frame...)
		}
	}
	answer := c.Say()
	for len(pcm) > 0 {
		n := min(998, len(pcm))
		if err := answer.Write(ctx, pcm[:n]); err != nil {
			return err
		}
		pcm = pcm[n:]
	}
	_, err := answer.Wait(ctx)
	return err
}

// client makes a call, speaks its tone for the test's life, and says how the
// answer sounds.
func client(t *testing.T, host *transceiver.Host) <-chan error {
	t.Helper()
	var se webrtc.SettingEngine
	se.SetIncludeLoopbackCandidate(true)
	se.SetICEMaxBindingRequests(1000) // or a client gives up on a busy machine after 1.5 s
	se.SetIPFilter(func(ip net.IP) bool { return ip.IsLoopback() })
	pc, err := webrtc.NewAPI(webrtc.WithSettingEngine(se)).NewPeerConnection(webrtc.Configuration{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pc.GracefulClose() })
	mic, err := webrtc.NewTrackLocalStaticSample(webrtc.RTPCodecCapability{MimeType: webrtc.MimeTypeOpus}, "mic", "client")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pc.AddTrack(mic); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	pc.OnTrack(func(track *webrtc.TrackRemote, _ *webrtc.RTPReceiver) { answered <- hear(track) })
	offer, err := pc.CreateOffer(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := pc.SetLocalDescription(offer); err != nil {
		t.Fatal(err)
	}
	_, answer, err := host.Accept(t.Context(), offer.SDP, transceiver.AcceptOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := pc.SetRemoteDescription(webrtc.SessionDescription{Type: webrtc.SDPTypeAnswer, SDP: answer}); err != nil {
		t.Fatal(err)
	}
	e, err := Rate24k.NewEncoder()
	if err != nil {
		t.Fatal(err)
	}
	packets := encodeAll(t, e, tone(Rate24k, clientHertz)) // whole periods: it can be repeated
	stop, stopped := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(stop); <-stopped })
	go func() {
		defer close(stopped)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			case <-tick.C:
				_ = mic.WriteSample(media.Sample{Data: packets[n%len(packets)], Duration: 20 * time.Millisecond}) // not before it is connected
			}
		}
	}()
	return answered
}

// hear waits for the service's tone.
func hear(track *webrtc.TrackRemote) error {
	d, err := Rate16k.NewDecoder()
	if err != nil {
		return err
	}
	l := listening{codec: Rate16k, hertz: serviceHertz}
	for range mostPackets {
		p, _, err := track.ReadRTP()
		if err != nil {
			return err
		}
		pcm, err := d.Decode(nil, p.Payload)
		if err != nil {
			return err
		}
		if l.hears(pcm) {
			return nil
		}
	}
	return l.best
}
