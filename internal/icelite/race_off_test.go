//go:build !race

package icelite

// raceEnabled: the race detector allocates, so alloc guards are skipped.
const raceEnabled = false
