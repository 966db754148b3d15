package main

import (
	"slices"
	"strings"
	"testing"
)

func TestRatioIsTakenWithinRounds(t *testing.T) {
	var r results
	c := cell{1000, fixed, uplink, 0}
	// The machine is twice as fast in round 1: a ratio of medians would be 1.33.
	for round, f := range []float64{1, 2, 1} {
		r.add(c, "usher", round, figure{perSecond: 200 * f})
		r.add(c, "nginx", round, figure{perSecond: 100 * f})
	}
	r.add(c, "nginx", 3, figure{perSecond: 1}) // usher failed in round 3
	if got := r.ratio(c, []string{"nginx"}); !slices.Equal(got, []float64{2, 2, 2}) {
		t.Errorf("ratios %v", got)
	}
}

func TestRatioIsAgainstTheBetterVariant(t *testing.T) {
	var r results
	c := cell{1000, fixed, uplink, 0}
	r.add(c, "usher", 0, figure{perSecond: 300})
	r.add(c, "nginx", 0, figure{perSecond: 100})
	r.add(c, "nginx-multi", 0, figure{perSecond: 150})
	r.add(c, "naive", 0, figure{perSecond: 0}) // failed: no ratio
	var out strings.Builder
	if err := r.ratios(&out); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "ratio usher/nginx uplink 2.00\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestMainCell(t *testing.T) {
	var r results
	want := cell{1000, fixed, both, 0}
	for _, c := range []cell{
		{64, fixed, both, 0}, {1000, burst, both, 0}, {1000, fixed, both, 50_000}, want, {1000, fixed, uplink, 0},
	} {
		r.add(c, "usher", 0, figure{})
	}
	if got, ok := r.mainCell(both); !ok || got != want {
		t.Errorf("%v, %v", got, ok)
	}
	if _, ok := r.mainCell(downlink); ok {
		t.Error("nothing was measured downlink")
	}
}

func TestTable(t *testing.T) {
	var r results
	r.add(cell{64, opus, both, 50_000}, "c", 0, figure{perSecond: 250_000, loss: 0.5, up: 1, down: 8})
	var out strings.Builder
	if err := r.table(&out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 {
		t.Fatalf("%q", lines)
	}
	want := []string{"64", "opus", "both", "50000", "c", "1", "250", "250", "250", "4.00", "50.0", "1.0", "8.0"}
	if got := strings.Fields(lines[1]); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
