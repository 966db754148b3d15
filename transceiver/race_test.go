//go:build race

package transceiver

const raceEnabled = true
