package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"log/slog"
	"math"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pion/webrtc/v4"
	"github.com/pion/webrtc/v4/pkg/media"

	"github.com/usher-rtc/usher/examples/internal/local"
	"github.com/usher-rtc/usher/examples/pcm"
	"github.com/usher-rtc/usher/examples/realtime-gateway/standin"
)

// patience is how long a test waits for what must come; it is no expectation of
// speed.
const (
	patience = time.Minute
	token    = "a good token"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}

// rig is a relay, a gateway and a stand-in.
type rig struct {
	t    *testing.T
	g    *gateway
	url  string
	seen chan upstreamEvent // events of clients that reached the stand-in
	over chan error         // connections to it that have ended
	asks chan url.Values    // queries of its connections
}

type upstreamEvent struct {
	Type  string
	Raw   json.RawMessage
	Event map[string]any
}

func newRig(t *testing.T, sc standin.Config, change func(*config)) *rig {
	t.Helper()
	r := &rig{t: t, seen: make(chan upstreamEvent, 1000), over: make(chan error, 100), asks: make(chan url.Values, 100)}
	onEvent := sc.OnEvent
	sc.OnEvent = func(kind string, raw json.RawMessage) error {
		e := upstreamEvent{Type: kind, Raw: slices.Clone(raw)}
		if err := json.Unmarshal(raw, &e.Event); err != nil {
			t.Error(err)
		}
		// The client's audio never ends; what nobody waits for must not hold up
		// the stand-in in a test that takes long.
		if kind != "input_audio_buffer.append" || len(r.seen) < cap(r.seen)/2 {
			r.seen <- e
		}
		if onEvent != nil {
			return onEvent(kind, raw)
		}
		return nil
	}
	sc.OnCall = func(q url.Values) { r.asks <- q }
	sc.OnEnd = func(err error) { r.over <- err }
	server := standin.New(sc)
	upstream := httptest.NewServer(server)
	t.Cleanup(func() {
		server.Close()
		upstream.Close()
	})
	at, err := url.Parse(strings.Replace(upstream.URL, "http", "ws", 1) + "/v1/realtime?model=default")
	if err != nil {
		t.Fatal(err)
	}
	cfg := config{Upstream: at, UpstreamToken: sc.Token, Authorize: allowTokens([]string{"another", token}), Origins: []string{"https://app.example"}}
	if change != nil {
		change(&cfg)
	}
	network, err := local.Start(t.Context(), local.Config{Relay: netip.MustParseAddrPort("127.0.0.1:0")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(network.Close)
	host := network.Host()
	host.Logger = slog.New(slog.DiscardHandler)
	if r.g, err = newGateway(host, cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.g.close)
	front := httptest.NewServer(r.g)
	t.Cleanup(front.Close)
	r.url = front.URL
	return r
}

// upstream waits for an event of a client's at the stand-in, and skips those of
// other types.
func (r *rig) upstream(kind string) upstreamEvent {
	r.t.Helper()
	limit := time.After(patience)
	for {
		select {
		case e := <-r.seen:
			if e.Type == kind {
				return e
			}
		case <-limit:
			r.t.Fatalf("upstream saw no %s", kind)
		}
	}
}

func receive[T any](t *testing.T, what string, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		t.Fatalf("timed out waiting for %s", what)
	}
	return v
}

func (r *rig) eventually(what string, ok func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("timed out waiting for %s", what)
		}
	}
}

type response struct {
	*http.Response
	body string
}

