package main

import (
	"testing"
	"time"
)

func TestWhatComesBackIsCounted(t *testing.T) {
	c := &caller{count: true, from: 10}
	begin := time.Now()
	for n := uint32(10); n < 20; n++ {
		c.sentAt[n%window] = begin
	}
	for _, n := range []uint32{9, 10, 11, 14, 13, 15, 15} { // 9 is from before, 12 is lost, 13 late, 15 twice
		c.came(n, begin.Add(time.Duration(n)*time.Millisecond))
	}
	if c.back != 6 || c.reordered != 2 || len(c.delays) != 6 || c.delays[2] != 14*time.Millisecond {
		t.Errorf("%d came back, %d reordered, %v", c.back, c.reordered, c.delays)
	}
}

func TestPercentile(t *testing.T) {
	r := &result{sent: 110}
	if r.percentile(0.5) != 0 || r.lost() != 110 {
		t.Error("nothing came back, and has a delay")
	}
	for i := range 100 {
		r.delays = append(r.delays, time.Duration(i))
	}
	r.back = 100
	for p, want := range map[float64]time.Duration{0: 0, 0.5: 50, 0.99: 99, 0.999: 99, 1: 99} {
		if got := r.percentile(p); got != want {
			t.Errorf("p%v is %v, want %v", 100*p, got, want)
		}
	}
	if r.lost() != 10 {
		t.Error(r.lost())
	}
}
