package parts

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// fake notes what a test was told.
type fake struct{ skipped, failed string }

func (f *fake) Helper()                           {}
func (f *fake) Skip(args ...any)                  { f.skipped = fmt.Sprint(args...) }
func (f *fake) Fatalf(format string, args ...any) { f.failed = fmt.Sprintf(format, args...) }

func TestNeed(t *testing.T) {
	missing := errors.New("no such program")
	for _, tt := range []struct {
		required string
		missing  error
		want     fake
	}{
		{"", nil, fake{}},
		{"1", nil, fake{}},
		{"", missing, fake{skipped: "no such program"}},
		{"1", missing, fake{failed: "USHER_REQUIRE_PARTS is set, but: no such program"}},
	} {
		t.Setenv("USHER_REQUIRE_PARTS", tt.required)
		var got fake
		Need(&got, tt.missing)
		if got != tt.want {
			t.Errorf("required %q, missing %v: %+v, want %+v", tt.required, tt.missing, got, tt.want)
		}
	}
}

func TestProgram(t *testing.T) {
	if err := Program("go", "golang"); err != nil {
		t.Error(err)
	}
	if err := Program("no-such-program", "its-package"); err == nil || !strings.Contains(err.Error(), "apt-get install its-package") {
		t.Errorf("%v", err)
	}
}
