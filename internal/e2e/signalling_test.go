package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pion/webrtc/v4"
	"github.com/pion/webrtc/v4/pkg/media"

	"github.com/usher-rtc/usher/internal/e2e/browser"
	"github.com/usher-rtc/usher/internal/e2e/link"
	"github.com/usher-rtc/usher/internal/e2e/netns"
	"github.com/usher-rtc/usher/internal/e2e/whip"
	"github.com/usher-rtc/usher/transceiver"
)

// documentedClient returns the client for browsers that docs/signalling.md shows.
func documentedClient(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "signalling.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(page), "```js\n")
	source, _, closed := strings.Cut(after, "```\n")
	if !found || !closed {
		t.Fatal("docs/signalling.md shows no client")
	}
	return source
}

// The page of the tests over a WebSocket: a call with a microphone and a counter,
// and what happened to it.
const (
	startSignalled = `async ({source, url, label, every}) => {
  const {Signalling} = await import(URL.createObjectURL(new Blob([source], {type: 'text/javascript'})));
  const pc = new RTCPeerConnection();
  const call = (window.call = {pc, down: [], events: [], tracks: 0});
  pc.addEventListener('track', () => call.tracks++);
  call.signalling = new Signalling(pc, url, {page: 'e2e'});
  for (const type of ['end', 'closed', 'draining', 'event', 'problem']) {
    call.signalling.addEventListener(type, (e) => call.events.push([type, e.detail?.reason ?? e.detail]));
  }
  const stream = await navigator.mediaDevices.getUserMedia({audio: true});
  for (const track of stream.getAudioTracks()) pc.addTrack(track, stream);
  const channel = pc.createDataChannel(label);
  channel.onmessage = (e) => call.down.push([Number(e.data), performance.timeOrigin + performance.now()]);
  await Promise.race([new Promise((resolve) => { channel.onopen = resolve; }), new Promise((_, reject) =>
    setTimeout(() => reject(new Error('no data channel in 20 s: ' + pc.connectionState)), 20000))]);
  let sent = 0;
  setInterval(() => { if (channel.readyState === 'open') channel.send(String(sent++)); }, every);
  return pc.remoteDescription.sdp.match(/^a=ice-ufrag:(.*)$/m)[1].trim();
}`
	readSignalled = `() => ({down: window.call.down, events: window.call.events, tracks: window.call.tracks,
  state: window.call.pc.connectionState, signalling: window.call.pc.signalingState})`
)

type signalledPage struct {
	Down       [][2]float64 `json:"down"`
	Events     [][2]any     `json:"events"`
	Tracks     int          `json:"tracks"`
	State      string       `json:"state"`
	Signalling string       `json:"signalling"`
}

