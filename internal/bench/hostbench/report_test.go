package main

import "testing"

func TestSpreadOf(t *testing.T) {
	for _, c := range []struct {
		of   []float64
		want spread
	}{
		{nil, spread{}},
		{[]float64{3}, spread{3, 3, 3}},
		{[]float64{5, 1, 3}, spread{1, 3, 5}},
		{[]float64{4, 1, 2, 10}, spread{1, 3, 10}},
	} {
		if got := spreadOf(c.of); got != c.want {
			t.Errorf("spreadOf(%v) = %v, want %v", c.of, got, c.want)
		}
	}
}

// A drift of the machine over the rounds must not show in a ratio.
func TestRatiosAreTakenWithinARound(t *testing.T) {
	if got := ratios([]float64{1, 10, 100}, []float64{2, 20, 200}); got != 0.5 {
		t.Errorf("got %v", got)
	}
}
