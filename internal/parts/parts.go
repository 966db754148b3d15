package parts

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// variable promises that every part is there.
const variable = "USHER_REQUIRE_PARTS"

// Required reports whether a missing part is a failure.
func Required() bool { return os.Getenv(variable) != "" }

// test is what Need wants of a *testing.T or *testing.B. A package that is no test
// can import this one without the testing package.
type test interface {
	Helper()
	Skip(args ...any)
	Fatalf(format string, args ...any)
}

// Need skips the test if something is missing, or fails it if every part is
// required; nil means that nothing is missing.
func Need(t test, missing error) {
	t.Helper()
	switch {
	case missing == nil:
	case Required():
		t.Fatalf("%s is set, but: %v", variable, missing)
	default:
		t.Skip(missing)
	}
}

// Program returns nil if a program is on the PATH, and else an error that names
// Debian's package of it.
func Program(name, pkg string) error {
	if _, err := exec.LookPath(name); err != nil {
		return fmt.Errorf("no %s: install it (Debian: apt-get install %s)", name, pkg)
	}
	return nil
}

// Root returns nil if the process is root's, and else an error that says what
// needs it.
func Root(what string) error {
	if os.Geteuid() != 0 {
		return errors.New(what + " needs root: use sudo or a container")
	}
	return nil
}
