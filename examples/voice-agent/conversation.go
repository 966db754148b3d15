package main

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"sync"
	"time"

	"github.com/usher-rtc/usher/examples/pcm"
	"github.com/usher-rtc/usher/transceiver"
	"github.com/usher-rtc/usher/transceiver/bridge"
)

const (
	codec = pcm.Rate16k

	// leadIn is what is kept from before the first word of a turn, and leadOut
	// from after the last, so that neither is cut.
	leadIn, leadOut = 150 * time.Millisecond, 100 * time.Millisecond
	// longestTurn bounds what a conversation costs in memory.
	longestTurn = 15 * time.Second
	// shortestSpeech is what an answer needs to have something to repeat.
	shortestSpeech = 200 * time.Millisecond
	// progress is how often the page hears of a turn that goes on.
	progress = 200 * time.Millisecond
)

// event is what goes over the data channel. The page sends "respond", which
// ends the user's turn at once; everything else is for the page.
type event struct {
	Type string `json:"type"`

	// hello: the process that has the conversation now, and the number of its
	// connection.
	PID        int `json:"pid,omitempty"`
	Connection int `json:"connection,omitempty"`

	// hearing and turn_ended: how much speech there was, and after it silence.
	SpeechMS  float64 `json:"speech_ms,omitempty"`
	SilenceMS float64 `json:"silence_ms,omitempty"`

	// answer_started: "echo", "tone" or "rest" (of what a lost service said);
	// how long it is, and how long after the user's last word it comes.
	Answer    string  `json:"answer,omitempty"`
	LengthMS  float64 `json:"length_ms,omitempty"`
	LatencyMS float64 `json:"latency_ms,omitempty"`

	// interrupted: how much of the answer was played and how much was not, and
	// how long it took to stop.
	PlayedMS  float64 `json:"played_ms,omitempty"`
	DroppedMS float64 `json:"dropped_ms,omitempty"`
	StopMS    float64 `json:"stop_ms,omitempty"`
}

// conversation is one connection of a session: it listens, and answers each
// turn with the user's own words. Speech recognition, a model and a synthesiser
// go where the comments say so.
type conversation struct {
	call  *bridge.Call
	turns turns
	tasks sync.WaitGroup

	heard  time.Duration // the client's time, up to which sound has come
	sound  []byte        // of the turn, and the moment before it
	voiced int           // how much of it ends with the last word
	spoke  time.Time     // when that came
	told   time.Duration // of speech, to the page

	answer *answer // the newest one
}

// answer is one that is being spoken.
type answer struct {
	*bridge.Utterance
	done  chan struct{} // closed when it is spoken no more
	whole bool          // then: the client was sent all of it
}

// converse serves one connection. It is a bridge.HandlerConfig.Serve.
func converse(ctx context.Context, call *bridge.Call) error {
	ctx, cancel := context.WithCancel(ctx)
	c := &conversation{call: call}
	defer c.tasks.Wait()
	defer cancel()
	asked := make(chan struct{}, 1)
	c.tasks.Go(func() { c.read(ctx, asked) })
	if err := c.say(ctx, event{Type: "hello", PID: os.Getpid(), Connection: call.Connection()}); err != nil {
		return err
	}
	if r := call.Resume(); r != nil && r.QueuedMS > 0 {
		if err := c.speak(ctx, event{Type: "answer_started", Answer: "rest", LengthMS: r.QueuedMS}, nil); err != nil {
			return err
		}
	}
	for {
		// A client need not send anything while it has nothing to say.
		wait, enough := context.WithTimeout(ctx, hangOver)
		frame, err := call.Next(wait)
		enough()
		switch {
		case err == nil:
			err = c.hear(ctx, frame)
		case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
			err = c.push(ctx, nil, hangOver)
		}
		if err != nil {
			return err
		}
		select {
		case <-asked:
			c.turns.end()
			if err := c.turnEnded(ctx); err != nil {
				return err
			}
		default:
		}
	}
}

// read takes what the page says.
func (c *conversation) read(ctx context.Context, asked chan<- struct{}) {
	for {
		message, err := c.call.Events().Next(ctx)
		if err != nil {
			return
		}
		var ev event
		if json.Unmarshal(message.Data, &ev) != nil || ev.Type != "respond" {
			continue // nothing of ours
		}
		select {
		case asked <- struct{}{}:
		default: // it was asked for already
		}
	}
}

func (c *conversation) say(ctx context.Context, ev event) error {
	return c.call.Events().SendJSON(ctx, ev)
}

// hear takes a frame. Time that is missing before it was silence.
func (c *conversation) hear(ctx context.Context, f transceiver.Frame) error {
	gap := f.Time - c.heard
	if gap > 0 && c.heard > 0 {
		if err := c.push(ctx, nil, gap); err != nil {
			return err
		}
	}
	c.heard = f.Time + f.Duration
	return c.push(ctx, f.Payload, f.Duration)
}

