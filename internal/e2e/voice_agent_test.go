package e2e

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/e2e/browser"
)

// agentEvent is one event of examples/voice-agent, as its page had it, with
// what the page showed then.
type agentEvent struct {
	Type     string  `json:"type"`
	State    string  `json:"state"`
	PID      int     `json:"pid"`
	Answer   string  `json:"answer"`
	SpeechMS float64 `json:"speech_ms"`
	LengthMS float64 `json:"length_ms"`
	Latency  float64 `json:"latency_ms"`
	Played   float64 `json:"played_ms"`
	Dropped  float64 `json:"dropped_ms"`

	At      float64 `json:"at"`      // ms, the page's clock
	Service string  `json:"service"` // what the page says about the service
	Status  string  `json:"status"`
}

// watchAgent keeps the page's events in window.agentEvents, and every 50 ms the
// energy of all sound so far in window.agentEnergy.
const watchAgent = `async () => {
  const {Call} = await import('/call.js');
  const start = Call.start;
  Call.start = async (options) => (window.call = await start.call(Call, options));
  window.agentEvents = [];
  window.agentEnergy = [];
  document.addEventListener('agent', ({detail}) => window.agentEvents.push({
    ...detail, at: performance.now(),
    service: document.getElementById('service').textContent, status: document.getElementById('status').textContent,
  }));
  setInterval(async () => {
    if (!window.call) return;
    for (const s of (await window.call.pc.getStats()).values()) {
      if (s.type === 'inbound-rtp' && s.kind === 'audio') window.agentEnergy.push([performance.now(), s.totalAudioEnergy ?? 0]);
    }
  }, 50);
}`

// agentPage is the page in a call.
type agentPage struct {
	t    *testing.T
	ctx  context.Context
	page *browser.Page
	seen int
}

// talkToAgent opens the page and presses Talk.
func talkToAgent(t *testing.T, ctx context.Context, b *browser.Browser, url string) *agentPage {
	t.Helper()
	a := &agentPage{t: t, ctx: ctx, page: open(t, ctx, b, url)}
	a.call(watchAgent, nil, nil)
	a.click("#talk")
	eventually(t, 20*time.Second, func() string {
		var state string
		a.call(`() => document.body.dataset.state + ': ' + document.getElementById('status').textContent`, nil, &state)
		if state[:len("connected")] != "connected" {
			return state
		}
		return ""
	})
	return a
}

func (a *agentPage) call(function string, arg, result any) {
	a.t.Helper()
	if err := a.page.Call(a.ctx, function, arg, result); err != nil {
		a.t.Fatal(err)
	}
}

func (a *agentPage) click(selector string) {
	a.t.Helper()
	if err := a.page.Click(a.ctx, selector); err != nil {
		a.t.Fatal(err)
	}
}

// wait returns the next event of a type that match takes, if there is one.
// Events before it are passed over for good.
func (a *agentPage) wait(limit time.Duration, what string, match func(agentEvent) bool) (found agentEvent) {
	a.t.Helper()
	eventually(a.t, limit, func() string {
		var news []json.RawMessage
		a.call(`(n) => window.agentEvents.slice(n)`, a.seen, &news)
		for _, text := range news {
			a.seen++
			a.t.Logf("%s", text)
			var ev agentEvent
			if err := json.Unmarshal(text, &ev); err != nil {
				a.t.Fatal(err)
			}
			if match(ev) {
				found = ev
				return ""
			}
		}
		return "no event: " + what
	})
	return found
}

func (a *agentPage) waitType(limit time.Duration, name string) agentEvent {
	a.t.Helper()
	return a.wait(limit, name, func(ev agentEvent) bool { return ev.Type == name })
}

// loudness is the root mean square of what the page played between two moments.
func (a *agentPage) loudness(from, to float64) float64 {
	a.t.Helper()
	var energy [][2]float64
	a.call(`() => window.agentEnergy`, nil, &energy)
	var first, last [2]float64
	for _, e := range energy {
		if e[0] < from || e[0] > to {
			continue
		}
		if first[0] == 0 {
			first = e
		}
		last = e
	}
	if last[0]-first[0] < (to-from)/2 {
		a.t.Fatalf("energy was looked at from %.0f to %.0f, not from %.0f to %.0f", first[0], last[0], from, to)
	}
	return math.Sqrt((last[1] - first[1]) / ((last[0] - first[0]) / 1000))
}

