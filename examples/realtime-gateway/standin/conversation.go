package standin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/coder/websocket"
)

// obj is an event, or a part of one.
type obj = map[string]any

// conversation is one connection. All of it but the reader runs on one goroutine.
type conversation struct {
	s  *Server
	ws *websocket.Conn

	session obj
	hearing hearing
	items   map[string]*item
	last    string // the newest item
	user    string // the item of a turn that goes on
	answer  *answer
	ids     int
	err     error // of a write
}

// item is one of the conversation's.
type item struct {
	obj obj
	ms  int // of audio
}

// answer is a response that is being made.
type answer struct {
	response, item string
	pcm            []byte // what was not sent yet
	tick           *time.Ticker
}

func newConversation(s *Server, ws *websocket.Conn) *conversation {
	return &conversation{
		s: s, ws: ws, hearing: hearing{pause: s.cfg.Silence}, items: make(map[string]*item),
		session: obj{
			"object": "realtime.session", "type": "realtime", "output_modalities": []any{"audio"},
			"audio": obj{
				"input":  obj{"format": obj{"type": "audio/pcm", "rate": rate}, "turn_detection": obj{"type": "server_vad"}},
				"output": obj{"format": obj{"type": "audio/pcm", "rate": rate}, "voice": "standin"},
			},
		},
	}
}

// run serves the connection until it ends, and closes it. The error is nil if
// ctx ended it.
func (c *conversation) run(ctx context.Context) (err error) {
	messages, failed := make(chan []byte, 64), make(chan error, 1)
	ctx, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			_, b, err := c.ws.Read(context.Background()) // a context would cut the close handshake short
			if err != nil {
				failed <- err
				return
			}
			select {
			case messages <- b:
			case <-ctx.Done():
				return
			}
		}
	}()
	defer func() {
		reason := "the server stops"
		if err != nil {
			reason = err.Error()
		}
		stop()
		_ = c.ws.Close(websocket.StatusPolicyViolation, reason[:min(len(reason), 120)])
		<-done
		if c.answer != nil {
			c.answer.tick.Stop()
		}
	}()
	c.session["id"] = c.id("sess")
	c.send("session.created", obj{"session": c.session})
	for c.err == nil {
		var tick <-chan time.Time
		if c.answer != nil {
			tick = c.answer.tick.C
		}
		select {
		case b := <-messages:
			c.take(b)
		case <-tick:
			c.say()
		case err := <-failed:
			return err
		case <-ctx.Done():
			return nil
		}
	}
	return c.err
}

func (c *conversation) id(kind string) string {
	c.ids++
	return fmt.Sprintf("%s_%04d", kind, c.ids)
}

func (c *conversation) send(kind string, event obj) {
	event["type"], event["event_id"] = kind, c.id("event")
	b, err := json.Marshal(event)
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
		defer cancel()
		err = c.ws.Write(ctx, websocket.MessageText, b)
	}
	c.err = errors.Join(c.err, err)
}

// problem answers an event that cannot be taken.
func (c *conversation) problem(about, format string, args ...any) {
	c.refuse(about, "invalid_value", format, args...)
}

func (c *conversation) refuse(about, code, format string, args ...any) {
	c.send("error", obj{"error": obj{
		"type": "invalid_request_error", "code": code, "message": fmt.Sprintf(format, args...), "event_id": about,
	}})
}

// request is what this server reads of a client's events.
type request struct {
	Type  string `json:"type"`
	ID    string `json:"event_id"`
	Audio []byte `json:"audio"`

	Session obj `json:"session"`
	Item    obj `json:"item"`

	ItemID string `json:"item_id"`
	EndMS  int    `json:"audio_end_ms"`
}

