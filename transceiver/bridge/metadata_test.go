package bridge

import (
	"encoding/json"
	"strings"
	"testing"
)

// What a client may send fits into the first message, whatever characters it is
// made of, and arrives as it was.
func TestMetadataFitsIntoStart(t *testing.T) {
	for _, char := range []string{"<", "&", "\u2028", `\u0000`, "x"} {
		metadata := `"` + strings.Repeat(char, (maxMetadata-2)/len(char)) + `"`
		s := newScript(t)
		r := newRig(t, Config{}, s.URL)
		r.b.session.describe = func(m *start) { m.Session, m.Metadata = "SESSION", json.RawMessage(metadata) }
		r.begin()
		if _, m := s.ready(t, ""); string(m.Metadata) != metadata {
			t.Errorf("%q: %d bytes arrived of %d", char, len(m.Metadata), len(metadata))
		}
	}
}
