package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/usher-rtc/usher/transceiver/bridge"
)

// TestMain lets the tests' own program be the service that child starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "service" {
		if err := runService(context.Background(), os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// patience is how long a test waits for what must come; it is no expectation of
// speed.
const patience = 15 * time.Second

// caller is a client's side of the bridge by hand: it speaks, and plays what it
// is told to play.
type caller struct {
	t      *testing.T
	conn   *websocket.Conn
	at     time.Duration
	events chan event

	mu      sync.Mutex
	written []byte // by the service
	marks   []uint64
	cut     int // how much had been written at the last interrupt
}

// dial makes a session's connection to a service. resume is the JSON of the
// field in start, if there is one.
func dial(t *testing.T, url, resume string) *caller {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, url, &websocket.DialOptions{Subprotocols: []string{bridge.Subprotocol}}) //nolint:bodyclose // the package says that there is nothing to close
	if err != nil {
		t.Fatal(err)
	}
	c := &caller{t: t, conn: conn, events: make(chan event, 1000)}
	connection := 1
	if resume != "" {
		connection, resume = 2, `,"resume":`+resume
	}
	c.text(fmt.Sprintf(`{"type":"start","token":"T","session":"S","connection":%d,"codecs":["opus","pcm16/16000"],"window_ms":30000%s}`, connection, resume))
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.read()
	}()
	t.Cleanup(func() {
		_ = conn.CloseNow()
		<-done
	})
	return c
}

// serve runs a service and connects to it. Its queue is long, since a test
// speaks faster than people do.
func serve(t *testing.T, resume string) *caller {
	t.Helper()
	h, err := bridge.NewHandler(bridge.HandlerConfig{Serve: converse, Codec: codec.String(), ReceiveQueue: 10000})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return dial(t, server.URL, resume)
}

func (c *caller) text(message string) {
	c.t.Helper()
	if err := c.conn.Write(context.Background(), websocket.MessageText, []byte(message)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *caller) read() {
	defer close(c.events)
	for {
		kind, message, err := c.conn.Read(context.Background())
		if err != nil {
			return
		}
		var h bridge.Header
		if kind == websocket.MessageBinary {
			payload, _ := h.Parse(message)
			if h.Kind == bridge.KindAudio {
				c.mu.Lock()
				c.written = append(c.written, payload...)
				c.mu.Unlock()
				continue
			}
			var ev event
			if json.Unmarshal(payload, &ev) == nil {
				c.events <- ev
			}
			continue
		}
		var m struct {
			Type string `json:"type"`
			ID   uint64 `json:"id"`
		}
		_ = json.Unmarshal(message, &m)
		switch m.Type {
		case "mark":
			c.mu.Lock()
			c.marks = append(c.marks, m.ID)
			c.mu.Unlock()
		case "interrupt":
			c.mu.Lock()
			c.cut = len(c.written)
			marks := c.marks
			c.marks = nil
			c.mu.Unlock()
			for _, id := range marks {
				c.answer(fmt.Sprintf(`{"type":"marked","id":%d,"interrupted":true}`, id))
			}
			c.answer(fmt.Sprintf(`{"type":"interrupted","id":%d,"played_ms":120,"dropped_ms":340}`, m.ID))
		}
	}
}

func (c *caller) answer(message string) {
	_ = c.conn.Write(context.Background(), websocket.MessageText, []byte(message)) // a dead connection shows in read
}

// play has the client hear everything that was written.
func (c *caller) play() {
	c.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		c.mu.Lock()
		marks := c.marks
		c.marks = nil
		c.mu.Unlock()
		for _, id := range marks {
			c.answer(fmt.Sprintf(`{"type":"marked","id":%d}`, id))
		}
		if len(marks) > 0 {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatal("the service asks for no mark")
		}
	}
}

// say speaks for so long and returns the sound; an amplitude of 0 is silence.
func (c *caller) say(d time.Duration, amplitude float64) (sound []byte) {
	c.t.Helper()
	for range int(d / frame) {
		var pcm []byte
		for i := range codec.Frame() {
			at := (c.at + time.Duration(i)*time.Second/time.Duration(codec)).Seconds()
			pcm = binary.LittleEndian.AppendUint16(pcm, uint16(int16(amplitude*math.Sin(2*math.Pi*200*at*(1+at/10)))))
		}
		h := bridge.Header{Kind: bridge.KindAudio, Duration: frame, Time: c.at}
		if err := c.conn.Write(context.Background(), websocket.MessageBinary, append(h.Append(nil), pcm...)); err != nil {
			c.t.Fatal(err)
		}
		c.at += frame
		sound = append(sound, pcm...)
	}
	return sound
}

// next returns the next event but "hearing", and fails unless it is of a type.
func (c *caller) next(want string) event {
	c.t.Helper()
	limit := time.After(patience)
	for {
		select {
		case ev, ok := <-c.events:
			if !ok {
				c.t.Fatalf("the connection has ended before %q", want)
			}
			if ev.Type == "hearing" && want != "hearing" {
				continue
			}
			if ev.Type != want {
				c.t.Fatalf("%+v, want %q", ev, want)
			}
			return ev
		case <-limit:
			c.t.Fatalf("no event %q", want)
		}
	}
}

const voice = 3000.0 // about -24 dBFS