// TestServerMovesBrowsersOverWebSocket makes calls with the documented client and
// lets the Host add tracks and move the call to another ingress and back, which
// browsers that do not fail over in mid-call need, while both sides count.
func TestServerMovesBrowsersOverWebSocket(t *testing.T) {
	const moves = 3
	source := documentedClient(t)
	eachBrowser(t, func(t *testing.T, kind browser.Kind) {
		need(t, netns.Available())
		need(t, browser.Check(t.Context(), kind))
		ctx := testContext(t, 2*time.Minute, "ufragctl", "relayd")
		m := newMoving(t, ctx, 1, 2)
		b := launch(t, ctx, m.network, kind, browser.Options{Loopback: true})
		page := open(t, ctx, b, m.urls[0])
		var first string
		err := page.Call(ctx, startSignalled, map[string]any{
			"source": source, "url": strings.Replace(m.urls[0], "http", "ws", 1) + "/calls",
			"label": counterLabel, "every": packetTime.Milliseconds(),
		}, &first)
		if err != nil {
			t.Fatal(err)
		}
		read := func() (p signalledPage) {
			t.Helper()
			if err := page.Call(ctx, readSignalled, nil, &p); err != nil {
				t.Fatal(err)
			}
			return p
		}
		meter := m.meterOf(t, first)
		s := meter.session
		if string(s.Metadata()) != `{"page":"e2e"}` {
			t.Errorf("metadata %s", s.Metadata())
		}

		// A track of the Host's, and DTLS stays as it is through all that follows.
		tracks, begin := read().Tracks, time.Now()
		track, err := webrtc.NewTrackLocalStaticSample(
			webrtc.RTPCodecCapability{MimeType: webrtc.MimeTypeOpus, ClockRate: 48000, Channels: 2}, "second", "host")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.PeerConnection().AddTrack(track); err != nil {
			t.Fatal(err)
		}
		s.Go(func(ctx context.Context) {
			everyPacket(ctx, func(int) bool {
				return track.WriteSample(media.Sample{Data: opusPacket(), Duration: packetTime}) == nil
			})
		})
		limited, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		if err := s.Negotiate(limited); err != nil {
			t.Fatal(err)
		}
		if s.Ufrag() != first {
			t.Error("a new track changed the ufrag")
		}
		if got := read().Tracks; got != tracks+1 {
			t.Errorf("the page has %d tracks, it had %d", got, tracks)
		}

		public := []transceiver.Ingress{
			{ID: 1, Advertise: netip.MustParseAddrPort("127.0.0.1:3478")},
			{ID: 2, Advertise: netip.MustParseAddrPort("127.0.0.1:3479")},
		}
		moved := time.Now()
		for i := range moves {
			to := public[(i+1)%2]
			before := s.Ufrag()
			limited, cancel := context.WithTimeout(ctx, 20*time.Second)
			if err := s.RestartICE(limited, to); err != nil {
				t.Fatal(err)
			}
			cancel()
			if s.Ufrag() == before {
				t.Error("a restart kept the ufrag")
			}
			eventually(t, 15*time.Second, func() string {
				if st := s.Stats(); st.Ingress != to.ID || !st.Validated {
					return fmt.Sprintf("the session is at ingress %d, want %d", st.Ingress, to.ID)
				}
				return ""
			})
			time.Sleep(window / 4) // media on the new path, before it changes again
		}
		audio, counters := meter.heard()
		gap, lost := largestGap(audio, moved, time.Now()), 0
		for i, c := range counters {
			if c.N != i {
				lost++
			}
		}
		t.Logf("gap server-moves-%s up_ms %.0f; %d messages out of order or lost of %d", kind, millis(gap), lost, len(counters))
		if gap > mustRecover || lost > 0 {
			t.Errorf("largest gap %v, %d of %d messages out of order or lost", gap, lost, len(counters))
		}
		for _, l := range m.links {
			for _, d := range []link.Direction{link.Up, link.Down} {
				if hs := l.Find(netip.AddrPort{}, d, begin, link.Handshake); len(hs) > 0 {
					t.Errorf("%d DTLS handshake packets in direction %d", len(hs), d)
				}
			}
		}

		s.CloseWithReason("that is all")
		eventually(t, 10*time.Second, func() string {
			p := read()
			if got := fmt.Sprint(p.Events); got != "[[end closed by the server] [closed closed by the server]]" {
				return "the page heard of " + got
			}
			return ""
		})
	})
}

// The page of the tests with the clients from npm: what it asked for, and the call.
const (
	whipStart = `async ({source, kind, url}) => {
  const module = await import(URL.createObjectURL(new Blob([source], {type: 'text/javascript'})));
  const requests = (window.requests = []);
  const plain = window.fetch;
  window.fetch = async (at, options = {}) => {
    const response = await plain(at, options);
    requests.push((options.method ?? 'GET') + ' ' + response.status);
    return response;
  };
  const pc = (window.pc = new RTCPeerConnection());
  if (kind === 'whip') {
    const stream = await navigator.mediaDevices.getUserMedia({audio: true});
    pc.addTransceiver(stream.getAudioTracks()[0], {direction: 'sendonly'});
    window.client = new module.WHIPClient();
    await window.client.publish(pc, url, 'secret');
  } else {
    pc.addTransceiver('audio', {direction: 'recvonly'});
    window.client = new module.WHEPClient();
    await window.client.view(pc, url, 'secret');
  }
}`
	whipRead = `async () => {
  let packets = 0;
  for (const s of (await window.pc.getStats()).values()) {
    if (s.type === 'inbound-rtp') packets += s.packetsReceived;
  }
  return {state: window.pc.connectionState, requests: window.requests, packets,
    ufrag: window.pc.remoteDescription?.sdp.match(/^a=ice-ufrag:(.*)$/m)[1].trim() ?? ''};
}`
)

