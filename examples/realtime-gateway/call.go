package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/usher-rtc/usher/transceiver"
	"github.com/usher-rtc/usher/transceiver/bridge"
)

const (
	// pingEvery is how often upstream is asked whether it is there, and how long
	// it may take to answer.
	pingEvery = 15 * time.Second
	// maxEvents is how many events may wait for a client that does not read, and
	// maxOrders how many of the gateway's own for upstream.
	maxEvents, maxOrders = 256, 64
	// farewell is how long a client has to read why its call ends, and upstream
	// to agree to the end.
	farewell = 500 * time.Millisecond
	// maxConcealed is the longest gap in the client's audio that is filled, in
	// packets. What a decoder makes up beyond it is no speech.
	maxConcealed = 5
)

// call is one client and its connection to upstream.
type call struct {
	g        *gateway
	s        *transceiver.Session
	audio    *transceiver.Audio
	events   *transceiver.Events
	upstream *websocket.Conn
	decoder  bridge.Decoder
	speaker  speaker

	down   chan []byte // events for the client
	orders chan []byte // the gateway's own events for upstream

	tasks sync.WaitGroup
	end   context.CancelCauseFunc // the first cause counts

	// These belong to fromUpstream.
	created    []byte // session.created, until it is known what the session is
	interrupts bool   // speech interrupts an answer
}

// start runs the call until either side ends.
func (c *call) start(update []byte) {
	c.down, c.orders, c.interrupts = make(chan []byte, maxEvents), make(chan []byte, maxOrders), true
	c.orders <- update
	context.AfterFunc(c.s.Context(), func() {
		late := time.AfterFunc(farewell, func() { _ = c.upstream.CloseNow() })
		_ = c.upstream.Close(websocket.StatusNormalClosure, "the call has ended")
		late.Stop()
	})
	c.s.Go(c.run)
}

func (c *call) run(ctx context.Context) {
	ctx, c.end = context.WithCancelCause(ctx)
	defer c.end(nil)
	for _, task := range []func(context.Context) error{c.fromUpstream, c.fromMicrophone, c.fromClient, c.toUpstream, c.ping} {
		c.tasks.Go(func() {
			defer c.s.Recover()
			if err := task(ctx); err != nil {
				c.end(err)
			}
		})
	}
	told := make(chan struct{})
	go func() {
		defer close(told)
		c.toClient(ctx)
	}()
	<-ctx.Done()
	reason := context.Cause(ctx).Error()
	<-told
	c.s.CloseWithReason(reason) // which changes nothing if the client ended it
	c.tasks.Wait()
	dropped := c.audio.Stats().Overrun
	c.g.stats.audioDropped.Add(dropped)
	slog.Info("call ended", "session", c.s.ID(), "reason", c.s.Err(), "audio_dropped", dropped)
}

// fromMicrophone sends the client's audio upstream. While upstream does not
// read, the session's own queue drops the oldest packets and counts them.
func (c *call) fromMicrophone(ctx context.Context) error {
	var pcm, message []byte
	for {
		frame, err := c.audio.Next(ctx)
		if errors.Is(err, io.EOF) {
			continue // the track has gone; another may come
		}
		if err != nil {
			return err
		}
		pcm = pcm[:0]
		if frame.Lost <= maxConcealed {
			for range frame.Lost {
				if pcm, err = c.decoder.Conceal(pcm, nil); err != nil {
					return err
				}
			}
		}
		if out, err := c.decoder.Decode(pcm, frame.Payload); err == nil {
			pcm = out
		} else if pcm, err = c.decoder.Conceal(pcm, nil); err != nil { // as good as lost
			return err
		}
		message = append(message[:0], `{"type":"input_audio_buffer.append","audio":"`...)
		message = base64.StdEncoding.AppendEncode(message, pcm)
		if err := c.send(append(message, `"}`...)); err != nil {
			return err
		}
	}
}

