//go:build race

package ufrag

// raceEnabled: sync.Pool drops items at random under the race detector, so
// allocation counts mean nothing there, and everything is slower.
const raceEnabled = true
