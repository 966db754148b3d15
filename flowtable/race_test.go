//go:build race

package flowtable

const raceEnabled = true
