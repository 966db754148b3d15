// Package race tells tests whether the race detector is on. It owns that constant and
// the one reason for which a test of allocations is left out.
package race

// skipper is what NoAllocs wants of a *testing.T.
type skipper interface {
	Helper()
	Skip(args ...any)
}

// NoAllocs skips a test that counts allocations, unless it is an ordinary build:
// the detector allocates of its own, and sync.Pool drops items at random under it.
func NoAllocs(t skipper) {
	t.Helper()
	if Enabled {
		t.Skip("allocations are counted without -race: the detector makes some of its own")
	}
}
