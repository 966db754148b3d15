package bridge

import (
	"context"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/race"
	"github.com/usher-rtc/usher/transceiver"
)

// quietAudio forgets what it is given, as the session's own queue does in the
// end.
type quietAudio struct{ *fakeAudio }

func (quietAudio) Write(context.Context, []byte) error { return nil }
func (q quietAudio) Stats() transceiver.AudioStats {
	return transceiver.AudioStats{Played: 1 << 40}
}

// allocPair is a bridge and a service in one process, with a call that echoes.
func allocPair(t testing.TB) (*rig, chan struct{}) {
	got := make(chan struct{}, 1)
	url := serve(t, HandlerConfig{Serve: func(ctx context.Context, c *Call) error {
		speech := c.Say()
		for f, err := range c.Frames(ctx) {
			if err != nil {
				return err
			}
			if err := speech.Write(ctx, f.Payload); err != nil {
				return err
			}
		}
		return nil
	}})
	r := newRig(t, Config{KeepAlive: time.Minute, SilenceTimeout: time.Minute}, url)
	r.b.audio = writeSignal{quietAudio{r.audio}, got}
	r.begin()
	r.state(StateReady)
	return r, got
}

type writeSignal struct {
	quietAudio
	got chan struct{}
}

func (w writeSignal) Write(context.Context, []byte) error {
	w.got <- struct{}{}
	return nil
}

// TestNothingIsAllocatedPerFrame counts both ends of a round trip: transceiver
// to service, through the service's queue, and back; the WebSocket library and
// the connections included.
func TestNothingIsAllocatedPerFrame(t *testing.T) {
	race.NoAllocs(t)
	r, got := allocPair(t)
	f := transceiver.Frame{Payload: opusFrame(1), Duration: frameDuration}
	n := testing.AllocsPerRun(2000, func() {
		f.Time += frameDuration
		r.b.forward(&f)
		<-got
	})
	if n != 0 {
		t.Errorf("%v allocations a round trip", n)
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	r, got := allocPair(b)
	f := transceiver.Frame{Payload: make([]byte, 60), Duration: frameDuration}
	f.Payload[0] = 0x78
	b.ReportAllocs()
	for b.Loop() {
		f.Time += frameDuration
		r.b.forward(&f)
		<-got
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N), "ns/frame")
}
