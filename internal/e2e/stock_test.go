package e2e

import (
	"errors"
	"io"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/pion/webrtc/v4"

	"github.com/usher-rtc/usher/internal/e2e/browser"
)

// stockPion is an echo server on Pion alone: no relay, no transceiver, one UDP
// port. It proves that the harness measures what it says, and it is what the
// set-up times of the real thing are compared with.
func stockPion(t *testing.T, n *network) (url string) {
	t.Helper()
	var engine webrtc.SettingEngine
	engine.SetICEUDPMux(n.iceMux(t, "127.0.0.1:3478"))
	engine.SetIncludeLoopbackCandidate(true)
	api := webrtc.NewAPI(webrtc.WithSettingEngine(engine))

	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(os.DirFS("../../examples/internal/web/static")))
	mux.HandleFunc("POST /v1/realtime/calls", func(w http.ResponseWriter, r *http.Request) {
		offer, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<10))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		pc, err := api.NewPeerConnection(webrtc.Configuration{})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		t.Cleanup(func() { _ = pc.Close() })
		answer, err := stockAnswer(pc, string(offer))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Location", "/calls/1")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, answer)
	})
	server := &http.Server{Handler: mux}
	listener := n.listen(t, "127.0.0.1:8080")
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return "http://" + listener.Addr().String()
}

func stockAnswer(pc *webrtc.PeerConnection, offer string) (string, error) {
	pc.OnDataChannel(func(dc *webrtc.DataChannel) {
		dc.OnMessage(func(m webrtc.DataChannelMessage) { _ = dc.SendText(string(m.Data)) })
	})
	track, err := webrtc.NewTrackLocalStaticRTP(
		webrtc.RTPCodecCapability{MimeType: webrtc.MimeTypeOpus, ClockRate: 48000, Channels: 2}, "audio", "echo")
	if err != nil {
		return "", err
	}
	if _, err := pc.AddTrack(track); err != nil {
		return "", err
	}
	pc.OnTrack(func(remote *webrtc.TrackRemote, _ *webrtc.RTPReceiver) {
		for {
			packet, _, err := remote.ReadRTP()
			if err != nil {
				return
			}
			if err := track.WriteRTP(packet); err != nil {
				return
			}
		}
	})
	if err := pc.SetRemoteDescription(webrtc.SessionDescription{Type: webrtc.SDPTypeOffer, SDP: offer}); err != nil {
		return "", err
	}
	answer, err := pc.CreateAnswer(nil)
	if err != nil {
		return "", err
	}
	gathered := webrtc.GatheringCompletePromise(pc)
	if err := pc.SetLocalDescription(answer); err != nil {
		return "", err
	}
	select {
	case <-gathered:
	case <-time.After(5 * time.Second):
		return "", errors.New("gathering took longer than 5 s")
	}
	return pc.LocalDescription().SDP, nil
}

func TestStockPionInBrowsers(t *testing.T) {
	eachBrowser(t, func(t *testing.T, kind browser.Kind) {
		ctx := testContext(t, 90*time.Second)
		n := loopbackNetwork(t)
		b := launch(t, ctx, n, kind, browser.Options{Loopback: true})
		p := open(t, ctx, b, stockPion(t, n))
		for _, r := range callAll(t, ctx, p, "stock", 3) {
			t.Logf("connect %.0f ms, echo %.1f ms, %d packets, loudness %.3f", r.Connect, r.EchoRTT, r.Packets, r.Loudness)
		}
	})
}