func (r *rig) do(method, at, kind, body string, headers ...string) response {
	r.t.Helper()
	request, err := http.NewRequestWithContext(r.t.Context(), method, r.url+at, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if kind != "" {
		request.Header.Set("Content-Type", kind)
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(request)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return response{res, string(b)}
}

// problem fails the test unless the response is problem details, and returns
// their detail.
func (r response) problem(t *testing.T, status int) string {
	t.Helper()
	var p struct {
		Status        int
		Title, Detail string
	}
	err := json.Unmarshal([]byte(r.body), &p)
	if err != nil || r.StatusCode != status || p.Status != status || p.Title == "" || p.Detail == "" || r.Header.Get("Content-Type") != "application/problem+json" {
		t.Fatalf("want problem details with %d: %d %s", status, r.StatusCode, r.body)
	}
	return p.Detail
}

func form(t *testing.T, sdp, session string) (kind, body string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	_ = w.WriteField("sdp", sdp)
	_ = w.WriteField("session", session)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return w.FormDataContentType(), b.String()
}

// client is a Pion client with a microphone.
type client struct {
	r        *rig
	pc       *webrtc.PeerConnection
	mic      *webrtc.TrackLocalStaticSample
	channel  *webrtc.DataChannel
	open     chan struct{}
	events   chan map[string]any
	location string

	speaks  atomic.Bool
	mu      sync.Mutex
	spoken  int // packets that came with something in them
	silent  int // others since the last one of these
	loudest float64
}

func newClient(r *rig) *client {
	r.t.Helper()
	var se webrtc.SettingEngine
	se.SetNetworkTypes([]webrtc.NetworkType{webrtc.NetworkTypeUDP4})
	se.SetIncludeLoopbackCandidate(true)
	se.SetICEMaxBindingRequests(1000) // or a client gives up on a busy machine after 1.5 s
	se.SetIPFilter(func(ip net.IP) bool { return ip.IsLoopback() })
	pc, err := webrtc.NewAPI(webrtc.WithSettingEngine(se)).NewPeerConnection(webrtc.Configuration{})
	if err != nil {
		r.t.Fatal(err)
	}
	c := &client{r: r, pc: pc, open: make(chan struct{}), events: make(chan map[string]any, 1000)}
	r.t.Cleanup(func() { _ = pc.GracefulClose() })
	c.mic, err = webrtc.NewTrackLocalStaticSample(webrtc.RTPCodecCapability{MimeType: webrtc.MimeTypeOpus, ClockRate: 48000, Channels: 2}, "mic", "c")
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err = pc.AddTrack(c.mic); err != nil {
		r.t.Fatal(err)
	}
	if c.channel, err = pc.CreateDataChannel(eventsLabel, nil); err != nil {
		r.t.Fatal(err)
	}
	c.channel.OnOpen(func() { close(c.open) })
	c.channel.OnMessage(func(m webrtc.DataChannelMessage) {
		var e map[string]any
		if err := json.Unmarshal(m.Data, &e); err != nil {
			r.t.Error(err)
		}
		c.events <- e
	})
	pc.OnTrack(func(track *webrtc.TrackRemote, _ *webrtc.RTPReceiver) { c.listen(track) })
	return c
}

// listen counts packets with sound in them, and measures how loud it is.
func (c *client) listen(track *webrtc.TrackRemote) {
	decoder, err := pcm.Rate24k.NewDecoder()
	if err != nil {
		c.r.t.Error(err)
		return
	}
	var samples []byte
	for {
		p, _, err := track.ReadRTP()
		if err != nil {
			return
		}
		c.mu.Lock()
		if len(p.Payload) <= 3 { // the transceiver's own silence
			c.silent++
			c.mu.Unlock()
			continue
		}
		c.spoken++
		c.silent = 0
		c.mu.Unlock()
		if samples, err = decoder.Decode(samples[:0], p.Payload); err != nil {
			c.r.t.Error(err)
			return
		}
		level := loudness(samples)
		c.mu.Lock()
		c.loudest = max(c.loudest, level)
		c.mu.Unlock()
	}
}

func loudness(samples []byte) float64 {
	sum := 0.0
	for i := 0; i < len(samples); i += 2 {
		v := float64(int16(binary.LittleEndian.Uint16(samples[i:])))
		sum += v * v
	}
	return math.Sqrt(sum / float64(len(samples)/2))
}

func (c *client) heard() (packets, silent int, loudest float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.spoken, c.silent, c.loudest
}

func (c *client) offer() string {
	c.r.t.Helper()
	o, err := c.pc.CreateOffer(nil)
	if err == nil {
		err = c.pc.SetLocalDescription(o)
	}
	if err != nil {
		c.r.t.Fatal(err)
	}
	return o.SDP
}

// call makes a call, with a session as a form, and waits for its first event.
func (c *client) call(query, session string) map[string]any {
	t := c.r.t
	t.Helper()
	kind, body := "application/sdp", c.offer()
	if session != "" {
		kind, body = form(t, body, session)
	}
	res := c.r.do("POST", callsPath+query, kind, body, "Authorization", "Bearer "+token)
	c.location = res.Header.Get("Location")
	if res.StatusCode != http.StatusCreated || !strings.HasPrefix(c.location, callsPath+"/") {
		t.Fatalf("%d, Location %q: %s", res.StatusCode, c.location, res.body)
	}
	if err := c.pc.SetRemoteDescription(webrtc.SessionDescription{Type: webrtc.SDPTypeAnswer, SDP: res.body}); err != nil {
		t.Fatal(err)
	}
	receive(t, "the data channel", c.open)
	return c.event("session.created")
}

// event waits for one of a type. Those before it are skipped, but nothing that
// must never come.
func (c *client) event(kind string) map[string]any {
	t := c.r.t
	t.Helper()
	limit := time.After(patience)
	for {
		select {
		case e := <-c.events:
			got, _ := e["type"].(string)
			if strings.HasSuffix(got, "audio.delta") {
				t.Fatalf("audio over the data channel: %s", got)
			}
			if got == kind {
				return e
			}
			if got == "error" || got == "session.created" {
				t.Fatalf("waiting for %s: %v", kind, e)
			}
		case <-limit:
			t.Fatalf("no %s came", kind)
		}
	}
}

func (c *client) send(event string) {
	c.r.t.Helper()
	if err := c.channel.SendText(event); err != nil {
		c.r.t.Fatal(err)
	}
}

// talk runs the microphone until the test ends: silence, or sound while speaks
// is set.
func (c *client) talk() {
	loud, quiet := c.packets(8000), c.packets(0)
	ctx, cancel := context.WithCancel(c.r.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(frameDuration)
		defer tick.Stop()
		for i := 0; ; i++ {
			from := quiet
			if c.speaks.Load() {
				from = loud
			}
			if c.mic.WriteSample(media.Sample{Data: from[i%len(from)], Duration: frameDuration}) != nil {
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	c.r.t.Cleanup(func() { cancel(); <-done })
}

// packets encodes half a second of a tone.
func (c *client) packets(amplitude float64) (all [][]byte) {
	encoder, err := pcm.Rate24k.NewEncoder()
	if err != nil {
		c.r.t.Fatal(err)
	}
	n := pcm.Rate24k.Frame()
	for f := range 25 {
		samples := make([]byte, 0, 2*n)
		for i := range n {
			v := amplitude * math.Sin(2*math.Pi*330*float64(f*n+i)/float64(pcm.Rate24k))
			samples = binary.LittleEndian.AppendUint16(samples, uint16(int16(v)))
		}
		packet, err := encoder.Encode(nil, samples)
		if err != nil {
			c.r.t.Fatal(err)
		}
		all = append(all, packet)
	}
	return all
}
