package e2e

import (
	"context"
	"net/http"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/e2e/browser"
	"github.com/usher-rtc/usher/relay"
	"github.com/usher-rtc/usher/transceiver"
	"github.com/usher-rtc/usher/ufrag"
)

// inProcess is a relay and a transceiver of the test's own, inside a network,
// with the page of the examples.
func inProcess(t *testing.T, n *network, onSession func(*transceiver.Session) error) (url string) {
	t.Helper()
	key, err := ufrag.GenerateKey('a')
	if err != nil {
		t.Fatal(err)
	}
	keys, err := ufrag.NewKeyring('a', key)
	if err != nil {
		t.Fatal(err)
	}
	codec := ufrag.NewCodec(keys)
	ingress := netip.MustParseAddrPort("127.0.0.1:3478")
	trunks := []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	var front *relay.Server
	var host *transceiver.Host
	err = n.Do(func() (err error) {
		front, err = relay.New(relay.Config{
			Ingresses: []relay.Ingress{{ID: 1, Listen: ingress, Advertise: ingress}},
			Trunk:     netip.MustParseAddrPort("127.0.0.1:0"), Codec: codec, TrunkKeys: keys, AllowUpstream: trunks,
		})
		if err != nil {
			return err
		}
		host, err = transceiver.NewHost(transceiver.Config{
			Listen: netip.MustParseAddrPort("127.0.0.1:0"), Codec: codec, TrunkKeys: keys, AllowRelays: trunks,
			Ingresses: []transceiver.Ingress{{ID: 1, Advertise: ingress}}, OnSession: onSession,
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- front.Serve() }()
	calls, err := transceiver.NewHandler(host, transceiver.SignallingConfig{})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", http.FileServerFS(os.DirFS("../../examples/internal/web/static")))
	mux.Handle("/v1/realtime/calls", calls)
	mux.Handle("/v1/realtime/calls/", calls)
	server := &http.Server{Handler: mux}
	listener := n.listen(t, "127.0.0.1:8080")
	pages := make(chan struct{})
	go func() {
		defer close(pages)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-pages
		_ = host.Close()
		_ = front.Close()
		<-served
	})
	return "http://" + listener.Addr().String()
}

// TestAudioOfBrowsers looks at what browsers send and report: audio levels
// with every frame, and receiver reports that tell the round trip.
func TestAudioOfBrowsers(t *testing.T) {
	eachBrowser(t, func(t *testing.T, kind browser.Kind) {
		ctx := testContext(t, 90*time.Second)
		n := loopbackNetwork(t)
		audios := make(chan *transceiver.Audio, 1)
		type tally struct{ frames, levels, loud, lost int }
		heard := make(chan tally, 1)
		url := inProcess(t, n, func(s *transceiver.Session) error {
			events, err := s.OpenEvents(transceiver.EventsConfig{})
			if err != nil {
				return err
			}
			s.Go(func(ctx context.Context) {
				for ev, err := events.Next(ctx); err == nil; ev, err = events.Next(ctx) {
					_ = events.Send(ctx, ev)
				}
			})
			a, err := s.OpenAudio(transceiver.AudioConfig{})
			if err != nil {
				return err
			}
			audios <- a
			s.Go(func(ctx context.Context) {
				var sum tally
				for f, err := range a.Frames(ctx) {
					if err != nil || a.Write(ctx, f.Payload) != nil {
						return
					}
					sum.frames++
					sum.lost += f.Lost
					if f.HasLevel {
						sum.levels++
					}
					if f.HasLevel && f.Level < 60 {
						sum.loud++
					}
					if sum.frames == 150 {
						heard <- sum
					}
				}
			})
			return nil
		})
		b := launch(t, ctx, n, kind, browser.Options{Loopback: true})
		for _, r := range callAll(t, ctx, open(t, ctx, b, url), "audio", 1) {
			t.Logf("connect %.0f ms, echo %.1f ms, %d packets, loudness %.3f", r.Connect, r.EchoRTT, r.Packets, r.Loudness)
		}
		select {
		case sum := <-heard:
			t.Logf("%+v", sum)
			if sum.levels != sum.frames || sum.loud == 0 || sum.loud == sum.frames && kind == browser.Chromium {
				t.Errorf("the simulated microphone beeps: %+v", sum)
			}
		case <-ctx.Done():
			t.Fatal("no audio")
		}
		a := <-audios
		eventually(t, 30*time.Second, func() string {
			if st := a.Stats(); st.RoundTrip == 0 {
				return "no round trip in the client's reports"
			}
			return ""
		})
		t.Logf("%+v", a.Stats())
	})
}
