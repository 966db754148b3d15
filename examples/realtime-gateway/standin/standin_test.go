package standin

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

const patience = 20 * time.Second

func TestHearing(t *testing.T) {
	pcm := func(ms int, loud bool) []byte {
		if loud {
			return tone(time.Duration(ms) * time.Millisecond)
		}
		return make([]byte, ms*bytesPerMS)
	}
	for name, tt := range map[string]struct {
		sounds []int // in turn silence and speech, in ms
		turns  string
		ms     int // of the last turn
	}{
		"silence": {[]int{2000}, "", 0},
		"click":   {[]int{1000, 40, 1000}, "", 0},
		"words":   {[]int{1000, 400, 1000}, "+1060 -1900", 600},
		"a pause": {[]int{0, 400, 300, 400, 1000}, "+60 -1600", 1100},
		"two":     {[]int{100, 200, 600, 200, 600}, "+160 -800 +960 -1600", 300},
	} {
		t.Run(name, func(t *testing.T) {
			h := hearing{pause: 500 * time.Millisecond}
			var turns []string
			ms := 0
			for i, d := range tt.sounds {
				rest := pcm(d, i%2 == 1)
				for len(rest) > 0 { // pieces of any length
					n := min(len(rest), 700)
					h.rest = append(h.rest, rest[:n]...)
					rest = rest[n:]
					for {
						change, ok := h.next()
						if !ok {
							break
						}
						switch change {
						case started:
							turns = append(turns, fmt.Sprintf("+%d", h.heard.Milliseconds()))
						case stopped:
							turns = append(turns, fmt.Sprintf("-%d", h.heard.Milliseconds()))
							ms = len(h.take()) / bytesPerMS
						}
					}
				}
			}
			if got := strings.Join(turns, " "); got != tt.turns {
				t.Errorf("turns %q, want %q", got, tt.turns)
			}
			if ms < tt.ms-20 || ms > tt.ms+20 {
				t.Errorf("the last turn has %d ms, want about %d", ms, tt.ms)
			}
			if most := int((leadIn + onset + frame).Milliseconds()) * bytesPerMS; len(h.sound) > most {
				t.Errorf("%d bytes of silence are kept", len(h.sound))
			}
		})
	}
}

// peer is a client of the Server.
type peer struct {
	t  *testing.T
	ws *websocket.Conn
}

func dial(t *testing.T, cfg Config) *peer {
	t.Helper()
	s := New(cfg)
	web := httptest.NewServer(s)
	ws, _, err := websocket.Dial(t.Context(), web.URL, nil) //nolint:bodyclose // the response to an upgrade has none
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = ws.CloseNow()
		s.Close()
		web.Close()
	})
	ws.SetReadLimit(1 << 20)
	p := &peer{t, ws}
	p.until("session.created")
	return p
}

func (p *peer) send(format string, args ...any) {
	p.t.Helper()
	if err := p.ws.Write(p.t.Context(), websocket.MessageText, fmt.Appendf(nil, format, args...)); err != nil {
		p.t.Fatal(err)
	}
}

// until reads up to an event and returns the types of all.
func (p *peer) until(kind string) (kinds []string, last map[string]any) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	for {
		_, b, err := p.ws.Read(ctx)
		if err != nil {
			p.t.Fatalf("no %s after %q: %v", kind, kinds, err)
		}
		last = nil
		if err := json.Unmarshal(b, &last); err != nil {
			p.t.Fatal(err)
		}
		got, _ := last["type"].(string)
		if id, _ := last["event_id"].(string); id == "" {
			p.t.Errorf("%s has no event_id", got)
		}
		kinds = append(kinds, got)
		if got == kind {
			return kinds, last
		}
	}
}

