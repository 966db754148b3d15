package e2e

import (
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pion/webrtc/v4"
	"github.com/pion/webrtc/v4/pkg/media"

	"github.com/usher-rtc/usher/internal/e2e/netns"
)

// pionClient is a call made by Pion.
type pionClient struct {
	pc       *webrtc.PeerConnection
	track    *webrtc.TrackLocalStaticSample
	ufrag    string
	answer   string
	location string
	connect  time.Duration // from the answer to connected

	mu  sync.Mutex
	got map[uint32]bool // packet numbers that came back
}

// pionCall makes a call to base from inside the network.
func pionCall(t *testing.T, ctx context.Context, n *network, base string) *pionClient {
	t.Helper()
	var engine webrtc.SettingEngine
	engine.SetICEUDPMux(n.iceMux(t, "127.0.0.1:0"))
	engine.SetIncludeLoopbackCandidate(true)
	engine.SetICEMaxBindingRequests(1000) // or a client gives up on a busy machine after 1.5 s
	pc, err := webrtc.NewAPI(webrtc.WithSettingEngine(engine)).NewPeerConnection(webrtc.Configuration{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pc.Close() })
	c := &pionClient{pc: pc, got: make(map[uint32]bool)}
	c.track, err = webrtc.NewTrackLocalStaticSample(
		webrtc.RTPCodecCapability{MimeType: webrtc.MimeTypeOpus, ClockRate: 48000, Channels: 2}, "audio", "client")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pc.AddTrack(c.track); err != nil {
		t.Fatal(err)
	}
	pc.OnTrack(func(track *webrtc.TrackRemote, _ *webrtc.RTPReceiver) {
		for {
			packet, _, err := track.ReadRTP()
			if err != nil {
				return
			}
			if len(packet.Payload) == opusBytes {
				c.mu.Lock()
				c.got[binary.BigEndian.Uint32(packet.Payload[1:])] = true
				c.mu.Unlock()
			}
		}
	})
	connected := make(chan struct{})
	var once sync.Once
	pc.OnConnectionStateChange(func(state webrtc.PeerConnectionState) {
		if state == webrtc.PeerConnectionStateConnected {
			once.Do(func() { close(connected) })
		}
	})

	offer, err := pc.CreateOffer(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := pc.SetLocalDescription(offer); err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/realtime/calls", strings.NewReader(offer.SDP))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/sdp")
	response, err := n.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != http.StatusCreated {
		t.Fatalf("POST: %s: %s", response.Status, body)
	}
	c.answer, c.location = string(body), base+response.Header.Get("Location")
	for line := range strings.Lines(c.answer) {
		if text, found := strings.CutPrefix(strings.TrimSpace(line), "a=ice-ufrag:"); found {
			c.ufrag = text
		}
	}
	begin := time.Now()
	if err := pc.SetRemoteDescription(webrtc.SessionDescription{Type: webrtc.SDPTypeAnswer, SDP: c.answer}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-connected:
		c.connect = time.Since(begin)
	case <-time.After(20 * time.Second):
		t.Fatalf("not connected in 20 s: %v", pc.ConnectionState())
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	}
	return c
}

// opusBytes is the size of a packet of about 24 kbit/s in 20 ms.
const opusBytes = 60

// echo sends numbered Opus packets in real time, from number first on, and
// returns how many came back. The echo does not look inside, so their content is
// one byte that says "20 ms" and the number.
func (c *pionClient) echo(t *testing.T, first, n int) (returned int) {
	t.Helper()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for i := first; i < first+n; i++ {
		<-ticker.C
		payload := make([]byte, opusBytes)
		payload[0] = 0x78 // RFC 6716 section 3.1: CELT, full band, 20 ms, mono
		binary.BigEndian.PutUint32(payload[1:], uint32(i))
		if err := c.track.WriteSample(media.Sample{Data: payload, Duration: 20 * time.Millisecond}); err != nil {
			t.Error(err) // not Fatal: this may run beside the test's goroutine
			return 0
		}
	}
	count := func() (k int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		for i := first; i < first+n; i++ {
			if c.got[uint32(i)] {
				k++
			}
		}
		return k
	}
	for deadline := time.Now().Add(time.Second); count() < n && time.Now().Before(deadline); {
		<-ticker.C
	}
	return count()
}

// TestPionClient checks that a client that is no browser gets its sound back.
func TestPionClient(t *testing.T) {
	need(t, netns.Available())
	ctx := testContext(t, time.Minute, fleetPrograms...)
	d := fleet(t, ctx)
	for i, base := range d.hosts {
		c := pionCall(t, ctx, d.network, base)
		d.checkCandidates(t, c.answer)
		t.Logf("transceiver %d: connected in %v", i, c.connect.Round(100*time.Microsecond))
		const sent = 150
		got := c.echo(t, 0, sent)
		t.Logf("%d of %d packets came back", got, sent)
		if got*100 < sent*98 {
			t.Errorf("%d of %d packets came back, want 98 %%", got, sent)
		}
		d.checkOwner(t, c.ufrag, d.sessions(t, ctx))
		c.hangUp(t, ctx, d.network)
		eventually(t, 5*time.Second, func() string {
			if n := len(d.sessions(t, ctx)); n > 0 {
				return "the session lives on after DELETE"
			}
			return ""
		})
	}
}
