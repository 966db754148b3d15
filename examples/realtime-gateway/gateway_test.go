package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/pion/webrtc/v4/pkg/media"

	"github.com/usher-rtc/usher/examples/realtime-gateway/standin"
)

// TestConversation is a call in each of its forms: the user speaks, pauses, and
// hears the words again.
func TestConversation(t *testing.T) {
	for name, tt := range map[string]struct {
		query, session, model string
		old                   bool
	}{
		"raw":           {model: "default"},
		"model":         {query: "?model=asked", session: `{"model":"other"}`, model: "asked"},
		"session":       {session: `{"type":"realtime","model":"m","instructions":"be brief","audio":{"output":{"voice":"x","format":{"type":"audio/pcmu"}}}}`, model: "m"},
		"older servers": {model: "default", old: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, standin.Config{Token: "upstream's", OldNames: tt.old}, nil)
			c := newClient(r)
			session, _ := c.call(tt.query, tt.session)["session"].(map[string]any)
			if got := receive(t, "the query", r.asks).Get("model"); got != tt.model {
				t.Errorf("upstream was asked for the model %q, want %q", got, tt.model)
			}
			if strings.Contains(tt.session, "brief") {
				audio, _ := json.Marshal(session["audio"])
				if session["instructions"] != "be brief" || !strings.Contains(string(audio), `"output":{"format":{"rate":24000,"type":"audio/pcm"},"voice":"x"}`) {
					t.Errorf("the session is %v", session)
				}
			}
			c.talk()
			c.speaks.Store(true)
			c.event("input_audio_buffer.speech_started")
			c.speaks.Store(false)
			for _, kind := range []string{
				"input_audio_buffer.speech_stopped", "response.created", "output_audio_buffer.started", "response.done", "output_audio_buffer.stopped",
			} {
				c.event(kind)
			}
			packets, _, loudest := c.heard()
			if packets < 3 || loudest < 1000 {
				t.Errorf("heard %d packets, the loudest %.0f", packets, loudest)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	r := newRig(t, standin.Config{}, nil)
	sdp := newClient(r).offer()
	good := []string{"Authorization", "Bearer " + token}
	badForm, badSession := form(t, sdp, `["no object"]`)
	badAudio, badAudioSession := form(t, sdp, `{"audio":{"input":"loud"}}`)
	badModel, badModelSession := form(t, sdp, `{"model":7}`)
	video := strings.Replace(sdp, "opus/48000/2", "else/48000/2", 1)
	for name, tt := range map[string]struct {
		kind, body string
		headers    []string
		status     int
	}{
		"no token":           {"application/sdp", sdp, nil, 401},
		"wrong token":        {"application/sdp", sdp, []string{"Authorization", "Bearer " + token + "x"}, 401},
		"empty token":        {"application/sdp", sdp, []string{"Authorization", "Bearer "}, 401},
		"another scheme":     {"application/sdp", sdp, []string{"Authorization", "Basic " + token}, 401},
		"session a list":     {badForm, badSession, good, 400},
		"audio a string":     {badAudio, badAudioSession, good, 400},
		"model a number":     {badModel, badModelSession, good, 400},
		"no Opus":            {"application/sdp", video, good, 422},
		"no SDP":             {"application/sdp", "hello", good, 400},
		"JSON":               {"application/json", "{}", good, 415},
		"origin not allowed": {"application/sdp", sdp, append([]string{"Origin", "https://evil.example"}, good...), 403},
	} {
		t.Run(name, func(t *testing.T) {
			res := r.do("POST", callsPath, tt.kind, tt.body, tt.headers...)
			detail := res.problem(t, tt.status)
			if unauthorized := tt.status == 401; unauthorized != (res.Header.Get("WWW-Authenticate") == "Bearer") || unauthorized != strings.Contains(detail, "Authorization: Bearer") {
				t.Errorf("%v, %s", res.Header, detail)
			}
		})
	}
	res := r.do("OPTIONS", callsPath, "", "", "Origin", "https://app.example", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization,x-library")
	if res.StatusCode != 204 || res.Header.Get("Access-Control-Allow-Headers") != "authorization,x-library" {
		t.Errorf("preflight: %d %v", res.StatusCode, res.Header)
	}
	res = r.do("OPTIONS", callsPath, "", "", "Origin", "https://evil.example", "Access-Control-Request-Headers", "authorization")
	if res.StatusCode != 403 || res.Header.Get("Access-Control-Allow-Headers") != "" {
		t.Errorf("preflight of another origin: %d %v", res.StatusCode, res.Header)
	}
	r.eventually("no session to be left", func() bool { return r.g.host.Stats().Live == 0 })
	if len(r.asks) != 0 {
		t.Errorf("%d refused calls reached upstream", len(r.asks))
	}
}

func TestUpstreamDead(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "ws://" + l.Addr().String()
	_ = l.Close()
	silent, err := net.Listen("tcp4", "127.0.0.1:0") // the kernel takes connections, and nobody answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for name, change := range map[string]func(*config){
		"nobody answers": func(c *config) {
			c.Upstream, _ = url.Parse("ws://" + silent.Addr().String())
			c.DialTimeout = 100 * time.Millisecond
		},
		"nobody listens":   func(c *config) { c.Upstream, _ = url.Parse(nobody) },
		"it wants a token": func(c *config) { c.UpstreamToken = "wrong" },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, standin.Config{Token: "right"}, change)
			res := r.do("POST", callsPath, "application/sdp", newClient(r).offer(), "Authorization", "Bearer "+token)
			if detail := res.problem(t, http.StatusBadGateway); strings.Contains(detail, "127.0.0.1") {
				t.Errorf("a stranger is told where upstream is: %s", detail)
			}
			r.eventually("no session to be left", func() bool { return r.g.host.Stats().Live == 0 })
			if s := r.g.stats.snapshot(); s["dial_failures"] != 1 || s["calls"] != 0 {
				t.Error(s)
			}
		})
	}
}