// push takes the next piece of sound, none for silence.
func (c *conversation) push(ctx context.Context, sound []byte, d time.Duration) error {
	c.sound = append(c.sound, sound...)
	was := c.turns.push(pcm.Loudness(sound), d, c.answering())
	if c.turns.speaking {
		c.spoke, c.voiced = time.Now(), len(c.sound)
	}
	switch {
	case was == turnStarted:
		c.told = 0
		if err := c.stop(ctx); err != nil {
			return err
		}
		return c.say(ctx, event{Type: "turn_started"})
	case was == turnEnded:
		return c.turnEnded(ctx)
	case !c.turns.active:
		over := max(0, len(c.sound)-pcmBytes(leadIn+c.turns.speech))
		c.sound = append(c.sound[:0], c.sound[over:]...)
		c.voiced = max(0, c.voiced-over)
	case len(c.sound) >= pcmBytes(longestTurn):
		c.turns.end()
		return c.turnEnded(ctx)
	case c.turns.speech >= c.told+progress:
		// A recogniser that streams has had all frames up to here: this is
		// where its first guesses go to the page.
		c.told = c.turns.speech
		return c.say(ctx, event{Type: "hearing", SpeechMS: millis(c.told)})
	}
	return nil
}

// turnEnded answers the turn that has just ended.
func (c *conversation) turnEnded(ctx context.Context) error {
	if err := c.stop(ctx); err != nil { // a page may ask for an answer during one
		return err
	}
	said, silence := c.turns.said, c.turns.pause
	if err := c.say(ctx, event{Type: "turn_ended", SpeechMS: millis(said), SilenceMS: millis(silence)}); err != nil {
		return err
	}
	// A model and a synthesiser would make the answer here, and speak would
	// write it piece by piece as it comes.
	ev := event{Type: "answer_started", Answer: "echo"}
	sound := c.sound[:min(len(c.sound), c.voiced+pcmBytes(leadOut))]
	if said < shortestSpeech {
		ev.Answer, sound = "tone", tone()
	} else {
		ev.LatencyMS = millis(time.Since(c.spoke))
	}
	ev.LengthMS = millis(pcmTime(len(sound)))
	c.sound, c.voiced = nil, 0
	return c.speak(ctx, ev, sound)
}

// speak begins an answer, or goes on with what a lost service had written, which
// is an answer without sound of ours. The transceiver paces it.
func (c *conversation) speak(ctx context.Context, began event, sound []byte) error {
	if err := c.say(ctx, began); err != nil {
		return err
	}
	a := &answer{Utterance: c.call.Say(), done: make(chan struct{})}
	c.answer = a
	c.tasks.Go(func() {
		defer close(a.done)
		if len(sound) > 0 && a.Write(ctx, sound) != nil {
			return // stopped, or the call has ended
		}
		if _, err := a.Wait(ctx); err == nil {
			a.whole = true
			_ = c.say(ctx, event{Type: "answer_ended", PlayedMS: began.LengthMS})
		}
	})
	return nil
}

func (c *conversation) answering() bool {
	if c.answer == nil {
		return false
	}
	select {
	case <-c.answer.done:
		return false
	default:
		return true
	}
}

// stop cuts an answer off: the user speaks.
func (c *conversation) stop(ctx context.Context) error {
	if !c.answering() {
		return nil
	}
	began := time.Now()
	cut, err := c.answer.Stop(ctx)
	if err != nil {
		return err
	}
	if <-c.answer.done; c.answer.whole {
		return nil
	}
	return c.say(ctx, event{
		Type: "interrupted", PlayedMS: millis(cut.Played), DroppedMS: millis(cut.Dropped), StopMS: millis(time.Since(began)),
	})
}

// tone is the answer to a turn in which nothing was said: two soft notes.
func tone() (sound []byte) {
	const note = 0.15 // s
	for _, hertz := range []float64{660, 440} {
		for i := range int(note * float64(codec)) {
			at := float64(i) / float64(codec)
			s := 6000 * math.Sin(math.Pi*at/note) * math.Sin(2*math.Pi*hertz*at)
			sound = append(sound, byte(int16(s)), byte(int16(s)>>8))
		}
	}
	return sound
}

// pcmBytes is how much PCM lasts that long.
func pcmBytes(d time.Duration) int {
	return int(d*time.Duration(codec)/time.Second) * 2
}

// pcmTime is how long that much PCM lasts.
func pcmTime(n int) time.Duration {
	return time.Duration(n/2) * time.Second / time.Duration(codec)
}

func millis(d time.Duration) float64 {
	return math.Round(d.Seconds()*1e4) / 10
}
