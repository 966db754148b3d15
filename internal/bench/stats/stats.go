package stats

import (
	"cmp"
	"slices"
	"time"
)

// Spread is the least, the median and the greatest of some values.
type Spread struct{ Min, Median, Max float64 }

// SpreadOf returns the spread of values in any order, and zeros of none. The
// median of an even number is the mean of the two in the middle. The values stay
// as they are.
func SpreadOf(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	s := slices.Sorted(slices.Values(values))
	m := s[len(s)/2]
	if len(s)%2 == 0 {
		m = (s[len(s)/2-1] + m) / 2
	}
	return Spread{Min: s[0], Median: m, Max: s[len(s)-1]}
}

// MedianRatio divides two rows round by round, so that a drift of the machine over
// the rounds does not show, and returns the median; 0 if there is no ratio. Rounds
// that only one of the rows has, or in which by is not positive, do not count.
func MedianRatio(of, by []float64) float64 {
	var ratios []float64
	for i := range min(len(of), len(by)) {
		if by[i] > 0 {
			ratios = append(ratios, of[i]/by[i])
		}
	}
	return SpreadOf(ratios).Median
}

// Quantile returns the smallest of some values, in any order, that a share q of
// them, 0 to 1, do not exceed; the zero value of none. The values stay as they
// are.
func Quantile[T cmp.Ordered](values []T, q float64) T {
	if len(values) == 0 {
		var none T
		return none
	}
	s := slices.Sorted(slices.Values(values))
	// Rounded up, but for what a product such as 0.07*100 has too much.
	i := int(q*float64(len(s))+0.9999999) - 1
	return s[min(max(i, 0), len(s)-1)]
}

// Millis returns a time in milliseconds.
func Millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