// TestEnds: whichever side ends a call, the other one sees it, with a reason.
func TestEnds(t *testing.T) {
	bearer := []string{"Authorization", "Bearer " + token}
	for name, end := range map[string]func(*testing.T, *client){
		"DELETE": func(t *testing.T, c *client) {
			if res := c.r.do("DELETE", c.location, "", ""); res.StatusCode != 401 {
				t.Errorf("DELETE without a token: %d", res.StatusCode)
			}
			if res := c.r.do("DELETE", c.location, "", "", bearer...); res.StatusCode != 200 {
				t.Errorf("DELETE: %d %s", res.StatusCode, res.body)
			}
		},
		"hangup": func(t *testing.T, c *client) {
			if res := c.r.do("POST", c.location+"x/hangup", "", "", bearer...); res.StatusCode != 404 {
				t.Errorf("hangup of no call: %d", res.StatusCode)
			}
			if res := c.r.do("POST", c.location+"/hangup", "", "", bearer...); res.StatusCode != 200 {
				t.Errorf("hangup: %d %s", res.StatusCode, res.body)
			}
		},
		"close": func(_ *testing.T, c *client) { _ = c.pc.Close() },
	} {
		t.Run("client/"+name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, standin.Config{}, nil)
			c := newClient(r)
			c.call("", "")
			end(t, c)
			if err := receive(t, "the end at upstream", r.over); err == nil || !strings.Contains(err.Error(), "StatusNormalClosure") {
				t.Errorf("upstream saw %v", err)
			}
			r.eventually("no session to be left", func() bool { return r.g.host.Stats().Live == 0 })
			if res := r.do("DELETE", c.location, "", "", bearer...); res.StatusCode != 404 {
				t.Errorf("DELETE after the end: %d", res.StatusCode)
			}
		})
	}
	t.Run("upstream", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, standin.Config{OnEvent: func(kind string, _ json.RawMessage) error {
			if kind == "test.end" {
				return errors.New("out of words")
			}
			return nil
		}}, nil)
		c := newClient(r)
		c.call("", "")
		c.send(`{"type":"test.end"}`)
		e, _ := c.event("error")["error"].(map[string]any)
		const want = "the speech server ended the call: out of words"
		if e["code"] != "call_ended" || e["message"] != want {
			t.Errorf("the client was told %v", e)
		}
		if end := c.event("usher.end"); end["detail"] != want {
			t.Errorf("the client was told %v", end)
		}
		r.eventually("no session to be left", func() bool { return r.g.host.Stats().Live == 0 })
	})
}

