package e2e

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pion/webrtc/v4"
	"github.com/pion/webrtc/v4/pkg/media"

	"github.com/usher-rtc/usher/internal/e2e/browser"
)

// generation is what one offer and its answer said about ICE.
type generation struct {
	Ufrag       string  `json:"ufrag"`       // of the answer
	ClientUfrag string  `json:"clientUfrag"` // of the offer
	Answer      string  `json:"answer"`
	Connect     float64 `json:"connect"` // ms from the answer to the open data channel; of the first only
}

// arrived is what a client says about what has come to it so far.
type arrived struct {
	counters []mark
	packets  int // of audio
}

// mover is a client of the tests: it sends 50 packets of audio and 50 messages a
// second, as its meter does.
type mover interface {
	// call makes the call, or ends the test.
	call(t *testing.T, ctx context.Context, base string, audio bool) generation
	// restart makes an ICE restart with PATCH to the call's Location.
	restart(t *testing.T, ctx context.Context) generation
	// arrived says what has come.
	arrived(t *testing.T, ctx context.Context) arrived
}

// eachMover runs a test with each kind of client; browsers take long.
func eachMover(t *testing.T, test func(t *testing.T, name string, start func(*testing.T, context.Context, *moving) mover)) {
	t.Run("pion", func(t *testing.T) {
		test(t, "pion", func(_ *testing.T, _ context.Context, m *moving) mover { return &pionMover{network: m.network} })
	})
	eachBrowser(t, func(t *testing.T, kind browser.Kind) {
		long(t)
		need(t, browser.Check(t.Context(), kind))
		name := map[browser.Kind]string{browser.Chromium: "chromium", browser.Firefox: "firefox"}[kind]
		test(t, name, func(t *testing.T, ctx context.Context, m *moving) mover {
			return &browserMover{browser: launch(t, ctx, m.network, kind, browser.Options{Loopback: true})}
		})
	})
}

// pionMover is a client made with Pion.
type pionMover struct {
	*network
	silent   bool // sends nothing, and lets nothing be sent
	pc       *webrtc.PeerConnection
	location string

	mu  sync.Mutex
	got arrived
}

func (c *pionMover) call(t *testing.T, ctx context.Context, base string, audio bool) generation {
	t.Helper()
	var engine webrtc.SettingEngine
	engine.SetICEUDPMux(c.iceMux(t, "127.0.0.1:0"))
	engine.SetIncludeLoopbackCandidate(true)
	var err error
	if c.pc, err = webrtc.NewAPI(webrtc.WithSettingEngine(engine)).NewPeerConnection(webrtc.Configuration{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.pc.Close() })
	running, stop := context.WithCancel(ctx)
	t.Cleanup(stop)
	if audio {
		c.speak(t, running)
	}
	label := counterLabel
	if c.silent {
		label = "silence"
	}
	channel, err := c.pc.CreateDataChannel(label, nil)
	if err != nil {
		t.Fatal(err)
	}
	opened := make(chan struct{})
	channel.OnOpen(func() {
		close(opened)
		if c.silent {
			return
		}
		go everyPacket(running, func(n int) bool { return channel.SendText(strconv.Itoa(n)) == nil })
	})
	channel.OnMessage(func(message webrtc.DataChannelMessage) {
		if n, err := strconv.Atoi(string(message.Data)); err == nil {
			c.mu.Lock()
			c.got.counters = append(c.got.counters, mark{n, time.Now()})
			c.mu.Unlock()
		}
	})
	offer, err := c.pc.CreateOffer(nil)
	if err != nil {
		t.Fatal(err)
	}
	g := c.exchange(t, ctx, http.MethodPost, base+"/calls", offer)
	begin := time.Now()
	select {
	case <-opened:
	case <-time.After(20 * time.Second):
		t.Fatalf("no data channel in 20 s: %v", c.pc.ConnectionState())
	}
	g.Connect = millis(time.Since(begin))
	return g
}

// speak sends audio from when the connection is up, and counts what comes.
func (c *pionMover) speak(t *testing.T, ctx context.Context) {
	t.Helper()
	track, err := webrtc.NewTrackLocalStaticSample(
		webrtc.RTPCodecCapability{MimeType: webrtc.MimeTypeOpus, ClockRate: 48000, Channels: 2}, "audio", "client")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.pc.AddTrack(track); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	c.pc.OnConnectionStateChange(func(state webrtc.PeerConnectionState) {
		if state == webrtc.PeerConnectionStateConnected {
			once.Do(func() {
				go everyPacket(ctx, func(int) bool {
					return track.WriteSample(media.Sample{Data: opusPacket(), Duration: packetTime}) == nil
				})
			})
		}
	})
	c.pc.OnTrack(func(remote *webrtc.TrackRemote, _ *webrtc.RTPReceiver) {
		for {
			if _, _, err := remote.ReadRTP(); err != nil {
				return
			}
			c.mu.Lock()
			c.got.packets++
			c.mu.Unlock()
		}
	})
}

