package inputs

import (
	"errors"
	"strings"
	"testing"

	"github.com/usher-rtc/usher/internal/config"
)

func TestRead(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"one", `[{"name":"zones","value":4}]`, ""},
		{"none", `[]`, ""},
		{"not JSON", `zones=4`, "invalid character"},
		{"unknown field", `[{"name":"zones","values":4}]`, "unknown field"},
		{"unknown input", `[{"name":"zone","value":4}]`, "zone: there is no such input"},
		{"twice", `[{"name":"zones","value":4},{"name":"zones","value":5}]`, "twice"},
		{"outside", `[{"name":"far-share","value":1.5}]`, "far-share: 1.5 is outside 0 to 1"},
		{"not whole", `[{"name":"regions","value":1.5}]`, "regions: 1.5 is not a whole number"},
		{"two lists", `[] []`, "more than one list"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in, _ := Default()
			_, err := in.Read(strings.NewReader(tt.text))
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
	in, _ := Default()
	if _, err := in.Read(strings.NewReader(`[{"name":"zones","value":4}]`)); err != nil || in.Zones != 4 {
		t.Errorf("zones %v, %v", in.Zones, err)
	}
	var bad *config.Error
	if err := in.Set("zones", 1); !errors.As(err, &bad) || in.Zones != 4 {
		t.Errorf("%v, zones %v", err, in.Zones)
	}
}

// TestDefaults: each input has a unit and a source, and a value that Set accepts.
func TestDefaults(t *testing.T) {
	in, list := Default()
	for _, i := range list {
		if i.Unit == "" || i.From == "" {
			t.Errorf("%s has no unit or no source", i.Name)
		}
	}
	for name, f := range in.fields() {
		if *f.to == 0 {
			t.Errorf("%s is not set", name)
		}
	}
}