func TestServerVoiceActivity(t *testing.T) {
	p := dial(t, Config{})
	speak := append(tone(400*time.Millisecond), make([]byte, 600*bytesPerMS)...)
	p.send(`{"type":"input_audio_buffer.append","audio":%q}`, base64.StdEncoding.EncodeToString(speak))
	kinds, _ := p.until("response.done")
	want := []string{
		"input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped", "input_audio_buffer.committed",
		"conversation.item.added", "conversation.item.done",
		"response.created", "response.output_item.added", "conversation.item.added", "response.content_part.added",
		"response.output_audio_transcript.delta", "response.output_audio.delta", "response.output_audio.delta", "response.output_audio.done",
		"response.output_audio_transcript.done", "response.content_part.done", "conversation.item.done", "response.output_item.done", "response.done",
	}
	if fmt.Sprint(kinds) != fmt.Sprint(want) {
		t.Errorf("events\n%q, want\n%q", kinds, want)
	}
}

func TestServerIsInterrupted(t *testing.T) {
	p := dial(t, Config{Tone: time.Minute, Speed: 1})
	p.send(`{"type":"response.create"}`)
	_, delta := p.until("response.output_audio.delta")
	item, _ := delta["item_id"].(string)
	p.send(`{"type":"input_audio_buffer.append","audio":%q}`, base64.StdEncoding.EncodeToString(tone(100*time.Millisecond)))
	_, done := p.until("response.done")
	if status := done["response"].(map[string]any)["status"]; status != "cancelled" {
		t.Errorf("the response is %v", status)
	}
	p.send(`{"type":"conversation.item.truncate","item_id":%q,"content_index":0,"audio_end_ms":100}`, item)
	if _, e := p.until("conversation.item.truncated"); e["audio_end_ms"] != 100.0 || e["item_id"] != item {
		t.Errorf("%v", e)
	}
	for event, message := range map[string]string{
		`{"type":"conversation.item.truncate","item_id":"` + item + `","audio_end_ms":101}`:        "the item has 100 ms",
		`{"type":"conversation.item.truncate","item_id":"x","audio_end_ms":0}`:                     "no item",
		`{"type":"conversation.item.retrieve","item_id":"x"}`:                                      "no item",
		`{"type":"response.cancel"}`:                                                               "no response",
		`{"type":"output_audio_buffer.clear"}`:                                                     "there is no event",
		`{"type":"session.update","session":{"audio":{"input":{"format":{"type":"audio/pcmu"}}}}}`: "audio/pcm",
		`{"type":"session.update","session":{"audio":{"output":{"format":{"type":"audio/pcm"}}}}}`: "audio/pcm",
		`hello`: "not an event",
	} {
		p.send("%s", event)
		_, e := p.until("error")
		if got := fmt.Sprint(e["error"].(map[string]any)["message"]); !strings.Contains(got, message) {
			t.Errorf("%s: %s", event, got)
		}
	}
}

func TestServerWithoutTurnDetection(t *testing.T) {
	p := dial(t, Config{OldNames: true})
	p.send(`{"type":"session.update","session":{"audio":{"input":{"turn_detection":null}},"instructions":"x"}}`)
	_, updated := p.until("session.updated")
	if s, _ := updated["session"].(map[string]any); s["instructions"] != "x" || s["id"] == "" {
		t.Errorf("%v", s)
	}
	p.send(`{"type":"input_audio_buffer.append","audio":%q}`, base64.StdEncoding.EncodeToString(append(tone(time.Second), make([]byte, 1000*bytesPerMS)...)))
	p.send(`{"type":"input_audio_buffer.clear"}`)
	if kinds, _ := p.until("input_audio_buffer.cleared"); len(kinds) != 1 {
		t.Errorf("turns were detected: %q", kinds)
	}
	p.send(`{"type":"input_audio_buffer.append","audio":%q}`, base64.StdEncoding.EncodeToString(tone(200*time.Millisecond)))
	p.send(`{"type":"input_audio_buffer.commit"}`)
	if kinds, _ := p.until("response.done"); !strings.Contains(fmt.Sprint(kinds), "response.audio.delta response.audio.done") {
		t.Errorf("%q", kinds)
	}
	p.send(`{"type":"conversation.item.create","item":{"id":"mine","type":"message","role":"user","content":[]}}`)
	p.until("conversation.item.done")
	p.send(`{"type":"conversation.item.retrieve","item_id":"mine"}`)
	p.until("conversation.item.retrieved")
}
