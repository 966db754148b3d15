package e2e

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/e2e/browser"
	"github.com/usher-rtc/usher/internal/e2e/netns"
	"github.com/usher-rtc/usher/internal/e2e/realtime"
)

const (
	realtimePage = `<!doctype html><title>realtime</title><script src="/library.js"></script>`

	// The page makes a call as the library's users do, with nothing but another
	// base URL, and keeps what the library says.
	realtimeStart = `async ({url, token}) => {
  const {RealtimeAgent, RealtimeSession, OpenAIRealtimeWebRTC} = window.OpenAIAgentsRealtime;
  const call = (window.call = {events: [], errors: [], states: []});
  const transport = (call.transport = new OpenAIRealtimeWebRTC({baseUrl: url, useInsecureApiKey: true}));
  transport.on('connection_change', (state) => call.states.push(state));
  const session = (call.session = new RealtimeSession(new RealtimeAgent({name: 'echo', instructions: 'Repeat what you hear.'}), {transport}));
  session.on('transport_event', (e) => call.events.push({...e, at: performance.now()}));
  session.on('error', (e) => call.errors.push(JSON.stringify(e.error?.error ?? String(e.error?.message ?? e.error))));
  await session.connect({apiKey: token});
  call.pc = transport.connectionState.peerConnection;
}`
	realtimeRead = `async () => {
  const {events, errors, states, session, transport, pc} = window.call;
  let energy = 0;
  if (pc) for (const s of (await pc.getStats()).values()) {
    if (s.type === 'inbound-rtp' && s.kind === 'audio') energy = s.totalAudioEnergy ?? 0;
  }
  return {events, errors, states, energy, status: transport.status, call: transport.callId ?? '', history: session.history.map((i) => i.role)};
}`
)

type realtimeEvent struct {
	Type       string  `json:"type"`
	At         float64 `json:"at"` // ms, the page's clock
	Item       string  `json:"item_id"`
	Response   string  `json:"response_id"`
	AudioEndMS float64 `json:"audio_end_ms"`
	Session    struct {
		Instructions string `json:"instructions"`
	} `json:"session"`
}

type realtimeState struct {
	Events  []realtimeEvent `json:"events"`
	Errors  []string        `json:"errors"`
	States  []string        `json:"states"`
	Energy  float64         `json:"energy"`
	Status  string          `json:"status"`
	Call    string          `json:"call"`
	History []string        `json:"history"`
}

// after returns the events from the first of a type on, that one left out.
func after(events []realtimeEvent, kind string) []realtimeEvent {
	i := slices.IndexFunc(events, func(e realtimeEvent) bool { return e.Type == kind })
	if i < 0 {
		return nil
	}
	return events[i+1:]
}

func typesOf(events []realtimeEvent) string {
	var types []string
	for _, e := range events {
		types = append(types, e.Type)
	}
	return strings.Join(types, " ")
}