type whipPage struct {
	State    string   `json:"state"`
	Requests []string `json:"requests"`
	Packets  int      `json:"packets"`
	Ufrag    string   `json:"ufrag"`
}

// TestWHIPAndWHEPClientsFromNPM runs the clients of the protocols' author in
// Chromium: they trickle, restart ICE with a fragment and end their calls.
func TestWHIPAndWHEPClientsFromNPM(t *testing.T) {
	need(t, netns.Available())
	need(t, browser.Check(t.Context(), browser.Chromium))
	sources, err := whip.Load(t.Context())
	need(t, err)
	ctx := testContext(t, 2*time.Minute, "ufragctl", "relayd")
	m := newMoving(t, ctx, 1, 1)
	b := launch(t, ctx, m.network, browser.Chromium, browser.Options{Loopback: true})
	for kind, source := range map[string]string{"whip": sources.WHIP, "whep": sources.WHEP} {
		t.Run(kind, func(t *testing.T) {
			page := open(t, ctx, b, m.urls[0])
			arg := map[string]any{"source": source, "kind": kind, "url": m.urls[0] + "/calls"}
			if err := page.Call(ctx, whipStart, arg, nil); err != nil {
				t.Fatal(err)
			}
			read := func() (p whipPage) {
				t.Helper()
				if err := page.Call(ctx, whipRead, nil, &p); err != nil {
					t.Fatal(err)
				}
				return p
			}
			var meter *meter
			flows := func(more int) {
				t.Helper()
				var last whipPage
				eventually(t, 20*time.Second, func() string {
					last = read()
					if last.State != "connected" {
						return "the page is " + last.State
					}
					if meter == nil {
						meter = m.meterOf(t, last.Ufrag)
					}
					packets := last.Packets
					if kind == "whip" {
						audio, _ := meter.heard()
						packets = len(audio)
					}
					if packets < more {
						return fmt.Sprintf("%d packets, want %d", packets, more)
					}
					return ""
				})
			}
			flows(50)
			first := meter.session.Ufrag()
			if err := page.Call(ctx, `async () => { await window.client.restart(); }`, nil, nil); err != nil {
				t.Fatal(err)
			}
			if meter.session.Ufrag() == first || read().Ufrag != meter.session.Ufrag() {
				t.Error("the restart did not reach both sides")
			}
			eventually(t, 15*time.Second, func() string {
				if m.hosts[0].Stats().Restarts == 0 || !meter.session.Stats().Validated {
					return "no new path"
				}
				return ""
			})
			before := read().Packets
			audio, _ := meter.heard()
			flows(max(before, len(audio)) + 50)
			if err := page.Call(ctx, `async () => { await window.client.stop(); }`, nil, nil); err != nil {
				t.Fatal(err)
			}
			select {
			case <-meter.session.Done():
			case <-time.After(10 * time.Second):
				t.Fatal("the session lives on after stop")
			}
			if r := meter.session.CloseReason(); r != transceiver.ReasonClientClosed {
				t.Errorf("ended because of %q", r)
			}
			requests := strings.Join(requestsOf(t, ctx, page), ", ")
			t.Log(requests)
			for _, want := range []string{"POST 201", "PATCH 204", "PATCH 200", "DELETE 200"} {
				if !strings.Contains(requests, want) {
					t.Errorf("no %s among %s", want, requests)
				}
			}
		})
	}
}

func requestsOf(t *testing.T, ctx context.Context, page *browser.Page) (requests []string) {
	t.Helper()
	if err := page.Call(ctx, `() => window.requests`, nil, &requests); err != nil {
		t.Fatal(err)
	}
	return requests
}
