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

func TestLost(t *testing.T) {
	if r := (&result{sent: 110, back: 100}); r.lost() != 10 {
		t.Error(r.lost())
	}
}
