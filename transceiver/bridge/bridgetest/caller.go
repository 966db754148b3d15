package bridgetest

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/usher-rtc/usher/internal/opus"
	"github.com/usher-rtc/usher/transceiver"
)

// CallerConfig configures NewCaller. The zero value of every field that is not
// marked as required is its documented default.
type CallerConfig struct {
	// Service is the service under test. Its URL or its Handler is required.
	Service Service
	// Metadata is what the client sent with its offer. Empty means nothing.
	Metadata json.RawMessage
	// Window is how much audio of the service may be queued. A service that
	// writes more waits until the test has called Hear. 0 means 30 s.
	Window time.Duration
}

// Caller is a client and its transceiver, to test a service of your own with: it
// says what the test makes it say, and hears what the service says, at the pace
// of the test. Nothing is played by itself: what the service says is queued until
// Hear, as if no time passed, so that a test knows what is interrupted when.
//
// What must come comes within 10 s, or the test fails. All methods are for the
// test's goroutine.
type Caller struct {
	t      testing.TB
	cfg    CallerConfig
	rate   int // of PCM, 0 for Opus
	number int // of the connection

	peer   *peer
	reader sync.WaitGroup

	mu      sync.Mutex
	said    time.Duration // by the client; changed by the test's goroutine alone
	changed chan struct{} // closed and replaced when anything below has changed
	queue   []sound       // what the service has said and the client has not heard
	queued  time.Duration
	taken   time.Duration // of this connection's audio
	spoken  time.Duration // of this utterance, played
	dry     time.Duration // where in what the client said the queue ran dry
	at      time.Duration // where the client is, in the service's time
	marks   []pendingMark
	events  []transceiver.Event
	cuts    []transceiver.Interrupted
	goodbye string
	over    error
}

// utteranceGap is the silence that separates two utterances, in the client's time:
// Say and Pause. That a test has heard all there is while the service still writes
// separates none. It is shorter than a transceiver's, as the pauses of tests are.
const utteranceGap = 500 * time.Millisecond

// sound is a message of audio.
type sound struct {
	payload  []byte
	duration time.Duration
	time     time.Duration // the service's
	rest     bool          // of a connection before
}

type pendingMark struct {
	id any
	at time.Duration // in taken
}

// NewCaller calls a service and returns when the service is ready. The call ends
// with the test. It fails the test if there is no service, or if that asks for
// another codec than Service.Codec.
func NewCaller(t testing.TB, cfg CallerConfig) *Caller {
	t.Helper()
	if cfg.Window == 0 {
		cfg.Window = 30 * time.Second
	}
	if h := cfg.Service.Handler; h != nil {
		server := httptest.NewServer(h)
		t.Cleanup(server.Close)
		cfg.Service.URL = server.URL
	}
	c := &Caller{t: t, cfg: cfg, changed: make(chan struct{})}
	switch cfg.Service.Codec {
	case "pcm16/16000":
		c.rate = 16000
	case "pcm16/24000":
		c.rate = 24000
	}
	c.connect(nil)
	t.Cleanup(c.Kill)
	return c
}

func (c *Caller) connect(resume map[string]any) {
	c.t.Helper()
	c.number++
	c.peer = c.cfg.Service.open(c.t, func(start map[string]any) {
		start["token"], start["session"], start["connection"] = "FEEDCAFE", "test", c.number
		start["window_ms"] = millis(c.cfg.Window)
		delete(start, "metadata")
		if len(c.cfg.Metadata) > 0 {
			start["metadata"] = c.cfg.Metadata
		}
		if resume != nil {
			start["resume"] = resume
		}
	})
	c.peer.ctx = context.Background() // Kill ends it
	if resume != nil {
		c.peer.say(map[string]any{"type": "missed", "reason": "reconnecting", "frames": 0, "ms": 0, "unconfirmed_frames": 0, "unconfirmed_events": 0})
	}
	p, done := c.peer, make(chan struct{})
	c.reader.Go(func() {
		defer close(done)
		c.read(p)
	})
	c.reader.Go(func() { // or a service takes a slow test for a dead transceiver
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				limit, cancel := context.WithTimeout(context.Background(), patience)
				_ = p.conn.Ping(limit) // a dead connection shows in read
				cancel()
			case <-done:
				return
			}
		}
	})
}

// Kill drops the connection without a word, as a transceiver does that loses its
// network. What the service has said stays queued.
func (c *Caller) Kill() {
	_ = c.peer.conn.CloseNow()
	c.reader.Wait()
}