func (c *conversation) take(message []byte) {
	var r request
	if err := json.Unmarshal(message, &r); err != nil {
		c.problem("", "not an event: %v", err)
		return
	}
	if r.Type == "input_audio_buffer.append" {
		c.hear(r.Audio)
		return
	}
	if c.s.cfg.OnEvent != nil {
		if c.err = c.s.cfg.OnEvent(r.Type, message); c.err != nil {
			return
		}
	}
	switch r.Type {
	case "session.update":
		c.update(&r)
	case "input_audio_buffer.commit":
		c.commit()
		c.respond(c.hearing.take())
	case "input_audio_buffer.clear":
		c.hearing.clear()
		c.send("input_audio_buffer.cleared", obj{})
	case "conversation.item.create":
		id, _ := r.Item["id"].(string)
		if id == "" {
			id = c.id("item")
		}
		r.Item["id"], r.Item["object"], r.Item["status"] = id, "realtime.item", "completed"
		c.add(r.Item, 0)
		c.finish(id)
	case "conversation.item.retrieve":
		if it := c.items[r.ItemID]; it != nil {
			c.send("conversation.item.retrieved", obj{"item": it.obj})
		} else {
			c.problem(r.ID, "no item %q", r.ItemID)
		}
	case "conversation.item.truncate":
		switch it := c.items[r.ItemID]; {
		case it == nil:
			c.problem(r.ID, "no item %q", r.ItemID)
		case r.EndMS > it.ms:
			c.problem(r.ID, "audio_end_ms is %d, the item has %d ms", r.EndMS, it.ms)
		default:
			it.ms = r.EndMS
			c.send("conversation.item.truncated", obj{"item_id": r.ItemID, "content_index": 0, "audio_end_ms": r.EndMS})
		}
	case "response.create":
		c.respond(nil)
	case "response.cancel":
		if c.answer == nil {
			c.refuse(r.ID, "response_cancel_not_active", "there is no response to cancel")
		}
		c.end("cancelled")
	default:
		c.problem(r.ID, "there is no event %q from a client", r.Type)
	}
}

// update merges a part of a session into it.
func (c *conversation) update(r *request) {
	if audio, ok := r.Session["audio"].(obj); ok {
		for _, side := range []string{"input", "output"} {
			part, _ := audio[side].(obj)
			format, ok := part["format"].(obj)
			if ok && (format["type"] != "audio/pcm" || format["rate"] != float64(rate)) {
				c.problem(r.ID, "the %s format has to be audio/pcm at %d", side, rate)
				return
			}
		}
	}
	merge(c.session, r.Session)
	c.send("session.updated", obj{"session": c.session})
}

func merge(into, from obj) {
	for k, v := range from {
		part, ok := v.(obj)
		old, isObj := into[k].(obj)
		if ok && isObj {
			merge(old, part)
			continue
		}
		into[k] = v
	}
}

// detection returns the settings of turn detection, nil when it is switched off
// and the client commits by itself.
func (c *conversation) detection() obj {
	audio, _ := c.session["audio"].(obj)
	input, _ := audio["input"].(obj)
	detection, _ := input["turn_detection"].(obj)
	return detection
}

// isOn reads a switch that is on by default.
func isOn(o obj, name string) bool {
	on, ok := o[name].(bool)
	return on || !ok
}

// hear takes a piece of the client's audio.
func (c *conversation) hear(pcm []byte) {
	if c.s.cfg.OnAudio != nil {
		c.s.cfg.OnAudio(pcm)
	}
	c.hearing.rest = append(c.hearing.rest, pcm...)
	for c.err == nil {
		change, ok := c.hearing.next()
		if !ok {
			return
		}
		detection := c.detection()
		switch {
		case change == nothing || detection == nil:
		case change == started:
			c.user = c.id("item")
			c.send("input_audio_buffer.speech_started", obj{
				"audio_start_ms": (c.hearing.heard - onset).Milliseconds(), "item_id": c.user,
			})
			if isOn(detection, "interrupt_response") {
				c.end("cancelled")
			}
		case change == stopped:
			c.send("input_audio_buffer.speech_stopped", obj{
				"audio_end_ms": (c.hearing.heard - c.hearing.silence).Milliseconds(), "item_id": c.user,
			})
			c.commit()
			if words := c.hearing.take(); isOn(detection, "create_response") {
				c.respond(words)
			}
		}
	}
}