// heard fails the test unless the page has played an answer's first part. It
// returns how loud that was.
func (a *agentPage) heard(began agentEvent) (loud float64) {
	a.t.Helper()
	eventually(a.t, 5*time.Second, func() string {
		var now float64
		a.call(`() => performance.now()`, nil, &now)
		if now < began.At+900 {
			return "the answer has just begun"
		}
		if loud = a.loudness(began.At+200, now); loud < 0.01 {
			return fmt.Sprintf("the answer's loudness is %.4f", loud)
		}
		return ""
	})
	a.t.Logf("the answer's loudness is %.3f", loud)
	return loud
}

// speechFile writes a WAV file of so many seconds in which somebody speaks in
// the given spans: vowels of a changing pitch, in syllables, over a quiet room.
// Chromium plays it round and round as its microphone.
func speechFile(t *testing.T, seconds float64, spans [][2]float64) (path string) {
	t.Helper()
	const rate = 48000
	n := int(seconds * rate)
	samples := make([]byte, 0, 2*n)
	random := rand.New(rand.NewPCG(1, 2))
	phase := 0.0
	for i := range n {
		at := float64(i) / rate
		s := 15 * random.NormFloat64() // -67 dBFS
		for k, span := range spans {
			if at < span[0] || at >= span[1] {
				continue
			}
			pitch := (120 + 60*float64(k)) * (1 + 0.15*math.Sin(2*math.Pi*0.7*at))
			phase += 2 * math.Pi * pitch / rate
			syllable := math.Pow(math.Sin(math.Pi*4*(at-span[0])), 2)
			for h := 1; h <= 20; h++ {
				f := float64(h) * pitch
				formants := math.Exp(-math.Pow((f-600)/250, 2)) + 0.6*math.Exp(-math.Pow((f-1700)/400, 2)) + 0.05
				s += 9000 * syllable * formants * math.Sin(float64(h)*phase)
			}
		}
		samples = binary.LittleEndian.AppendUint16(samples, uint16(int16(max(-32000, min(32000, s)))))
	}
	header := []byte("RIFF")
	header = binary.LittleEndian.AppendUint32(header, uint32(36+len(samples)))
	header = append(header, "WAVEfmt "...)
	for _, v := range []uint32{16, 1 | 1<<16, rate, 2 * rate, 2 | 16<<16} { // PCM, mono, 16 bits
		header = binary.LittleEndian.AppendUint32(header, v)
	}
	header = append(header, "data"...)
	header = binary.LittleEndian.AppendUint32(header, uint32(len(samples)))
	path = filepath.Join(t.TempDir(), "microphone.wav")
	if err := os.WriteFile(path, append(header, samples...), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// voiceAgent runs examples/voice-agent with the ingress on loopback alone.
func voiceAgent(t *testing.T, ctx context.Context) *deployment {
	t.Helper()
	d := &deployment{network: loopbackNetwork(t)}
	d.hosts, d.relayURL = []string{"http://127.0.0.1:8080"}, "http://127.0.0.1:8080"
	d.relay = d.run(t, "voice-agent", "-relay", "127.0.0.1:3478")
	d.waitReady(t, ctx)
	return d
}

// TestVoiceAgent has a conversation in Chromium: a turn is noticed and answered,
// the user speaks over the answer and it stops, the service is killed, the page
// says so, and the next turn is answered by another process in the same call.
func TestVoiceAgent(t *testing.T) {
	need(t, browser.Check(t.Context(), browser.Chromium))
	ctx := testContext(t, 2*time.Minute, "voice-agent")
	d := voiceAgent(t, ctx)
	// The answer to the first span, 1.8 s of it, begins at 4.2 s or soon after.
	microphone := speechFile(t, 11, [][2]float64{{2, 3.6}, {5.2, 6.6}})
	b := launch(t, ctx, d.network, browser.Chromium, browser.Options{
		Loopback: true, Args: []string{"--use-file-for-fake-audio-capture=" + microphone},
	})
	a := talkToAgent(t, ctx, b, d.hosts[0])
	pid := a.waitType(10*time.Second, "hello").PID

	a.waitType(15*time.Second, "turn_started")
	a.waitType(5*time.Second, "hearing") // while the user speaks
	turn := a.waitType(5*time.Second, "turn_ended")
	began := a.waitType(5*time.Second, "answer_started")
	if turn.SpeechMS < 500 || began.Answer != "echo" || began.LengthMS < turn.SpeechMS || began.Latency == 0 {
		t.Errorf("a turn of %+v was answered with %+v", turn, began)
	}
	loud := a.heard(began)
	// A machine that is late with the answer gets another chance.
	cut := a.wait(25*time.Second, "interrupted", func(ev agentEvent) bool {
		if ev.Type == "answer_started" {
			began = ev
		}
		return ev.Type == "interrupted"
	})
	if cut.Played == 0 || cut.Dropped == 0 || cut.Played+cut.Dropped < began.LengthMS-100 {
		t.Errorf("an answer of %.0f ms was interrupted: %+v", began.LengthMS, cut)
	}
	began = a.waitType(10*time.Second, "answer_started")
	// On a busy machine the browser's jitter buffer holds some hundred ms.
	if quiet := a.loudness(cut.At+800, began.At); quiet > loud/20 {
		t.Errorf("after the interruption the loudness is still %.4f, before it was %.4f", quiet, loud)
	}
	a.heard(began)
	a.waitType(10*time.Second, "answer_ended")
	before := d.sessions(t, ctx)

	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	lost := a.waitType(10*time.Second, "service")
	if lost.State != "reconnecting" || lost.Service != "lost" {
		t.Errorf("after the service was killed: %+v", lost)
	}
	// The bridge says that it is ready and the service says hello, in either order.
	var again agentEvent
	back := a.wait(20*time.Second, "service ready", func(ev agentEvent) bool {
		if ev.Type == "hello" {
			again = ev
		}
		return ev.Type == "service" && ev.State == "ready"
	})
	if back.Service != "connected" {
		t.Errorf("with the service back: %+v", back)
	}
	t.Logf("the service was away for %.0f ms", back.At-lost.At)
	if again.Type == "" {
		again = a.waitType(10*time.Second, "hello")
	}
	if again.PID == pid || again.PID == 0 {
		t.Errorf("the service is back with the pid %d", again.PID)
	}
	began = a.waitType(20*time.Second, "answer_started")
	a.heard(began)
	if after := d.sessions(t, ctx); len(before) != 1 || len(after) != 1 || before[0].Session != after[0].Session {
		t.Errorf("the call is another: %+v, %+v", before, after)
	}
	picture := filepath.Join(pictures(t), "voice-agent.png")
	if err := a.page.Screenshot(ctx, picture); err != nil {
		t.Fatal(err)
	}
	t.Logf("picture of the page: %s", picture)
}

// TestVoiceAgentInFirefox has turns whose ends are the page's Mute button:
// Firefox's simulated microphone is a tone that never ends.
func TestVoiceAgentInFirefox(t *testing.T) {
	need(t, browser.Check(t.Context(), browser.Firefox))
	ctx := testContext(t, 2*time.Minute, "voice-agent")
	d := voiceAgent(t, ctx)
	b := launch(t, ctx, d.network, browser.Firefox, browser.Options{Loopback: true})
	a := talkToAgent(t, ctx, b, d.hosts[0])
	a.waitType(10*time.Second, "turn_started")
	a.wait(10*time.Second, "a second of speech", func(ev agentEvent) bool { return ev.Type == "hearing" && ev.SpeechMS > 1000 })
	a.click("#mute")
	a.waitType(5*time.Second, "turn_ended")
	began := a.waitType(5*time.Second, "answer_started")
	a.heard(began)
	a.click("#mute")
	if cut := a.waitType(5*time.Second, "interrupted"); cut.Dropped == 0 {
		t.Errorf("%+v", cut)
	}
	a.waitType(5*time.Second, "turn_started")
}
