package procs

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/meter"
	"github.com/usher-rtc/usher/ufrag"
)

const limit = 20 * time.Second

// shell starts a script.
func shell(t *testing.T, script string) *Process {
	t.Helper()
	runtime.LockOSThread() // the process ends with the thread
	t.Cleanup(runtime.UnlockOSThread)
	p, err := Start("script", "sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

func TestSays(t *testing.T) {
	begin := meter.Now()
	p := shell(t, `echo one; echo ready to go >&2; exec sleep 60`)
	at, err := p.Says(t.Context(), "ready", limit)
	if err != nil || at < begin || at > meter.Now() {
		t.Fatalf("at %d, %v; began at %d", at, err, begin)
	}
	if got, want := p.Output(), "\n\tone\n\tready to go"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if all := p.Since(at); len(all) == 0 || all[len(all)-1].Text != "ready to go" || len(p.Since(meter.Now())) != 0 {
		t.Errorf("since it was ready: %v", all)
	}
	if _, err := p.Says(t.Context(), "never", time.Millisecond); err == nil || !strings.Contains(err.Error(), "one") {
		t.Errorf("what it never says: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Says(ctx, "never", limit); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: %v", err)
	}
	if n, err := p.ResidentBytes(); err != nil || n < 4096 {
		t.Errorf("%d bytes, %v", n, err)
	}
}

func TestEnds(t *testing.T) {
	for _, tt := range []struct {
		name, script  string
		end           func(p *Process) error
		ended, finish string // parts of errors; "" for none
	}{
		{"with success", "echo ready", nil, "", ""},
		{"with a status", "echo ready; echo why >&2; exit 3", nil, "exit status 3: \n\tready\n\twhy", "exit status 3"},
		{"by a crash that was meant", "echo ready; exec sleep 60", func(p *Process) error { p.Kill(); return nil }, "killed", ""},
		{"when asked to", "trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done", func(p *Process) error { return p.Signal(syscall.SIGTERM) }, "", ""},
		{"by a signal that was not meant", "echo ready; exec sleep 60", func(p *Process) error { return p.Signal(syscall.SIGTERM) }, "terminated", "terminated"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := shell(t, tt.script)
			if tt.end != nil {
				if _, err := p.Says(t.Context(), "ready", limit); err != nil {
					t.Fatal(err)
				}
				if err := tt.end(p); err != nil {
					t.Fatal(err)
				}
			}
			check := func(name string, err error, want string) {
				if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
					t.Errorf("%s: %v, want %q", name, err, want)
				}
			}
			check("Ended", p.Ended(limit), tt.ended)
			check("Finish", p.Finish(), tt.finish)
		})
	}
}

// Finish of a process that runs ends it.
func TestFinishEnds(t *testing.T) {
	p := shell(t, "exec sleep 60")
	if err := p.Ended(time.Millisecond); err == nil || !strings.Contains(err.Error(), "has not ended") {
		t.Errorf("while it runs: %v", err)
	}
	if err := p.Finish(); err != nil {
		t.Error(err)
	}
	if _, err := p.Says(t.Context(), "anything", limit); err == nil || !strings.Contains(err.Error(), "ended (signal: killed)") {
		t.Errorf("after its end: %v", err)
	}
}

// What WriteKeys writes is the key of the codec it returns.
func TestWriteKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	codec, err := WriteKeys(path, 'K')
	if err != nil {
		t.Fatal(err)
	}
	keys, err := ufrag.ReadKeyFile(path)
	if err != nil {
		t.Fatal(err)
	}
	route := ufrag.Route{Kind: ufrag.KindDirectory, Host: 7, Session: 9}
	text, err := codec.Encode(route)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ufrag.NewCodec(keys).Decode([]byte(text)); err != nil || got != route {
		t.Errorf("%+v, %v; want %+v", got, err, route)
	}
}