// TestInterruption: what upstream is told that the user has heard is what was
// sent, to the frame, whoever interrupts.
func TestInterruption(t *testing.T) { // one at a time: a machine that cannot keep up has calls end
	for name, stop := range map[string]func(*client){
		"speech": func(c *client) { c.speaks.Store(true) },
		"client": func(c *client) {
			c.send(`{"type":"response.cancel"}`)
			c.send(`{"type":"output_audio_buffer.clear"}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			// Slow enough that the answer is still being made when it is cut.
			r := newRig(t, standin.Config{Tone: time.Minute, Speed: 4}, nil)
			c := newClient(r)
			c.call("", "")
			c.talk()
			c.send(`{"type":"response.create"}`)
			started := c.event("output_audio_buffer.started")
			r.eventually("half a second of the answer", func() bool { n, _, _ := c.heard(); return n > 25 })
			stop(c)
			if cleared := c.event("output_audio_buffer.cleared"); cleared["response_id"] != started["response_id"] {
				t.Errorf("%v was cleared of %v", cleared, started)
			}
			c.speaks.Store(false)
			truncated := c.event("conversation.item.truncated")
			order := r.upstream("conversation.item.truncate").Event
			if order["item_id"] != truncated["item_id"] || order["audio_end_ms"] != truncated["audio_end_ms"] {
				t.Errorf("asked for %v, got %v", order, truncated)
			}
			// The silence that follows comes after all that was sent before.
			r.eventually("the silence after it", func() bool { _, silent, _ := c.heard(); return silent > 0 })
			n, _, _ := c.heard()
			if got, want := fmt.Sprint(order["audio_end_ms"]), fmt.Sprint(20*n); got != want {
				t.Errorf("upstream was told %s ms, the client got %s ms", got, want)
			}
			if s := r.g.stats.snapshot(); s["interruptions"] != 1 || s["answers_cut"] != 0 {
				t.Error(s)
			}
		})
	}
	t.Run("switched off", func(t *testing.T) {
		r := newRig(t, standin.Config{Tone: 2 * time.Second}, nil)
		c := newClient(r)
		c.call("", `{"audio":{"input":{"turn_detection":{"type":"server_vad","interrupt_response":false,"create_response":false}}}}`)
		c.talk()
		c.send(`{"type":"response.create"}`)
		c.event("output_audio_buffer.started")
		c.speaks.Store(true)
		c.event("input_audio_buffer.speech_started")
		c.event("output_audio_buffer.stopped")
		if n, _, _ := c.heard(); n != 100 {
			t.Errorf("the client got %d packets of an answer of 100", n)
		}
	})
}

func TestClientEvents(t *testing.T) {
	r := newRig(t, standin.Config{}, nil)
	c := newClient(r)
	c.call("", "")
	r.upstream("session.update") // the gateway's own
	problem := func(code, about string) {
		t.Helper()
		e, _ := c.event("error")["error"].(map[string]any)
		if e["code"] != code || about != "" && e["event_id"] != about || e["message"] == "" {
			t.Errorf("want %s about %q: %v", code, about, e)
		}
	}
	c.send(`{"type":"input_audio_buffer.append","event_id":"a","audio":"AAAA"}`)
	problem("audio_is_rtp", "a")
	c.send(`hello`)
	problem("invalid_event", "")
	c.send(`{"event_id":"b"}`)
	problem("invalid_event", "")
	c.send(`{"type":"session.update","event_id":"c","session":[]}`)
	problem("invalid_session", "c")
	c.send(`{"type":"session.update","event_id":"d","session":{"audio":{"input":{"format":{"type":"audio/pcmu"}}},"instructions":"x"}}`)
	updated, _ := c.event("session.updated")["session"].(map[string]any)
	if updated["instructions"] != "x" {
		t.Errorf("%v", updated)
	}
	if got := string(r.upstream("session.update").Raw); !strings.Contains(got, `"event_id":"d"`) || strings.Contains(got, "pcmu") {
		t.Errorf("upstream got %s", got)
	}
	const whole = `{"type":"conversation.item.retrieve", "event_id":"e","item_id":"nothing", "more":[1.0]}`
	c.send(whole)
	problem("invalid_value", "e") // upstream's own
	if got := string(r.upstream("conversation.item.retrieve").Raw); got != whole {
		t.Errorf("upstream got %s", got)
	}
}

// TestSlowUpstream: a server that does not read costs its own call the oldest
// audio, which is counted, and in the end the call.
func TestSlowUpstream(t *testing.T) {
	for name, timeout := range map[string]time.Duration{"comes back": patience, "stays away": 2 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			release, stuck := make(chan struct{}), make(chan struct{})
			var first atomic.Bool
			r := newRig(t, standin.Config{OnAudio: func([]byte) {
				if first.CompareAndSwap(false, true) {
					close(stuck)
				}
				<-release
			}}, func(c *config) { c.WriteTimeout = timeout })
			c := newClient(r)
			c.call("", "")
			packet := c.packets(0)[0]
			say := func(n int) {
				for range n {
					_ = c.mic.WriteSample(media.Sample{Data: packet, Duration: frameDuration})
				}
			}
			say(1)
			receive(t, "the first audio", stuck)
			session := r.g.host.Sessions()[0]
			if timeout != patience {
				for i := 0; session.Err() == nil; i++ {
					say(20)
					time.Sleep(5 * time.Millisecond) // as fast as the socket takes it
					if i > 20_000 {
						t.Fatal("the call goes on")
					}
				}
				close(release)
				if got := c.event("error")["error"].(map[string]any)["message"]; got != "the speech server does not read" {
					t.Errorf("the client was told %v", got)
				}
			} else {
				for range 400 { // the Host has room for 32 at a time
					say(20)
					time.Sleep(5 * time.Millisecond) // as fast as the socket takes it
				}
				close(release)
				c.send(`{"type":"input_audio_buffer.clear"}`)
				c.event("input_audio_buffer.cleared")
				r.do("DELETE", c.location, "", "", "Authorization", "Bearer "+token)
			}
			r.eventually("dropped audio to be counted", func() bool { return r.g.stats.audioDropped.Load() > 0 })
			t.Log(r.g.stats.snapshot())
		})
	}
}

// TestHostileUpstream: whatever upstream sends, its call goes on or ends, and
// nothing else happens.
func TestHostileUpstream(t *testing.T) {
	for name, messages := range map[string][]string{
		"no events": {
			`hello`, `[]`, `7`, `null`, `{}`, `{"type":7}`, `{"type":"response.output_audio.delta","delta":"?"}`, "\x00binary",
			`{"type":"response.output_audio.delta","delta":"AAA="}{`, `{"type":"response.output_audio.delta","delta":"AA=="}`,
			`{"type":"response.done","response":[]}`, `{"type":"session.updated","session":7,"response":1}`,
		},
		"out of order": {
			`{"type":"response.done"}`, `{"type":"response.output_audio.done","response_id":"x"}`, `{"type":"input_audio_buffer.speech_started"}`,
			`{"type":"response.output_audio.delta","response_id":"x","delta":""}`, `{"type":"response.done","response":{"id":"x"}}`,
			`{"type":"response.done","response":{"id":"x"}}`, `{"type":"session.created"}`, `{"type":"session.created"}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ws, err := websocket.Accept(w, r, nil)
				if err != nil {
					t.Error(err)
					return
				}
				for _, m := range append([]string{`{"type":"session.created"}`}, append(messages, `{"type":"test.last"}`)...) {
					kind := websocket.MessageText
					if strings.HasPrefix(m, "\x00") {
						kind = websocket.MessageBinary
					}
					if err := ws.Write(r.Context(), kind, []byte(m)); err != nil {
						t.Error(err)
					}
				}
				_, _, _ = ws.Read(r.Context()) // the gateway's session.update
				_, _, _ = ws.Read(r.Context()) // what the client sends
				_ = ws.CloseNow()
			}))
			defer upstream.Close()
			r := newRig(t, standin.Config{}, func(c *config) { c.Upstream, _ = url.Parse(upstream.URL) })
			c := newClient(r)
			c.call("", "")
			for last := ""; last != "test.last"; {
				last, _ = receive(t, "the last event", c.events)["type"].(string)
			}
			if got, want := r.g.stats.malformed.Load(), uint64(12); name == "no events" && got != want {
				t.Errorf("%d malformed messages were counted, want %d", got, want)
			}
			c.send(`{"type":"test"}`)
			if e, _ := c.event("error")["error"].(map[string]any); e["message"] != "the connection to the speech server was lost" {
				t.Errorf("the client was told %v", e)
			}
			r.eventually("no session to be left", func() bool { return r.g.host.Stats().Live == 0 })
		})
	}
}

func TestFlags(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("# nothing\n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		args []string
		want string
	}{
		"argument":             {[]string{"surplus"}, "surplus"},
		"no calls":             {[]string{"-max-calls", "0"}, "-max-calls"},
		"upstream":             {[]string{"-upstream", "speech.example:443"}, "-upstream"},
		"token for nobody":     {[]string{"-upstream-token", empty}, "-upstream-token"},
		"no tokens":            {[]string{"-tokens", empty}, "no token in " + empty},
		"missing tokens":       {[]string{"-tokens", empty + "x"}, empty + "x"},
		"empty upstream token": {[]string{"-upstream", "ws://127.0.0.1:1", "-upstream-token", empty + "y"}, empty + "y"},
		"origin":               {[]string{"-origins", "app.example"}, "app.example"},
	} {
		t.Run(name, func(t *testing.T) {
			err := run(t.Context(), append([]string{"-http", "127.0.0.1:0", "-relay", "127.0.0.1:0"}, tt.args...))
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want one line with %q", err, tt.want)
			}
		})
	}
}