func TestATurnIsAnsweredWithItsOwnWords(t *testing.T) {
	c := serve(t, "")
	if ev := c.next("hello"); ev.PID != os.Getpid() || ev.Connection != 1 {
		t.Errorf("%+v", ev)
	}
	for range 2 { // one turn is like another
		c.say(time.Second, 0)
		words := c.say(time.Second, voice)
		c.next("turn_started")
		if ev := c.next("hearing"); ev.SpeechMS != 200 { // before the turn ends
			t.Errorf("%+v", ev)
		}
		c.say(700*time.Millisecond, 0)
		if ev := c.next("turn_ended"); ev.SpeechMS != 1000 || ev.SilenceMS != 600 {
			t.Errorf("%+v", ev)
		}
		want := leadIn + time.Second + leadOut
		if ev := c.next("answer_started"); ev.Answer != "echo" || ev.LengthMS < millis(want-frame) || ev.LengthMS > millis(want) || ev.LatencyMS <= 0 {
			t.Errorf("%+v, want %v", ev, want)
		}
		c.play()
		if ev := c.next("answer_ended"); ev.PlayedMS == 0 {
			t.Errorf("%+v", ev)
		}
		if !bytes.Contains(c.written, words) {
			t.Errorf("%d bytes of the answer are not what was said", len(c.written))
		}
		c.written = nil
	}
}

func TestTooLittleIsAnsweredWithATone(t *testing.T) {
	c := serve(t, "")
	c.next("hello")
	want := millis(pcmTime(len(tone())))
	answered := func(speech float64) {
		t.Helper()
		if ev := c.next("turn_ended"); ev.SpeechMS != speech {
			t.Errorf("%+v, want %v ms", ev, speech)
		}
		if ev := c.next("answer_started"); ev.Answer != "tone" || ev.LengthMS != want {
			t.Errorf("%+v, want %v ms", ev, want)
		}
		c.play()
		c.next("answer_ended")
	}
	c.say(200*time.Millisecond, 0)
	c.say(100*time.Millisecond, voice)
	c.say(700*time.Millisecond, 0)
	c.next("turn_started")
	answered(100)
	// The page asks for an answer though nobody has spoken.
	h := bridge.Header{Kind: bridge.KindEventText}
	for _, text := range []string{"no JSON", `{"type":"unknown"}`, `{"type":"respond"}`} {
		if err := c.conn.Write(t.Context(), websocket.MessageBinary, append(h.Append(nil), text...)); err != nil {
			t.Fatal(err)
		}
	}
	answered(0)
}

func TestTheUserSpeaksOverAnAnswer(t *testing.T) {
	c := serve(t, "")
	c.next("hello")
	c.say(500*time.Millisecond, voice)
	c.say(700*time.Millisecond, 0)
	c.next("turn_started")
	c.next("turn_ended")
	c.next("answer_started")
	// The agent's own voice, as echo cancellation leaves it, and a click.
	c.say(2*time.Second, 100)
	c.say(180*time.Millisecond, voice)
	c.say(time.Second, 0)
	// And now the user.
	c.say(300*time.Millisecond, voice)
	if ev := c.next("interrupted"); ev.PlayedMS != 120 || ev.DroppedMS != 340 {
		t.Errorf("%+v", ev)
	}
	c.next("turn_started")
	c.mu.Lock()
	cut := c.cut
	c.mu.Unlock()
	if cut == 0 {
		t.Error("nothing of the answer was written")
	}
	c.say(700*time.Millisecond, 0)
	if ev := c.next("turn_ended"); ev.SpeechMS != 300 {
		t.Errorf("%+v", ev)
	}
	ev := c.next("answer_started")
	c.play()
	c.next("answer_ended")
	if got, want := len(c.written)-cut, pcmBytes(time.Duration(ev.LengthMS*float64(time.Millisecond))); got != want {
		t.Errorf("%d bytes after the interruption, %d of them the new answer", got, want)
	}
}

// TestTheAnswerOfALostService: what it had queued is played on, and the user
// can speak over it all the same.
func TestTheAnswerOfALostService(t *testing.T) {
	c := serve(t, `{"after":"connection lost","queued_ms":5000,"position_ms":0}`)
	if ev := c.next("hello"); ev.Connection != 2 {
		t.Errorf("%+v", ev)
	}
	if ev := c.next("answer_started"); ev.Answer != "rest" || ev.LengthMS != 5000 {
		t.Errorf("%+v", ev)
	}
	c.say(300*time.Millisecond, voice)
	c.next("interrupted")
	c.next("turn_started")
}

// TestAMicrophoneThatSendsNothing: silence that is not sent is silence.
func TestAMicrophoneThatSendsNothing(t *testing.T) {
	t.Run("for good", func(t *testing.T) {
		c := serve(t, "")
		c.next("hello")
		c.say(time.Second, voice)
		c.next("turn_started")
		c.next("turn_ended")
		c.next("answer_started")
	})
	t.Run("for a while", func(t *testing.T) {
		c := serve(t, "")
		c.next("hello")
		c.say(time.Second, voice)
		c.at += 5 * time.Second
		c.say(frame, 0)
		c.next("turn_started")
		if ev := c.next("turn_ended"); ev.SpeechMS != 1000 {
			t.Errorf("%+v", ev)
		}
	})
}

func TestATurnHasAnEnd(t *testing.T) {
	c := serve(t, "")
	c.next("hello")
	for range 8 {
		c.say(2*time.Second, voice)
		c.say(100*time.Millisecond, 0)
	}
	c.next("turn_started")
	c.next("turn_ended")
	if ev := c.next("answer_started"); ev.LengthMS != millis(longestTurn) {
		t.Errorf("%+v", ev)
	}
}