// Reconnect makes the session's next connection to the service, after Kill or
// when the service has ended the one before. The service is told what is queued.
func (c *Caller) Reconnect() {
	c.t.Helper()
	c.Kill()
	c.mu.Lock()
	resume := map[string]any{"after": "connection lost", "queued_ms": millis(c.queued), "position_ms": millis(c.at)}
	for i := range c.queue {
		c.queue[i].rest = true
	}
	c.taken, c.at, c.marks, c.over, c.goodbye = 0, 0, nil, nil, ""
	c.mu.Unlock()
	c.connect(resume)
}

// read takes what the service says until the connection ends.
func (c *Caller) read(p *peer) {
	for {
		m := p.read()
		c.mu.Lock()
		var answers []any
		switch {
		case m.err != nil:
			c.over = m.err
		case m.text:
			answers = c.control(m)
		default:
			c.binary(m)
		}
		close(c.changed)
		c.changed = make(chan struct{})
		c.mu.Unlock()
		c.tell(p, answers)
		if m.err != nil {
			_ = p.conn.CloseNow()
			return
		}
	}
}

func (c *Caller) tell(p *peer, messages []any) {
	for _, m := range messages {
		if b, err := json.Marshal(m); err == nil {
			_ = p.conn.Write(p.ctx, websocket.MessageText, b) // a dead connection shows in read
		}
	}
}

// control takes a text message and returns the answers. The lock is held.
func (c *Caller) control(m message) []any {
	id := m.fields["id"]
	switch m.fields["type"] {
	case "mark":
		c.marks = append(c.marks, pendingMark{id, c.taken})
		return c.marked(false)
	case "interrupt":
		cut := transceiver.Interrupted{Played: c.spoken, Dropped: c.queued}
		c.cuts = append(c.cuts, cut)
		answers := c.marked(true)
		c.queue, c.queued, c.spoken = nil, 0, 0
		return append(answers, map[string]any{
			"type": "interrupted", "id": id,
			"played_ms": millis(cut.Played), "dropped_ms": millis(cut.Dropped), "position_ms": millis(c.at),
		}, c.playback())
	case "end":
		if c.goodbye == "" { // only the first one counts
			c.goodbye, _ = m.fields["reason"].(string)
		}
	}
	return nil
}

// marked answers the marks that have been reached, or all that are cut off. The
// lock is held.
func (c *Caller) marked(interrupted bool) (answers []any) {
	kept := c.marks[:0]
	for _, m := range c.marks {
		waits := m.at > c.taken-c.queued
		if waits && !interrupted {
			kept = append(kept, m)
			continue
		}
		answers = append(answers, map[string]any{"type": "marked", "id": m.id, "interrupted": waits})
	}
	c.marks = kept
	return answers
}

func (c *Caller) playback() any {
	return map[string]any{"type": "playback", "taken_ms": millis(c.taken), "queued_ms": millis(c.queued), "position_ms": millis(c.at)}
}

// binary takes audio or an event. The lock is held.
func (c *Caller) binary(m message) {
	payload := m.data[headerLen:]
	switch m.kind() {
	case 1:
		d, _ := opus.Duration(payload)
		if c.rate != 0 {
			d = pcmTime(len(payload), c.rate)
		}
		if c.queued == 0 && c.said-c.dry >= utteranceGap {
			c.spoken = 0
		}
		at := time.Duration(binary.BigEndian.Uint64(m.data[8:])) * time.Microsecond
		c.queue = append(c.queue, sound{payload: payload, duration: d, time: at})
		c.queued += d
		c.taken += d
	case 2, 3:
		c.events = append(c.events, transceiver.Event{Text: m.kind() == 2, Data: payload})
	}
}

// wait waits for a condition, under the lock.
func (c *Caller) wait(what string, ok func() bool) {
	c.t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		c.mu.Lock()
		good, over, changed := ok(), c.over, c.changed
		c.mu.Unlock()
		if good {
			return
		}
		if over != nil {
			c.t.Fatalf("the connection ended before %s: %v", what, over)
		}
		select {
		case <-changed:
		case <-limit.C:
			c.t.Fatalf("the service is silent: %s within %v", what, patience)
		}
	}
}

