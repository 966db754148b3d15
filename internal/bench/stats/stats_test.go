package stats

import (
	"slices"
	"testing"
	"time"
)

func TestSpreadOf(t *testing.T) {
	for _, tt := range []struct {
		of   []float64
		want Spread
	}{
		{nil, Spread{}},
		{[]float64{3}, Spread{3, 3, 3}},
		{[]float64{4, 1}, Spread{1, 2.5, 4}},
		{[]float64{5, 1, 3}, Spread{1, 3, 5}},
		{[]float64{4, 1, 2, 10}, Spread{1, 3, 10}},
	} {
		before := slices.Clone(tt.of)
		if got := SpreadOf(tt.of); got != tt.want {
			t.Errorf("of %v: %v, want %v", tt.of, got, tt.want)
		}
		if !slices.Equal(tt.of, before) {
			t.Errorf("%v is now %v", before, tt.of)
		}
	}
}

// A drift of the machine over the rounds must not show in a ratio.
func TestRatiosAreTakenWithinARound(t *testing.T) {
	for _, tt := range []struct {
		of, by []float64
		want   float64
	}{
		{[]float64{1, 10, 100}, []float64{2, 20, 200}, 0.5},
		{[]float64{1, 10, 100}, []float64{2, 0, 200, 7}, 0.5},
		{[]float64{1}, nil, 0},
	} {
		if got := MedianRatio(tt.of, tt.by); got != tt.want {
			t.Errorf("%v by %v: %v, want %v", tt.of, tt.by, got, tt.want)
		}
	}
}

func TestQuantile(t *testing.T) {
	var hundred, thousand []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(100-i))
	}
	for i := range 1000 {
		thousand = append(thousand, time.Duration(i+1))
	}
	for _, tt := range []struct {
		of   []time.Duration
		q    float64
		want time.Duration
	}{
		{nil, 0.5, 0},
		{[]time.Duration{7}, 0.99, 7},
		{[]time.Duration{1, 2, 3}, 0.5, 2},
		{[]time.Duration{1, 2, 3}, 0.99, 3},
		{hundred, 0, 1},
		{hundred, 0.07, 7}, // 0.07*100 is a little more than 7
		{hundred, 0.5, 50},
		{hundred, 0.99, 99},
		{hundred, 1, 100},
		{thousand, 0.5, 500},
		{thousand, 0.999, 999},
	} {
		if got := Quantile(tt.of, tt.q); got != tt.want {
			t.Errorf("%v of %d: %d, want %d", tt.q, len(tt.of), got, tt.want)
		}
	}
	if hundred[0] != 100 {
		t.Error("the values were sorted")
	}
}
