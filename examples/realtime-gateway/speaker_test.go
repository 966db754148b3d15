package main

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/usher-rtc/usher/transceiver"
)

// fakePlayer is a queue of audio whose time passes when the test says so.
type fakePlayer struct {
	room   time.Duration
	queued time.Duration
	err    error
}

func (p *fakePlayer) Write(ctx context.Context, _ []byte) error {
	switch {
	case p.err != nil:
		return p.err
	case p.queued+frameDuration > p.room:
		<-ctx.Done()
		return ctx.Err()
	}
	p.queued += frameDuration
	return nil
}

func (p *fakePlayer) Interrupt() transceiver.Interrupted {
	d := p.queued
	p.queued = 0
	return transceiver.Interrupted{Dropped: d}
}

func (p *fakePlayer) Stats() transceiver.AudioStats {
	return transceiver.AudioStats{QueuedOut: p.queued}
}

type fakeEncoder struct{}

func (fakeEncoder) Encode(dst, pcm []byte) ([]byte, error) { return append(dst, pcm[:2]...), nil }

// speech is so many milliseconds of PCM.
func speech(response, item string, ms int) *audioDelta {
	return &audioDelta{Response: response, Item: item, PCM: make([]byte, 48*ms)}
}

func TestSpeaker(t *testing.T) {
	type cut struct {
		item string
		ms   int64
	}
	for name, tt := range map[string]struct {
		do       func(t *testing.T, s *speaker, p *fakePlayer)
		response string
		cuts     []cut
	}{
		"nothing": {do: func(*testing.T, *speaker, *fakePlayer) {}},
		"in the middle": {
			do: func(t *testing.T, s *speaker, p *fakePlayer) {
				add(t, s, p, speech("r", "a", 1000))
				p.queued -= 400 * time.Millisecond
			},
			response: "r", cuts: []cut{{"a", 400}},
		},
		"made but not played": {
			do: func(t *testing.T, s *speaker, p *fakePlayer) {
				add(t, s, p, speech("r", "a", 1000))
				finish(t, s, p, "r")
				p.queued -= 980 * time.Millisecond
			},
			response: "r", cuts: []cut{{"a", 980}},
		},
		"played to its end": {
			do: func(t *testing.T, s *speaker, p *fakePlayer) {
				add(t, s, p, speech("r", "a", 1010))
				finish(t, s, p, "r")
				p.queued = 0
				if !s.stopped("r") || s.stopped("r") {
					t.Error("it stops once")
				}
			},
		},
		"still to be made": {
			do: func(t *testing.T, s *speaker, p *fakePlayer) {
				add(t, s, p, speech("r", "a", 110)) // 10 ms are no frame
				p.queued = 0
			},
			response: "r", cuts: []cut{{"a", 100}},
		},
		"several items": {
			do: func(t *testing.T, s *speaker, p *fakePlayer) {
				add(t, s, p, speech("r", "a", 100))
				finish(t, s, p, "r")
				add(t, s, p, speech("r", "b", 110)) // its last frame is filled up
				finish(t, s, p, "r")
				add(t, s, p, speech("r2", "c", 200))
				p.queued -= 160 * time.Millisecond
			},
			response: "r2", cuts: []cut{{"b", 60}, {"c", 0}},
		},
		"after an interruption": {
			do: func(t *testing.T, s *speaker, p *fakePlayer) {
				add(t, s, p, speech("r", "a", 500))
				p.queued -= 100 * time.Millisecond
				s.interrupt(p)
				add(t, s, p, speech("r", "a", 500)) // too late
				if p.queued != 0 {
					t.Error("more of what was cut is played")
				}
				add(t, s, p, speech("r2", "b", 500))
				p.queued -= 300 * time.Millisecond
			},
			response: "r2", cuts: []cut{{"b", 300}},
		},
		"without ids": {
			do: func(t *testing.T, s *speaker, p *fakePlayer) {
				add(t, s, p, speech("", "", 500))
				s.interrupt(p)
				add(t, s, p, speech("", "", 500))
				p.queued -= 20 * time.Millisecond
			},
			cuts: []cut{{"", 20}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, p := &speaker{encoder: fakeEncoder{}}, &fakePlayer{room: time.Hour}
			tt.do(t, s, p)
			response, got := s.interrupt(p)
			var cuts []cut
			for _, c := range got {
				if c.Type != "conversation.item.truncate" || c.Content != 0 {
					t.Errorf("%+v", c)
				}
				cuts = append(cuts, cut{c.Item, c.EndMS})
			}
			if response != tt.response || !slices.Equal(cuts, tt.cuts) {
				t.Errorf("%q, %v; want %q, %v", response, cuts, tt.response, tt.cuts)
			}
			if _, again := s.interrupt(p); again != nil {
				t.Errorf("a second interruption cuts %v", again)
			}
		})
	}
}

func add(t *testing.T, s *speaker, p player, d *audioDelta) {
	t.Helper()
	if _, _, lost, err := s.add(p, d); lost != 0 || err != nil {
		t.Error(lost, err)
	}
}