// speaker writes a WAV file that Chromium takes for its microphone, again and
// again: a voice for 900 ms, and a pause in which the answer begins, but too
// short for all of it. So the voice interrupts each answer.
func speaker(t *testing.T) string {
	t.Helper()
	const rate, voice, all = 48000, 48000 * 9 / 10, 48000 * 22 / 10
	b := []byte("RIFF\x00\x00\x00\x00WAVEfmt ")
	b = binary.LittleEndian.AppendUint32(b, 16)
	for _, v := range []uint16{1, 1} { // PCM, mono
		b = binary.LittleEndian.AppendUint16(b, v)
	}
	b = binary.LittleEndian.AppendUint32(b, rate)
	b = binary.LittleEndian.AppendUint32(b, 2*rate)
	for _, v := range []uint16{2, 16} { // bytes a sample, bits
		b = binary.LittleEndian.AppendUint16(b, v)
	}
	b = binary.LittleEndian.AppendUint32(append(b, "data"...), 2*all)
	for i := range all {
		v, at := 0.0, float64(i)/rate
		if i < voice { // syllables of a deep voice, or noise suppression would take it away
			for harmonic := 1.0; harmonic < 16; harmonic++ {
				v += math.Sin(2*math.Pi*130*harmonic*(1+0.01*math.Sin(2*math.Pi*5*at))*at) / harmonic
			}
			v *= 9000 * (0.3 + 0.7*math.Abs(math.Sin(2*math.Pi*2.5*at)))
		}
		b = binary.LittleEndian.AppendUint16(b, uint16(int16(max(-32000, min(32000, v)))))
	}
	binary.LittleEndian.PutUint32(b[4:], uint32(len(b)-8))
	path := filepath.Join(t.TempDir(), "voice.wav")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestRealtimeGatewayWithClientFromNPM talks to examples/realtime-gateway with
// the public client library for realtime agents, from a page of another origin.
func TestRealtimeGatewayWithClientFromNPM(t *testing.T) {
	need(t, netns.Available())
	need(t, browser.Check(t.Context(), browser.Chromium))
	library, err := realtime.Load(t.Context())
	need(t, err)
	ctx := testContext(t, 3*time.Minute, "realtime-gateway")
	n := loopbackNetwork(t)

	const token, origin, base, debug = "ek_of_the_test", "http://127.0.0.1:8099", "http://127.0.0.1:8080", "http://127.0.0.1:8081"
	tokens := filepath.Join(t.TempDir(), "tokens.txt")
	if err := os.WriteFile(tokens, []byte("# of the test\n"+token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	pages := http.NewServeMux()
	pages.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte(realtimePage))
	})
	pages.HandleFunc("GET /library.js", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/javascript")
		_, _ = w.Write(library)
	})
	server := &http.Server{Handler: pages, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(n.listen(t, strings.TrimPrefix(origin, "http://"))) }()
	t.Cleanup(func() { _ = server.Close() })
	n.run(t, "realtime-gateway", "-relay", "127.0.0.1:3478", "-http", strings.TrimPrefix(base, "http://"),
		"-debug", strings.TrimPrefix(debug, "http://"), "-tokens", tokens, "-origins", origin)
	get := func(path string, v any) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, debug+path, nil)
		if err != nil {
			return err
		}
		response, err := n.client.Do(request)
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
		return json.NewDecoder(response.Body).Decode(v)
	}
	eventually(t, 15*time.Second, func() string {
		if err := get("/debug/stats", new(map[string]uint64)); err != nil {
			return err.Error()
		}
		return ""
	})

	b := launch(t, ctx, n, browser.Chromium, browser.Options{
		Loopback: true, Args: []string{"--use-file-for-fake-audio-capture=" + speaker(t)},
	})
	page := open(t, ctx, b, origin+"/")
	start := func(token string) error {
		return page.Call(ctx, realtimeStart, map[string]any{"url": base + "/v1/realtime/calls", "token": token}, nil)
	}
	read := func() (s realtimeState) {
		t.Helper()
		if err := page.Call(ctx, realtimeRead, nil, &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	if err := start("ek_of_somebody_else"); err == nil || !strings.Contains(err.Error(), "status 401") {
		t.Errorf("with a wrong token: %v", err)
	}
	if err := start(token); err != nil {
		t.Fatal(err)
	}

	// The session is what the library asked for when connect has returned.
	s := read()
	if s.Status != "connected" || s.Call == "" || !strings.HasPrefix(typesOf(s.Events), "session.created session.updated") {
		t.Fatalf("%s, call %q: %s", s.Status, s.Call, typesOf(s.Events))
	}
	if got := s.Events[1].Session.Instructions; got != "Repeat what you hear." {
		t.Errorf("the session's instructions are %q", got)
	}

	// The user's words come back, and the next ones interrupt them.
	eventually(t, 20*time.Second, func() string {
		s = read()
		if cut := after(after(s.Events, "output_audio_buffer.cleared"), "conversation.item.truncated"); cut == nil || s.Energy == 0 {
			return fmt.Sprintf("energy %.3g, events: %s", s.Energy, typesOf(s.Events))
		}
		return ""
	})
	for _, e := range s.Events {
		if strings.HasSuffix(e.Type, "audio.delta") {
			t.Fatal("audio came over the data channel")
		}
	}
	began := after(s.Events, "output_audio_buffer.started")
	spoke := after(began, "input_audio_buffer.speech_started")
	if spoke == nil {
		t.Fatalf("no speech after an answer had begun: %s", typesOf(s.Events))
	}
	cut := slices.IndexFunc(s.Events, func(e realtimeEvent) bool { return e.Type == "conversation.item.truncated" })
	t.Logf("interrupted after %.0f ms of an answer; %d events", s.Events[cut].AudioEndMS, len(s.Events))
	if ms := s.Events[cut].AudioEndMS; ms <= 0 || ms > 1500 {
		t.Errorf("%.0f ms of an answer of about 1,100 ms were heard", ms)
	}

	// A text is answered with a tone, which the page interrupts as soon as it
	// hears of it. Before that the last words have to be answered.
	var mark int
	err = page.Call(ctx, `async () => {
  const {session, events} = window.call;
  session.mute(true);
  for (let i = 0; i < 200 && performance.now() - events.at(-1).at < 2000; i++) await new Promise((resolve) => setTimeout(resolve, 100));
  const mark = events.length;
  session.on('transport_event', (e) => { if (e.type === 'output_audio_buffer.started') session.interrupt(); });
  session.sendMessage('hello');
  return mark;
}`, nil, &mark)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, func() string {
		got := read().Events[mark:]
		begun := after(got, "output_audio_buffer.started")
		end := after(begun, "output_audio_buffer.cleared")
		if end == nil || after(end, "conversation.item.truncated") == nil && after(begun, "conversation.item.truncated") == nil {
			return "since the text: " + typesOf(got)
		}
		if after(got, "input_audio_buffer.speech_started") != nil {
			t.Fatalf("it was somebody who spoke: %s", typesOf(got))
		}
		return ""
	})

	s = read()
	if !slices.Contains(s.History, "user") || !slices.Contains(s.History, "assistant") {
		t.Errorf("the library's history has %q", s.History)
	}
	for _, e := range s.Errors {
		// The library cancels what it has not yet heard the end of.
		if !strings.Contains(e, "response_cancel_not_active") {
			t.Errorf("the library saw an error: %s", e)
		}
	}
	var stats map[string]uint64
	if err := get("/debug/stats", &stats); err != nil || stats["interruptions"] < 2 || stats["calls"] != 1 {
		t.Errorf("the gateway counted %v, %v", stats, err)
	}
	if err := page.Call(ctx, `() => window.call.session.close()`, nil, nil); err != nil {
		t.Fatal(err)
	}
	over := func() string {
		var sessions struct {
			Live     int `json:"live"`
			Accepted int `json:"accepted"`
		}
		if err := get("/debug/sessions", &sessions); err != nil || sessions.Live != 0 || sessions.Accepted == 0 {
			return fmt.Sprintf("the gateway has %+v, %v", sessions, err)
		}
		return ""
	}
	eventually(t, 10*time.Second, over)
	if got := read(); got.Status != "disconnected" {
		t.Errorf("the library is %s", got.Status)
	}

	// The gateway's own page.
	page = open(t, ctx, b, base+"/#"+token)
	if err := page.Click(ctx, "#talk"); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, func() string {
		var text string
		if err := page.Call(ctx, `() => document.getElementById('status').textContent + ' ' + document.getElementById('events').textContent`, nil, &text); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(text, "Connected") || !strings.Contains(text, "output_audio_buffer.cleared") {
			return text
		}
		return ""
	})
	if err := page.Screenshot(ctx, filepath.Join(pictures(t), "realtime-gateway.png")); err != nil {
		t.Error(err)
	}
	if err := page.Click(ctx, "#talk"); err != nil { // hangs up
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, over)
}
