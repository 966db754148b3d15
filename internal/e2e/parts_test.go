package e2e

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/e2e/browser"
	"github.com/usher-rtc/usher/internal/e2e/tail"
	"github.com/usher-rtc/usher/internal/parts"
)

// need skips the test when a part of the machine that it needs is missing, or
// fails it where every part is required.
func need(t *testing.T, missing error) {
	t.Helper()
	parts.Need(t, missing)
}

// long skips a test that is one of many minutes of them, unless all are asked
// for: they are for a change of what they test, not for every change.
func long(t *testing.T) {
	t.Helper()
	if os.Getenv("USHER_E2E") != "all" {
		t.Skip("takes long; run it with USHER_E2E=all and -timeout 30m")
	}
}

// testContext bounds a test, so that one that hangs still ends its processes.
// The programs it uses are built first: a cold build with the race detector takes
// minutes and is not what the limit is about.
func testContext(t *testing.T, limit time.Duration, programs ...string) context.Context {
	t.Helper()
	for _, name := range programs {
		build(t, name)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

func launch(t *testing.T, ctx context.Context, n *network, kind browser.Kind, opts browser.Options) *browser.Browser {
	t.Helper()
	need(t, browser.Check(ctx, kind))
	stderr := new(tail.Buffer)
	opts.Stderr, opts.Start = stderr, n.start
	b, err := browser.Launch(ctx, kind, opts)
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr)
	}
	t.Cleanup(func() {
		b.Close()
		if t.Failed() {
			t.Logf("%s said:\n%s", kind, stderr)
		}
	})
	t.Log(b.Version)
	return b
}

func open(t *testing.T, ctx context.Context, b *browser.Browser, url string) *browser.Page {
	t.Helper()
	p, err := b.Open(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			t.Logf("the page's console:\n%q", p.Log(ctx))
		}
	})
	return p
}

// eventually polls until check returns "" and fails with its last answer.
func eventually(t *testing.T, limit time.Duration, check func() string) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		problem := check()
		if problem == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v: %s", limit, problem)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func eachBrowser(t *testing.T, test func(t *testing.T, kind browser.Kind)) {
	t.Run("chromium", func(t *testing.T) { test(t, browser.Chromium) })
	t.Run("firefox", func(t *testing.T) { test(t, browser.Firefox) })
}

// pictures returns the directory for screenshots. It outlives the test, since
// somebody is to look at them; each run overwrites the last one's.
func pictures(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(os.TempDir(), "usher-e2e-pictures")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
