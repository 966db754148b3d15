package main

import (
	"slices"
	"testing"
)

// Ratios and differences of the floor are of one round; the better nginx counts.
func TestFloorLines(t *testing.T) {
	r := floorRows{
		receiveOne: {1, 10}, receiveMany: {0.75, 9.75}, // the machine is slower in the second round
		sendOne: {3, 30}, sendMany: {2.5, 29.5},
		floorUp: {1, 10}, floorDown: {3, 30},
		relayRow("usher", uplink): {2, 20}, relayRow("usher", both): {4, 40},
		relayRow("nginx", uplink): {6, 60}, relayRow("nginx-multi", uplink): {5, 50},
		relayRow("nginx", both): {7, 70},
	}
	r.combine()
	want := []string{
		"floor batch-saves receive us 0.25",
		"floor batch-saves send us 0.50",
		"floor share-of-usher uplink 0.50",
		"floor limit-over-nginx uplink 5.00",
		"floor share-of-usher both 0.50",
		"floor limit-over-nginx both 3.50",
	}
	if got := r.lines(); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A table's memory and collections are positive, and of the size that a slot has.
func TestMeasureTable(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: this fills a table with a million flows, twice")
	}
	f, err := measureTable(client6)
	if err != nil {
		t.Fatal(err)
	}
	if f.perFlow < 64 || f.perFlow > 1024 || len(f.with) != collections || slices.Min(f.with) <= 0 {
		t.Errorf("%+v", f)
	}
}
