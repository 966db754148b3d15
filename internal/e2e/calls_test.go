package e2e

import (
	"context"
	"testing"

	"github.com/usher-rtc/usher/internal/e2e/browser"
)

// callResult is what the page reports about one call.
type callResult struct {
	Ufrag    string  `json:"ufrag"`
	Answer   string  `json:"answer"`
	Connect  float64 `json:"connect"`  // ms from answer to open data channel
	EchoRTT  float64 `json:"echo"`     // ms
	Loudness float64 `json:"loudness"` // RMS of the audio that came back, 0 to 1
	Packets  int     `json:"packets"`
	Problem  string  `json:"problem"`
	Location string  `json:"location"`
}

// startCalls makes n calls side by side from a page that serves call.js, each
// with the browser's simulated microphone, and keeps them up in window.calls. A
// call counts as heard once the decoded samples that came back have energy. (An
// analyser node cannot tell: without a sound card Firefox's AudioContext never
// runs.)
const startCalls = `async ({n, tag}) => {
  const {Call} = await import('/call.js');
  window.context ??= new AudioContext();
  window.calls ??= [];
  const context = window.context;
  const one = async (i) => {
    const out = {problem: ''};
    try {
      const call = await Call.start({stream: await navigator.mediaDevices.getUserMedia({audio: true}), context, timeout: 25000});
      window.calls.push(call);
      Object.assign(out, {ufrag: call.ufrag, answer: call.answer, connect: call.connectMillis, location: call.location});
      out.echo = await call.echo(tag + ' ' + i, 10000);
      const deadline = performance.now() + 15000;
      for (;;) {
        Object.assign(out, await call.received());
        if (out.loudness > 0.01 && out.packets > 20) break;
        if (performance.now() > deadline) {
          out.problem = 'no audio came back; connection ' + call.pc.connectionState;
          break;
        }
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
    } catch (e) {
      out.problem = String(e.message ?? e);
    }
    return out;
  };
  return await Promise.all(Array.from({length: n}, (_, i) => one(i)));
}`

// callAll runs startCalls and fails the test for every call that did not work.
func callAll(t *testing.T, ctx context.Context, p *browser.Page, tag string, n int) []callResult {
	t.Helper()
	var results []callResult
	if err := p.Call(ctx, startCalls, map[string]any{"n": n, "tag": tag}, &results); err != nil {
		t.Fatal(err)
	}
	if len(results) != n {
		t.Fatalf("%d results for %d calls", len(results), n)
	}
	for i, r := range results {
		if r.Problem != "" {
			t.Errorf("call %d (%s): %s; %d packets, loudness %.3f", i, r.Ufrag, r.Problem, r.Packets, r.Loudness)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	return results
}
