package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/usher-rtc/usher/internal/bench/procs"
	"github.com/usher-rtc/usher/internal/bench/wait"
	"github.com/usher-rtc/usher/internal/meter"
)

// A program's clock cannot be set without setting the whole machine's: Go asks
// the kernel itself, so there is no library call to intercept, and a time
// namespace has no time of day of its own. So the programs are built with another
// time.Now, whose time of day jumps every few seconds: it is right, an hour
// ahead, right again, an hour behind, and so on. Everything else in the programs,
// the standard library included, is as it was.
const clockPhase = 3 * time.Second

var clockNow = regexp.MustCompile(`(?s)(\nfunc Now\(\) Time \{\n.*?\tsec, nsec, mono := \w+\(\)\n)`)

const clockStep = `
// drillStep is how many seconds the time of day is wrong by.
func drillStep(mono int64) int64 {
	switch (mono - startNano) / %d %% 4 {
	case 1:
		return 3600
	case 3:
		return -3600
	}
	return 0
}
`

// steppedPrograms builds the programs with a clock that jumps.
func steppedPrograms(ctx context.Context, r *runner) (*procs.Programs, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return nil, err
	}
	original := filepath.Join(strings.TrimSpace(string(out)), "src", "time", "time.go")
	source, err := os.ReadFile(original)
	if err != nil {
		return nil, err
	}
	changed := clockNow.ReplaceAll(source, []byte("$1\tsec += drillStep(mono)\n"))
	if len(changed) == len(source) || !strings.Contains(string(source), "startNano") {
		return nil, errors.New("time.Now of this version of Go is not what the drill can change")
	}
	changed = append(changed, fmt.Sprintf(clockStep, clockPhase.Nanoseconds())...)
	// The path is part of what the build cache goes by.
	dir, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	dir = filepath.Join(dir, "usher-drill")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	replacement, overlay := filepath.Join(dir, "time.go"), filepath.Join(dir, "overlay.json")
	b, err := json.Marshal(map[string]any{"Replace": map[string]string{original: replacement}})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.WriteFile(replacement, changed, 0o644), os.WriteFile(overlay, b, 0o644)); err != nil {
		return nil, err
	}
	return r.build(ctx, "stepped", "-overlay", overlay)
}

// clockStepped lets the clocks of all processes jump forth and back.
func clockStepped(ctx context.Context, f *fleet) error {
	w := f.now(4*clockPhase + time.Second)
	ahead, behind := 0, 0
	for time.Duration(w.To-meter.Now()) > 0 {
		for _, url := range []string{f.relays[0].url, f.hosts[0].url} {
			response, err := f.do(ctx, http.MethodGet, url+"/healthz", "")
			if err != nil {
				return err
			}
			_ = response.Body.Close()
			date, err := http.ParseTime(response.Header.Get("Date"))
			if err != nil {
				return err
			}
			switch off := time.Until(date); {
			case off > time.Hour/2:
				ahead++
			case off < -time.Hour/2:
				behind++
			}
		}
		if err := wait.For(ctx, clockPhase/6); err != nil {
			return err
		}
	}
	return f.conclude(ctx, w, nil, func(v *verdict) {
		v.within(jitter).lossless().Note("seen %d times an hour ahead, %d times behind", ahead, behind)
		if ahead == 0 || behind == 0 {
			v.Fail("the clocks did not jump both ways")
		}
	})
}
