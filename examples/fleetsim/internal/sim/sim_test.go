package sim

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/usher-rtc/usher/examples/fleetsim/internal/inputs"
	"github.com/usher-rtc/usher/internal/config"
)

func TestQueueIsInOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var q queue
	var want []float64
	for range 10_000 {
		if rng.IntN(3) == 0 && len(q) > 0 {
			slices.Sort(want)
			if got := q.pop().at; got != want[0] {
				t.Fatalf("got %v, want %v", got, want[0])
			}
			want = want[1:]
			continue
		}
		at := float64(rng.IntN(1000))
		q.push(event{at: at})
		want = append(want, at)
	}
}

func TestRhythmHasThePeak(t *testing.T) {
	for _, factor := range []float64{1, 1.5, 2, 6} {
		sharp := sharpness(factor)
		sum := 0.0
		for second := range 86400 {
			sum += rhythm(float64(second), sharp)
		}
		if got := 86400 / sum; math.Abs(got-factor) > 0.001 {
			t.Errorf("peak %v times the mean, want %v", got, factor)
		}
	}
}

// TestTicks counts a clock's ticks one after the other.
func TestTicks(t *testing.T) {
	const rate, phase = 50.0, 0.3
	n := 0.0
	for at := nextTick(10, rate, phase); at < 12; at = nextTick(at+1e-9, rate, phase) {
		n++
	}
	if got := ticks(12, rate, phase) - ticks(10, rate, phase); got != n {
		t.Errorf("%v ticks, counted %v", got, n)
	}
}

func TestRunIsRepeatable(t *testing.T) {
	in, _ := inputs.Default()
	cfg := Config{Inputs: in, Sessions: 5000, Relays: 6, Seed: 7}
	a, err := Run(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := Run(cfg); a != b {
		t.Errorf("%+v, then %+v", a, b)
	}
	cfg.Seed++
	if b, _ := Run(cfg); a == b {
		t.Error("another seed changes nothing")
	}
}

func TestConfig(t *testing.T) {
	in, _ := inputs.Default()
	for _, cfg := range []Config{
		{Inputs: in, Sessions: 0, Relays: 3},
		{Inputs: in, Sessions: 2e8, Relays: 3},
		{Inputs: in, Sessions: 1, Relays: 1},
		{Inputs: in, Sessions: 1, Relays: 4},
	} {
		var bad *config.Error
		if _, err := Run(cfg); !errors.As(err, &bad) {
			t.Errorf("%d sessions, %d relays: %v", cfg.Sessions, cfg.Relays, err)
		}
	}
}
