package forward

import (
	"testing"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/trunk"
)

// TestSkipLearning checks that with SkipLearning a frame is delivered and teaches
// nothing, and that an announcement still does.
func TestSkipLearning(t *testing.T) {
	w := newWorld(t, 1, func(c *Config, _ *flowtable.Config) { c.SkipLearning = true })
	client := clientAddr(1, 0)
	if d := w.frame(0, 1, client, trunk.Validated); d.Reason != None || d.Event != EventNone {
		t.Errorf("frame: %v, event %d", d.Reason, d.Event)
	}
	if n := w.shards[0].Len(); n != 0 {
		t.Fatalf("%d flows after a frame", n)
	}
	f := trunk.Frame{Flags: trunk.ToClient | trunk.Validated, Ingress: 1, Client: client}
	var d Delivery
	w.cores[0].Begin(w.now)
	w.cores[0].Announced(&f, Peer{Addr: hostAddr(1)}, &d)
	w.cores[0].End()
	if d.Event != EventLearned || w.shards[0].Len() != 1 {
		t.Errorf("announcement: event %d, %d flows", d.Event, w.shards[0].Len())
	}
}
