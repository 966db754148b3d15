//go:build !race

package ufrag

const raceEnabled = false