// fromClient sends the client's events upstream, one after the other: a client
// that sends faster than upstream reads is held up.
func (c *call) fromClient(ctx context.Context) error {
	for {
		event, err := c.events.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil // without events the call goes on
		}
		if err != nil {
			return err
		}
		var head struct {
			Type string `json:"type"`
			ID   string `json:"event_id"`
		}
		if json.Unmarshal(event.Data, &head) != nil || head.Type == "" {
			c.problem("invalid_request_error", "invalid_event", "an event is a JSON object with a type", "")
			continue
		}
		switch head.Type {
		case "input_audio_buffer.append":
			c.problem("invalid_request_error", "audio_is_rtp", "audio goes over the peer connection, not over the data channel", head.ID)
			continue
		case "output_audio_buffer.clear": // upstream has no such buffer
			c.interrupt(nil)
			continue
		case "session.update":
			if event.Data, err = updateWithPCM(event.Data); err != nil {
				c.problem("invalid_request_error", "invalid_session", err.Error(), head.ID)
				continue
			}
		}
		if err := c.send(event.Data); err != nil {
			return err
		}
	}
}

// toUpstream sends the gateway's own events, so that whoever reads from
// upstream never waits for it to read.
func (c *call) toUpstream(ctx context.Context) error {
	for {
		select {
		case order := <-c.orders:
			if err := c.send(order); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

func (c *call) send(event []byte) error {
	late := time.AfterFunc(c.g.cfg.WriteTimeout, func() {
		c.end(errors.New("the speech server does not read")) // before the reader finds the connection closed
		_ = c.upstream.CloseNow()
	})
	defer late.Stop()
	return upstreamEnd(c.upstream.Write(context.Background(), websocket.MessageText, event))
}

// ping notices an upstream that is gone without a word.
func (c *call) ping(ctx context.Context) error {
	for tick := time.NewTicker(pingEvery); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			tick.Stop()
			return nil
		}
		limit, cancel := context.WithTimeout(ctx, pingEvery)
		err := c.upstream.Ping(limit)
		cancel()
		if err != nil && ctx.Err() == nil {
			return upstreamEnd(err)
		}
	}
}

// fromUpstream reads what upstream says. It waits for nobody: audio is queued,
// and so are events.
func (c *call) fromUpstream(ctx context.Context) error {
	for {
		kind, event, err := c.upstream.Read(context.Background()) // the end of the session closes it
		if err != nil {
			return upstreamEnd(err)
		}
		var head struct {
			Type string `json:"type"`
		}
		if kind != websocket.MessageText || json.Unmarshal(event, &head) != nil || head.Type == "" {
			c.g.stats.malformed.Add(1)
			continue
		}
		if err := c.take(ctx, head.Type, event); err != nil {
			return err
		}
	}
}

// take handles one event of upstream.
func (c *call) take(ctx context.Context, kind string, event []byte) error {
	var known struct {
		Session  json.RawMessage `json:"session"`
		Response struct {
			ID string `json:"id"`
		} `json:"response"`
		ResponseID string `json:"response_id"`
	}
	var delta audioDelta
	switch kind {
	case "response.output_audio.delta", "response.audio.delta":
		if json.Unmarshal(event, &delta) != nil || len(delta.PCM)%2 != 0 {
			c.g.stats.malformed.Add(1)
			return nil
		}
		began, before, lost, err := c.speaker.add(c.audio, &delta)
		c.g.stats.answersCut.Add(lost)
		if before != "" {
			c.tell("output_audio_buffer.stopped", before)
		}
		if began != "" {
			c.tell("output_audio_buffer.started", began)
		}
		return err // the sound goes to the client, the event does not
	case "session.created", "session.updated", "response.output_audio.done", "response.audio.done", "response.done":
		if json.Unmarshal(event, &known) != nil {
			c.g.stats.malformed.Add(1)
			return nil
		}
	}
	if kind == "session.created" || kind == "session.updated" {
		c.interrupts = interrupts(known.Session)
	}
	// The client's first sight of its session is what the gateway has made of
	// it, not what upstream began with.
	if created := c.created; created != nil {
		c.created = nil
		if kind == "session.updated" {
			event = rename(event, "session.created")
		} else {
			c.deliver(created)
		}
	} else if kind == "session.created" {
		c.created = event
		return nil
	}
	switch kind {
	case "input_audio_buffer.speech_started":
		if c.interrupts {
			c.interrupt(event)
			return nil
		}
	case "response.output_audio.done", "response.audio.done":
		return c.ended(event, known.ResponseID)
	case "response.done":
		if c.speaker.isPlaying(known.Response.ID) {
			c.tasks.Go(func() { c.playOut(ctx, known.Response.ID) })
		}
		return c.ended(event, known.Response.ID)
	}
	c.deliver(event)
	return nil
}

// ended is for events after which no more audio comes.
func (c *call) ended(event []byte, response string) error {
	lost, err := c.speaker.done(c.audio, response)
	c.g.stats.answersCut.Add(lost)
	c.deliver(event)
	return err
}

// playOut tells the client when it has been sent all of a response.
func (c *call) playOut(ctx context.Context, response string) {
	if c.audio.Wait(ctx) == nil && c.speaker.stopped(response) {
		c.tell("output_audio_buffer.stopped", response)
	}
}

// interrupt stops an answer, and lets client and upstream know what the user
// has heard of it. The client is told of the cause before, if there is an event
// for it, but that comes after the sound has ended.
func (c *call) interrupt(cause []byte) {
	response, cuts := c.speaker.interrupt(c.audio)
	if cause != nil {
		c.deliver(cause)
	}
	if len(cuts) > 0 {
		c.g.stats.interruptions.Add(1)
	}
	for _, t := range cuts {
		order, err := json.Marshal(t)
		if err != nil {
			continue // it is made of strings and numbers
		}
		select {
		case c.orders <- order:
		default: // upstream does not read, and the call is about to end for it
		}
	}
	if response != "" {
		c.tell("output_audio_buffer.cleared", response)
	}
}

// tell makes an event of the gateway's own: WebRTC clients know of a buffer that
// upstream has not.
func (c *call) tell(kind, response string) {
	c.deliverJSON(map[string]string{"type": kind, "event_id": "event_" + rand.Text(), "response_id": response})
}

// problem makes an error event; about is the client's event that was at fault.
func (c *call) problem(kind, code, message, about string) {
	detail := map[string]string{"type": kind, "code": code, "message": message}
	if about != "" {
		detail["event_id"] = about
	}
	c.deliverJSON(map[string]any{"type": "error", "event_id": "event_" + rand.Text(), "error": detail})
}

func (c *call) deliverJSON(v any) {
	if b, err := json.Marshal(v); err == nil {
		c.deliver(b)
	}
}

// deliver queues an event for the client. What a client does not read in time
// is dropped and counted: it must not hold up its own audio.
func (c *call) deliver(event []byte) {
	select {
	case c.down <- event:
	default:
		c.g.stats.eventsDropped.Add(1)
	}
}

// toClient sends the client's events until the call ends, and then what is left
// of them with the reason.
func (c *call) toClient(ctx context.Context) {
	limit, cancel := context.WithCancel(c.s.Context())
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(farewell, cancel) })()
	send := func(event []byte) {
		if c.events.Send(limit, transceiver.Event{Text: true, Data: event}) != nil {
			c.g.stats.eventsDropped.Add(1)
		}
	}
	for ctx.Err() == nil {
		select {
		case event := <-c.down:
			send(event)
		case <-ctx.Done():
		}
	}
	c.problem("server_error", "call_ended", context.Cause(ctx).Error(), "")
	for limit.Err() == nil {
		select {
		case event := <-c.down:
			send(event)
		default:
			return
		}
	}
}

// updateWithPCM is withPCM for the session in a session.update.
func updateWithPCM(event []byte) ([]byte, error) {
	update, err := parse(event)
	if err != nil {
		return nil, err
	}
	if update["session"], err = withPCM(update["session"]); err != nil {
		return nil, err
	}
	return json.Marshal(update)
}

// upstreamEnd says why the connection to upstream ended, in words for a client.
func upstreamEnd(err error) error {
	var closed websocket.CloseError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &closed) && closed.Reason != "":
		return fmt.Errorf("the speech server ended the call: %s", closed.Reason)
	case errors.As(err, &closed):
		return errors.New("the speech server ended the call")
	default:
		return errors.New("the connection to the speech server was lost")
	}
}