// exchange sends an offer and takes the answer.
func (c *pionMover) exchange(t *testing.T, ctx context.Context, method, url string, offer webrtc.SessionDescription) generation {
	t.Helper()
	if err := c.pc.SetLocalDescription(offer); err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(offer.SDP))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/sdp")
	response, err := c.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != http.StatusCreated && response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s: %s", method, response.Status, body)
	}
	if response.StatusCode == http.StatusCreated {
		at, err := response.Location()
		if err != nil {
			t.Fatal(err)
		}
		c.location = at.String()
	}
	answer := webrtc.SessionDescription{Type: webrtc.SDPTypeAnswer, SDP: string(body)}
	if err := c.pc.SetRemoteDescription(answer); err != nil {
		t.Fatal(err)
	}
	return generation{Ufrag: sdpAttribute(answer.SDP, "ice-ufrag"), ClientUfrag: sdpAttribute(offer.SDP, "ice-ufrag"), Answer: answer.SDP}
}

func (c *pionMover) restart(t *testing.T, ctx context.Context) generation {
	t.Helper()
	offer, err := c.pc.CreateOffer(&webrtc.OfferOptions{ICERestart: true})
	if err != nil {
		t.Fatal(err)
	}
	return c.exchange(t, ctx, http.MethodPatch, c.location, offer)
}

func (c *pionMover) arrived(*testing.T, context.Context) arrived {
	c.mu.Lock()
	defer c.mu.Unlock()
	return arrived{append([]mark(nil), c.got.counters...), c.got.packets}
}

// sdpAttribute returns the value of the first a= line with that name.
func sdpAttribute(sdp, name string) string {
	for line := range strings.Lines(sdp) {
		if value, found := strings.CutPrefix(strings.TrimSpace(line), "a="+name+":"); found {
			return value
		}
	}
	return ""
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// browserMover is a page in a browser.
type browserMover struct {
	browser *browser.Browser
	page    *browser.Page
}

const (
	// startMoving makes a call from the page and keeps it in window.moving. The
	// page's clock is the machine's, so that times can be compared with the test's.
	startMoving = `async ({audio, label, every}) => {
  const attribute = (sdp, name) => sdp.match(new RegExp('^a=' + name + ':(.*)$', 'm'))?.[1].trim() ?? '';
  const pc = new RTCPeerConnection();
  const call = window.moving = {pc, down: [], attribute};
  if (audio) {
    const stream = await navigator.mediaDevices.getUserMedia({audio: true});
    for (const track of stream.getAudioTracks()) pc.addTrack(track, stream);
  }
  const channel = pc.createDataChannel(label);
  channel.onmessage = (e) => call.down.push([Number(e.data), performance.timeOrigin + performance.now()]);
  const opened = new Promise((resolve) => channel.addEventListener('open', resolve, {once: true}));
  call.exchange = async (method, url) => {
    await pc.setLocalDescription(await pc.createOffer());
    const offer = pc.localDescription.sdp;
    const response = await fetch(url, {method, headers: {'Content-Type': 'application/sdp'}, body: offer});
    const answer = await response.text();
    if (!response.ok) throw new Error(method + ': ' + response.status + ': ' + answer);
    if (response.status === 201) call.location = new URL(response.headers.get('Location'), response.url).href;
    await pc.setRemoteDescription({type: 'answer', sdp: answer});
    return {ufrag: attribute(answer, 'ice-ufrag'), clientUfrag: attribute(offer, 'ice-ufrag'), answer};
  };
  const out = await call.exchange('POST', '/calls');
  const begin = performance.now();
  await Promise.race([opened, new Promise((_, reject) =>
    setTimeout(() => reject(new Error('no data channel in 20 s: ' + pc.connectionState)), 20000))]);
  out.connect = performance.now() - begin;
  let sent = 0;
  setInterval(() => { if (channel.readyState === 'open') channel.send(String(sent++)); }, every);
  return out;
}`
	restartMoving = `async () => {
  window.moving.pc.restartIce();
  return await window.moving.exchange('PATCH', window.moving.location);
}`
	readMoving = `async () => {
  let packets = 0;
  for (const s of (await window.moving.pc.getStats()).values()) {
    if (s.type === 'inbound-rtp' && s.kind === 'audio') packets = s.packetsReceived;
  }
  return {down: window.moving.down, packets};
}`
)

func (c *browserMover) call(t *testing.T, ctx context.Context, base string, audio bool) (g generation) {
	t.Helper()
	c.page = open(t, ctx, c.browser, base)
	arg := map[string]any{"audio": audio, "label": counterLabel, "every": packetTime.Milliseconds()}
	if err := c.page.Call(ctx, startMoving, arg, &g); err != nil {
		t.Fatal(err)
	}
	return g
}

func (c *browserMover) restart(t *testing.T, ctx context.Context) (g generation) {
	t.Helper()
	if err := c.page.Call(ctx, restartMoving, nil, &g); err != nil {
		t.Fatal(err)
	}
	return g
}

func (c *browserMover) arrived(t *testing.T, ctx context.Context) arrived {
	t.Helper()
	var page struct {
		Down    [][2]float64 `json:"down"`
		Packets int          `json:"packets"`
	}
	if err := c.page.Call(ctx, readMoving, nil, &page); err != nil {
		t.Fatal(err)
	}
	a := arrived{packets: page.Packets}
	for _, d := range page.Down {
		a.counters = append(a.counters, mark{int(d[0]), time.UnixMicro(int64(d[1] * 1000))})
	}
	return a
}