// Say makes the client say a frame: an Opus packet, or PCM for a service that
// asks for that. Its Time is where the one before ended, whatever f says, and its
// Duration that of the payload.
func (c *Caller) Say(f transceiver.Frame) {
	c.t.Helper()
	d, ok := opus.Duration(f.Payload)
	if c.rate != 0 {
		d, ok = pcmTime(len(f.Payload), c.rate), len(f.Payload) > 0
	}
	if !ok {
		c.t.Fatalf("%d bytes are no frame", len(f.Payload))
	}
	h := make([]byte, headerLen, headerLen+len(f.Payload))
	h[0], h[3] = 1, uint8(d/(500*time.Microsecond))
	if f.HasLevel {
		h[1], h[2] = 1, f.Level
		if f.Voice {
			h[1] |= 2
		}
	}
	binary.BigEndian.PutUint32(h[4:], uint32(f.Lost))
	binary.BigEndian.PutUint64(h[8:], uint64(c.said/time.Microsecond))
	c.Pause(d)
	c.peer.write(websocket.MessageBinary, append(h, f.Payload...))
}

// Pause makes time pass in which the client sends nothing.
func (c *Caller) Pause(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said += d
}

// Hear waits until the service has said that much and plays it to the client. It
// returns the payloads: Opus packets, which are not divided, or PCM.
func (c *Caller) Hear(d time.Duration) [][]byte {
	c.t.Helper()
	c.wait("it said "+d.String(), func() bool { return c.queued >= d })
	return c.play(d)
}

// HearOut waits until the service asks when the client has heard everything
// (bridge.Utterance.Wait), plays all that is queued and returns it.
func (c *Caller) HearOut() [][]byte {
	c.t.Helper()
	return c.play(c.Said())
}

// Said waits until the service asks when the client has heard everything
// (bridge.Utterance.Wait), which is when all of it was written, and returns how
// much of it is queued.
func (c *Caller) Said() time.Duration {
	c.t.Helper()
	c.wait("it asked for the end of what it says", func() bool { return len(c.marks) > 0 })
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.queued
}

// play plays what is queued and tells the service.
func (c *Caller) play(d time.Duration) (payloads [][]byte) {
	c.mu.Lock()
	for d > 0 && len(c.queue) > 0 {
		s := &c.queue[0]
		played, length := s.payload, s.duration
		if c.rate != 0 && d < length {
			n := min(len(played), 2*int((d*time.Duration(c.rate)+time.Second-1)/time.Second))
			played, length = played[:n], pcmTime(n, c.rate)
		}
		if !s.rest {
			c.at = s.time + length
		}
		payloads = append(payloads, played)
		d -= length
		c.queued -= length
		c.spoken += length
		s.payload, s.time, s.duration = s.payload[len(played):], s.time+length, s.duration-length
		if len(s.payload) == 0 {
			c.queued -= s.duration // of rounding
			c.queue = c.queue[1:]
		}
	}
	c.dry = c.said
	answers := append(c.marked(false), c.playback())
	c.mu.Unlock()
	c.tell(c.peer, answers)
	return payloads
}

// Interrupted waits until the service stops what it says (bridge.Utterance.Stop)
// and returns what the client had heard of it and what not. Each interruption is
// returned once.
func (c *Caller) Interrupted() transceiver.Interrupted {
	c.t.Helper()
	c.wait("it interrupted itself", func() bool { return len(c.cuts) > 0 })
	c.mu.Lock()
	defer c.mu.Unlock()
	cut := c.cuts[0]
	c.cuts = c.cuts[1:]
	return cut
}

// Send sends an event of the client's.
func (c *Caller) Send(ev transceiver.Event) {
	c.t.Helper()
	kind := byte(3)
	if ev.Text {
		kind = 2
	}
	c.peer.write(websocket.MessageBinary, frame(kind, uint64(c.said/time.Microsecond), ev.Data))
}

// Event waits for the service's next event.
func (c *Caller) Event() transceiver.Event {
	c.t.Helper()
	c.wait("it sent an event", func() bool { return len(c.events) > 0 })
	c.mu.Lock()
	defer c.mu.Unlock()
	ev := c.events[0]
	c.events = c.events[1:]
	return ev
}

// End tells the service that the session is over.
func (c *Caller) End(reason string) {
	c.t.Helper()
	c.peer.say(map[string]any{"type": "end", "reason": reason})
}

// Ended waits for the end of the connection. It returns the reason of the
// service's `end` message (bridge.Call.Hangup), empty if there was none, and the
// status code of the WebSocket's end (RFC 6455 section 7.4): 1000, 1012 for a
// restart, -1 if the connection was dropped.
func (c *Caller) Ended() (hangup string, status int) {
	c.t.Helper()
	var over error
	c.wait("it ended the connection", func() bool { over = c.over; return over != nil })
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.goodbye, int(websocket.CloseStatus(over))
}

func millis(d time.Duration) float64 { return float64(d/time.Microsecond) / 1000 }

// pcmTime is how long that many bytes of PCM last.
func pcmTime(n, rate int) time.Duration {
	return time.Duration(n/2) * time.Second / time.Duration(rate)
}
