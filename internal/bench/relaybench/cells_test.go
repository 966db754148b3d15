package main

import "testing"

func TestParseAxesRefuses(t *testing.T) {
	const clients, sz, dirs, rates = "64", "160", "uplink", "full"
	for name, f := range map[string][4]string{
		"no clients":           {"0", sz, dirs, rates},
		"too many clients":     {"10001", sz, dirs, rates},
		"clients not a number": {"many", sz, dirs, rates},
		"unknown size":         {clients, "huge", dirs, rates},
		"unknown direction":    {clients, sz, "sideways", rates},
		"rate too low":         {clients, sz, dirs, "1"},
		"empty rate":           {clients, sz, dirs, ""},
	} {
		if _, err := parseAxes(f[0], f[1], f[2], f[3]); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestCells(t *testing.T) {
	a, err := parseAxes("64,1000", "160,opus,burst", "uplink,downlink,both", "10000,50000,100000,full")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(a.cells(true)); n != 2*3*3*4 {
		t.Errorf("all: %d cells", n)
	}
	count := make(map[cell]int)
	for _, c := range a.cells(false) {
		count[c]++
	}
	// The main load meets every rate, the five others two rates.
	if len(count) != 3*(4+5*2) {
		t.Errorf("default: %d cells", len(count))
	}
	for c, n := range count {
		if n != 1 {
			t.Errorf("%v: %d times", c, n)
		}
	}
	if count[cell{1000, fixed, both, 10_000}] != 1 || count[cell{64, fixed, both, 10_000}] != 0 {
		t.Error("only the most clients are to meet every rate")
	}
}

func TestSizes(t *testing.T) {
	seen := make(map[int]bool)
	for i := range uint32(10_000) {
		n := opus.size(i)
		if n < 60 || n > 200 {
			t.Fatalf("packet %d: %d bytes", i, n)
		}
		seen[n] = true
	}
	if len(seen) != 141 {
		t.Errorf("opus has %d sizes, want all from 60 to 200", len(seen))
	}
	if fixed.size(7) != 160 || burst.size(7) != burstSize {
		t.Error("sizes of the other loads")
	}
}