// commit makes an item of what was heard.
func (c *conversation) commit() {
	id := c.user
	if c.user = ""; id == "" { // no speech was noticed
		id = c.id("item")
	}
	c.send("input_audio_buffer.committed", obj{"item_id": id, "previous_item_id": c.previous()})
	c.add(obj{
		"id": id, "object": "realtime.item", "type": "message", "role": "user", "status": "completed",
		"content": []any{obj{"type": "input_audio", "transcript": nil}},
	}, len(c.hearing.sound)/bytesPerMS)
	c.finish(id)
}

func (c *conversation) add(o obj, ms int) {
	id, _ := o["id"].(string)
	before := c.previous()
	c.items[id], c.last = &item{obj: o, ms: ms}, id
	c.send("conversation.item.added", obj{"item": o, "previous_item_id": before})
}

// previous is the newest item's id, null before the first.
func (c *conversation) previous() any {
	if c.last == "" {
		return nil
	}
	return c.last
}

func (c *conversation) finish(id string) {
	c.send("conversation.item.done", obj{"item": c.items[id].obj})
}

// respond begins an answer: the words, or a tone where there are none.
func (c *conversation) respond(words []byte) {
	c.end("cancelled")
	if len(words) == 0 {
		words = tone(c.s.cfg.Tone)
	}
	a := &answer{
		response: c.id("resp"), item: c.id("item"), pcm: words,
		tick: time.NewTicker(defaultChunk / time.Duration(c.s.cfg.Speed)),
	}
	c.answer = a
	c.send("response.created", obj{"response": c.response("in_progress")})
	message := obj{
		"id": a.item, "object": "realtime.item", "type": "message", "role": "assistant", "status": "in_progress", "content": []any{},
	}
	c.send("response.output_item.added", c.about(obj{"item": message}))
	c.add(message, 0)
	c.send("response.content_part.added", c.about(obj{"part": obj{"type": "audio", "transcript": ""}}))
	c.send(c.name("audio_transcript.delta"), c.about(obj{"delta": "(what you said)"}))
	c.say()
}

func (c *conversation) response(status string) obj {
	return obj{"id": c.answer.response, "object": "realtime.response", "status": status, "output_modalities": []any{"audio"}, "output": []any{}}
}

// about adds what all events of an answer have.
func (c *conversation) about(event obj) obj {
	maps.Copy(event, obj{"response_id": c.answer.response, "item_id": c.answer.item, "output_index": 0, "content_index": 0})
	return event
}

func (c *conversation) name(suffix string) string {
	if c.s.cfg.OldNames {
		return "response." + suffix
	}
	return "response.output_" + suffix
}

// say sends the next piece of the answer.
func (c *conversation) say() {
	a := c.answer
	n := min(len(a.pcm), int(defaultChunk.Milliseconds())*bytesPerMS)
	c.send(c.name("audio.delta"), c.about(obj{"delta": a.pcm[:n]})) // base64 by encoding/json
	c.items[a.item].ms += n / bytesPerMS
	if a.pcm = a.pcm[n:]; len(a.pcm) == 0 {
		c.end("completed")
	}
}

// end ends the answer that is being made, if one is.
func (c *conversation) end(status string) {
	a := c.answer
	if a == nil {
		return
	}
	a.tick.Stop()
	o := c.items[a.item].obj
	o["status"] = map[string]string{"completed": "completed", "cancelled": "incomplete"}[status]
	o["content"] = []any{obj{"type": "output_audio", "transcript": "(what you said)"}}
	c.send(c.name("audio.done"), c.about(obj{}))
	c.send(c.name("audio_transcript.done"), c.about(obj{"transcript": "(what you said)"}))
	c.send("response.content_part.done", c.about(obj{"part": obj{"type": "audio", "transcript": "(what you said)"}}))
	c.finish(a.item)
	c.send("response.output_item.done", c.about(obj{"item": o}))
	done := c.response(status)
	done["output"] = []any{o}
	c.send("response.done", obj{"response": done})
	c.answer = nil
}
