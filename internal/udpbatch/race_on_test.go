//go:build race

package udpbatch

const raceEnabled = true
