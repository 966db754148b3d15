package relay

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/forward"
)

// TestHintsGoWithTheReasons looks at what a relay says about drops: with what to do
// where a wrong configuration is the likely cause, without where strangers are.
func TestHintsGoWithTheReasons(t *testing.T) {
	var lines bytes.Buffer
	s := &Server{log: slog.New(slog.NewTextHandler(&lines, nil))}
	w := newWorker(s, 0)
	s.workers = []*worker{w}
	w.now = time.Now()
	w.counts.drop(forward.UpstreamNotAllowed)
	w.counts.drop(forward.NoFlow)
	w.counts.publish()
	w.logDrops()
	w.now = w.now.Add(time.Second)
	w.logDrops() // nothing new
	for _, want := range []string{
		`reason="upstream not allowed" count=1 hint="a Host's trunk address is outside AllowUpstream"` + "\n",
		`reason="no flow" count=1` + "\n",
	} {
		if strings.Count(lines.String(), want) != 1 {
			t.Errorf("%q is not there once:\n%s", want, &lines)
		}
	}
}

func TestBindErrorsSayWhatToDo(t *testing.T) {
	gone := fmt.Errorf("listen: %w", os.NewSyscallError("bind", syscall.EADDRNOTAVAIL))
	taken := fmt.Errorf("listen: %w", os.NewSyscallError("bind", syscall.EADDRINUSE))
	for _, tt := range []struct {
		name   string
		worker int
		err    error
		want   string
		not    string
	}{
		{"Ingresses[0].Listen", 0, gone, "set Advertise", "worker"},
		{"Ingresses[0].Listen", 1, taken, "Ingresses[0].Listen: listen", "Advertise"},
		{"Trunk", 0, gone, "no interface here has this address", "Advertise"},
		{"Trunk", 0, taken, "relay: Trunk: listen", "worker"},
		{"Trunk", 1, taken, "Trunk of worker 1", "interface"},
	} {
		if got := bindError(tt.name, tt.worker, tt.err).Error(); !strings.Contains(got, tt.want) || strings.Contains(got, tt.not) {
			t.Errorf("%s of worker %d: %q, want %q without %q", tt.name, tt.worker, got, tt.want, tt.not)
		}
	}
}
