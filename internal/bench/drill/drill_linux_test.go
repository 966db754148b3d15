package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/e2e/netns"
	"github.com/usher-rtc/usher/internal/parts"
)

// TestDrills makes two small drills, one with its mechanism and one without. The
// command itself, beside nothing else, is what judges all of them: here other
// tests run at the same time, so only its bounds in milliseconds may be missed.
func TestDrills(t *testing.T) {
	parts.Need(t, errors.Join(netns.Available(), parts.Program("nft", "nftables")))
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	program := filepath.Join(t.TempDir(), "drill")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, program, "-sessions", "6", "-browsers=false", "-drills", "^(upgrade|off/upgrade-without-handover)$")
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 20 * time.Second
	err := cmd.Run()
	lines := regexp.MustCompile(`(?m)^drill (\S+) gap_ms \d+ \d+ \d+ lost (\d+) \(.*\)$`).FindAllStringSubmatch(stdout.String(), -1)
	lost := make(map[string]string)
	for _, l := range lines {
		lost[l[1]] = l[2]
	}
	if lost["upgrade"] != "0" || lost["off/upgrade-without-handover"] == "0" || len(lost) != 2 {
		t.Errorf("lost packets: %v, want none with hand-over and some without", lost)
	}
	for problem := range strings.Lines(stderr.String()) {
		if strings.HasPrefix(problem, "FAIL ") && !strings.Contains(problem, "% of the gaps are at most") {
			t.Error(problem)
		}
	}
	if t.Failed() {
		t.Logf("%v\n%s%s", err, &stdout, &stderr)
	}
}
