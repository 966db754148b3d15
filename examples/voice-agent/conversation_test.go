package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"
	"time"

	"github.com/usher-rtc/usher/transceiver"
	"github.com/usher-rtc/usher/transceiver/bridge"
	"github.com/usher-rtc/usher/transceiver/bridge/bridgetest"
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
const patience = time.Minute

// caller is a client that speaks in sentences and understands the page's events.
type caller struct {
	*bridgetest.Caller
	t  *testing.T
	at time.Duration
}

func dial(t *testing.T, service bridgetest.Service) *caller {
	t.Helper()
	service.Codec = codec.String()
	return &caller{Caller: bridgetest.NewCaller(t, bridgetest.CallerConfig{Service: service}), t: t}
}

// serve runs a service and calls it. Its queue is long, since a test speaks
// faster than people do.
func serve(t *testing.T) *caller {
	t.Helper()
	h, err := bridge.NewHandler(bridge.HandlerConfig{Serve: converse, Codec: codec.String(), ReceiveQueue: 10000})
	if err != nil {
		t.Fatal(err)
	}
	return dial(t, bridgetest.Service{Handler: h})
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
		c.Say(transceiver.Frame{Payload: pcm})
		c.at += frame
		sound = append(sound, pcm...)
	}
	return sound
}

// next returns the next event but "hearing", and fails unless it is of a type.
func (c *caller) next(want string) event {
	c.t.Helper()
	for {
		var ev event
		if err := json.Unmarshal(c.Event().Data, &ev); err != nil {
			c.t.Fatal(err)
		}
		if ev.Type == "hearing" && want != "hearing" {
			continue
		}
		if ev.Type != want {
			c.t.Fatalf("%+v, want %q", ev, want)
		}
		return ev
	}
}

const voice = 3000.0 // about -24 dBFS

func TestATurnIsAnsweredWithItsOwnWords(t *testing.T) {
	c := serve(t)
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
		answer := bytes.Join(c.HearOut(), nil)
		if ev := c.next("answer_ended"); ev.PlayedMS == 0 {
			t.Errorf("%+v", ev)
		}
		if !bytes.Contains(answer, words) {
			t.Errorf("%d bytes of the answer are not what was said", len(answer))
		}
	}
}

func TestTooLittleIsAnsweredWithATone(t *testing.T) {
	c := serve(t)
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
		c.HearOut()
		c.next("answer_ended")
	}
	c.say(200*time.Millisecond, 0)
	c.say(100*time.Millisecond, voice)
	c.say(700*time.Millisecond, 0)
	c.next("turn_started")
	answered(100)
	// The page asks for an answer though nobody has spoken.
	for _, text := range []string{"no JSON", `{"type":"unknown"}`, `{"type":"respond"}`} {
		c.Send(transceiver.Event{Text: true, Data: []byte(text)})
	}
	answered(0)
}

func TestTheUserSpeaksOverAnAnswer(t *testing.T) {
	c := serve(t)
	c.next("hello")
	c.say(500*time.Millisecond, voice)
	c.say(700*time.Millisecond, 0)
	c.next("turn_started")
	c.next("turn_ended")
	c.next("answer_started")
	const heard = 120 * time.Millisecond
	c.Said() // all of it
	c.Hear(heard)
	// The agent's own voice, as echo cancellation leaves it, and a click.
	c.say(2*time.Second, 100)
	c.say(180*time.Millisecond, voice)
	c.say(time.Second, 0)
	// And now the user.
	c.say(300*time.Millisecond, voice)
	cut := c.Interrupted()
	if ev := c.next("interrupted"); ev.PlayedMS != millis(heard) || ev.DroppedMS != millis(cut.Dropped) || cut.Dropped == 0 {
		t.Errorf("%+v, of %+v", ev, cut)
	}
	c.next("turn_started")
	c.say(700*time.Millisecond, 0)
	if ev := c.next("turn_ended"); ev.SpeechMS != 300 {
		t.Errorf("%+v", ev)
	}
	ev := c.next("answer_started")
	answer := bytes.Join(c.HearOut(), nil)
	c.next("answer_ended")
	if got, want := len(answer), pcmBytes(time.Duration(ev.LengthMS*float64(time.Millisecond))); got != want {
		t.Errorf("%d bytes after the interruption, %d of them the new answer", got, want)
	}
}

// TestTheAnswerOfALostService: what it had queued is played on, and the user
// can speak over it all the same.
func TestTheAnswerOfALostService(t *testing.T) {
	c := serve(t)
	c.next("hello")
	c.say(time.Second, voice)
	c.say(700*time.Millisecond, 0)
	c.next("turn_started")
	c.next("turn_ended")
	c.next("answer_started")
	c.Hear(c.Said() - 100*time.Millisecond)
	c.Reconnect()
	if ev := c.next("hello"); ev.Connection != 2 {
		t.Errorf("%+v", ev)
	}
	rest := c.next("answer_started")
	if rest.Answer != "rest" || rest.LengthMS <= 0 || rest.LengthMS > 101 {
		t.Errorf("%+v", rest)
	}
	c.say(300*time.Millisecond, voice)
	if ev := c.next("interrupted"); ev.DroppedMS != rest.LengthMS {
		t.Errorf("%+v, want %v ms dropped", ev, rest.LengthMS)
	}
	c.next("turn_started")
}

// TestTheServiceIsStopped: a service that stops hands its sessions on.
func TestTheServiceIsStopped(t *testing.T) {
	h, err := bridge.NewHandler(bridge.HandlerConfig{Serve: converse, Codec: codec.String()})
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, bridgetest.Service{Handler: h})
	c.next("hello")
	limit, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := h.Shutdown(limit); err != nil {
		t.Error(err)
	}
	if hangup, status := c.Ended(); hangup != "" || status != 1012 {
		t.Errorf("%q, status %d, want a restart", hangup, status)
	}
}

// TestAMicrophoneThatSendsNothing: silence that is not sent is silence.
func TestAMicrophoneThatSendsNothing(t *testing.T) {
	t.Run("for good", func(t *testing.T) {
		c := serve(t)
		c.next("hello")
		c.say(time.Second, voice)
		c.next("turn_started")
		c.next("turn_ended")
		c.next("answer_started")
	})
	t.Run("for a while", func(t *testing.T) {
		c := serve(t)
		c.next("hello")
		c.say(time.Second, voice)
		c.Pause(5 * time.Second)
		c.say(frame, 0)
		c.next("turn_started")
		if ev := c.next("turn_ended"); ev.SpeechMS != 1000 {
			t.Errorf("%+v", ev)
		}
	})
}

func TestATurnHasAnEnd(t *testing.T) {
	c := serve(t)
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
