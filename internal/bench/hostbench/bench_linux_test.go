package main

import (
	"context"
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/bench/callers"
	"github.com/usher-rtc/usher/internal/bench/hosts"
	"github.com/usher-rtc/usher/internal/parts"
)

// TestMain lets the test's own program be the processes that it starts.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && (os.Args[1] == "serve" || os.Args[1] == someCallers || os.Args[1] == muteCallers) {
		main()
		return
	}
	os.Exit(m.Run())
}

// Every server that is compared must take calls, give audio back, leave nothing
// of calls that ended, and end by itself.
func TestServersAndCallers(t *testing.T) {
	parts.Need(t, parts.Program("taskset", "util-linux"))
	if runtime.NumCPU() < 2 {
		parts.Need(t, errors.New("servers and callers need a processor each, and there is one"))
	}
	rows := append(echoRows(), muxRows()...)
	rows = append(rows, row{name: "half-open", role: hosts.Role{
		Kind: kindUsher, App: hosts.App{Detach: true}, HalfOpen: time.Second,
	}})
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			runtime.LockOSThread() // the processes end with the thread
			defer runtime.UnlockOSThread()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			key, err := hosts.NewKey()
			if err != nil {
				t.Fatal(err)
			}
			t.Setenv(hosts.KeyEnv, key)
			b := newBench(options{hostCPU: 1})
			if b.exe, err = os.Executable(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := b.stopAll(); err != nil {
					t.Error(err)
				}
			}()
			all, err := b.contenders([]row{r})
			if err != nil {
				t.Fatal(err)
			}
			c := all[0]
			if r.role.HalfOpen > 0 {
				cycle := &callers.Cycle{N: 9, AtOnce: 3, HalfOpen: true}
				if _, err := tell(ctx, c.fleet, callers.Command{Cycle: cycle}); err != nil {
					t.Fatal(err)
				}
			} else {
				talk(t, ctx, c)
			}
			if err := c.server.empty(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

func talk(t *testing.T, ctx context.Context, c contender) {
	t.Helper()
	const n = 3
	if _, err := tell(ctx, c.fleet, callers.Command{Open: n, AtOnce: n}); err != nil {
		t.Fatal(err)
	}
	if u, err := c.server.usage(ctx); err != nil || u.Live != n || u.Goroutines < 10*n || u.Heap == 0 {
		t.Errorf("with %d calls: %+v, %v", n, u, err)
	}
	rate := &callers.Rate{PerCaller: perCaller, For: 500 * time.Millisecond, Raw: c.role.MuxOnly}
	l, err := tell(ctx, c.fleet, callers.Command{Load: rate})
	if err != nil {
		t.Fatal(err)
	}
	if l.Sent != n*perCaller/2 || l.Received == 0 {
		t.Errorf("%+v", l)
	}
	if u, err := c.server.count(ctx); err != nil || (u.Echoed > 0) != c.role.MuxOnly {
		t.Errorf("the mux echoed %d packets, %v", u.Echoed, err)
	}
	if _, err := tell(ctx, c.fleet, callers.Command{}); err != nil {
		t.Fatal(err)
	}
}
