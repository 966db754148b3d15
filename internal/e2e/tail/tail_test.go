package tail

import (
	"strings"
	"testing"
)

func TestBufferKeepsTheEnd(t *testing.T) {
	var b Buffer
	all := ""
	for _, part := range []string{"short", strings.Repeat("x", size-5), "end", strings.Repeat("y", 2*size) + "last"} {
		if n, err := b.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
		all += part
		if want := all[max(0, len(all)-size):]; b.String() != want {
			t.Fatalf("%d bytes that end in %q, want %d", len(b.String()), b.String()[len(b.String())-4:], len(want))
		}
	}
}