func finish(t *testing.T, s *speaker, p player, response string) {
	t.Helper()
	if lost, err := s.done(p, response); lost != 0 || err != nil {
		t.Error(lost, err)
	}
}

func TestSpeakerTellsWhatBegins(t *testing.T) {
	s, p := &speaker{encoder: fakeEncoder{}}, &fakePlayer{room: time.Hour}
	for _, tt := range []struct{ response, began, before string }{{"a", "a", ""}, {"a", "", ""}, {"b", "b", "a"}} {
		began, before, _, _ := s.add(p, speech(tt.response, tt.response, 20))
		if began != tt.began || before != tt.before {
			t.Errorf("%+v: %q began after %q", tt, began, before)
		}
	}
	if s.isPlaying("a") || !s.isPlaying("b") || s.isPlaying("") {
		t.Error("b is playing")
	}
}

func TestSpeakerIsBounded(t *testing.T) {
	s, p := &speaker{encoder: fakeEncoder{}}, &fakePlayer{room: 200 * time.Millisecond}
	if _, _, lost, err := s.add(p, speech("r", "a", 300)); lost != 5 || err != nil {
		t.Errorf("%d packets lost, %v; want 5", lost, err)
	}
	p.err = transceiver.ErrNotListening
	if _, _, lost, err := s.add(p, speech("r", "a", 300)); lost != 0 || err != nil {
		t.Errorf("a client that only sends: %d, %v", lost, err)
	}
	p.err = transceiver.ErrSessionClosed
	if _, _, _, err := s.add(p, speech("r", "a", 300)); err == nil {
		t.Error("the end of the session is no error")
	}
	for i := range 1000 { // what was played is forgotten
		q := &fakePlayer{room: time.Hour}
		_, _, _, _ = s.add(q, speech("r", string(rune('a'+i%26)), 20))
		_, _ = s.done(q, "r")
	}
	if len(s.parts) > 2 {
		t.Errorf("%d parts are remembered", len(s.parts))
	}
}

func TestWithPCM(t *testing.T) {
	const both = `{"input":{"format":{"type":"audio/pcm","rate":24000}},"output":{"format":{"type":"audio/pcm","rate":24000}}}`
	for name, tt := range map[string]struct{ in, out string }{
		"nothing": {``, `{"audio":` + both + `,"type":"realtime"}`},
		"null":    {`null`, `{"audio":` + both + `,"type":"realtime"}`},
		"nulls":   {`{"audio":{"input":null},"type":"realtime"}`, `{"audio":` + both + `,"type":"realtime"}`},
		"another format": {
			`{"audio":{"output":{"format":{"type":"audio/pcma"},"speed":1.0}},"type":"transcription","big":12345678901234567890}`,
			`{"audio":{"input":{"format":{"type":"audio/pcm","rate":24000}},"output":{"format":{"type":"audio/pcm","rate":24000},"speed":1.0}},"big":12345678901234567890,"type":"transcription"}`,
		},
		"first version": {`{"input_audio_format":"g711_ulaw","voice":"x"}`, `{"input_audio_format":"pcm16","output_audio_format":"pcm16","voice":"x"}`},
		"a list":        {`[]`, ``},
		"audio a list":  {`{"audio":[]}`, ``},
		"input a list":  {`{"audio":{"input":[]}}`, ``},
	} {
		out, err := withPCM(json.RawMessage(tt.in))
		if string(out) != tt.out || (err != nil) != (tt.out == "") {
			t.Errorf("%s: %s, %v", name, out, err)
		}
	}
}

func TestInterrupts(t *testing.T) {
	for session, want := range map[string]bool{
		``: true, `null`: true, `[]`: true, `{"audio":7}`: true, `{"turn_detection":null}`: true,
		`{"audio":{"input":{"turn_detection":{"type":"server_vad"}}}}`:            true,
		`{"audio":{"input":{"turn_detection":{"interrupt_response":false}}}}`:     false,
		`{"turn_detection":{"interrupt_response":false}}`:                         false,
		`{"audio":{"input":{"turn_detection":{"interrupt_response":true}}}}`:      true,
		`{"audio":{"input":{"turn_detection":{"interrupt_response":"perhaps"}}}}`: true,
	} {
		if got := interrupts(json.RawMessage(session)); got != want {
			t.Errorf("%s: %v", session, got)
		}
	}
}

func TestRename(t *testing.T) {
	got := string(rename([]byte(`{"type":"session.updated","session":{"n":1.0}}`), "session.created"))
	if got != `{"session":{"n":1.0},"type":"session.created"}` {
		t.Error(got)
	}
}

func TestAllowTokens(t *testing.T) {
	allow := allowTokens([]string{"one", "two", ""})
	for token, want := range map[string]bool{"one": true, "two": true, "": false, "on": false, "onetwo": false, "One": false} {
		if got := allow(t.Context(), token); got != want {
			t.Errorf("%q: %v", token, got)
		}
	}
	if allowTokens(nil)(t.Context(), "one") || allowTokens(nil)(t.Context(), strings.Repeat("x", 100)) {
		t.Error("an empty list lets somebody in")
	}
}
