package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/usher-rtc/usher/internal/bench/callers"
	"github.com/usher-rtc/usher/internal/bench/hosts"
	"github.com/usher-rtc/usher/internal/bench/wait"
)

// echoRows are the servers of every part but setup. The lean one is what Pion
// needs at least, set up like usher's sessions; the other is what
// webrtc.NewPeerConnection gives.
func echoRows() []row {
	lean := hosts.App{Detach: true}
	return []row{
		{name: "usher", role: hosts.Role{Kind: kindUsher, App: lean}},
		{name: "pion lean", role: hosts.Role{Kind: kindStock, App: lean, Stock: hosts.StockConfig{Lite: true, Passive: true, Lean: true}}},
		{name: "pion defaults", role: hosts.Role{Kind: kindStock, App: hosts.App{ReadRTCP: true}}},
	}
}

const (
	// atOnce is how many calls a fleet sets up at the same time.
	atOnce = 16
	// warmSessions come and go before anything is counted: pools and tables
	// that stay belong to the process, not to a session.
	warmSessions = 32
	// emptyLimit is how long a server may take to notice that calls have ended.
	emptyLimit = 60 * time.Second
	// settle lets the last handshakes' timers and buffers go.
	settle = 3 * time.Second
)

// warm lets some sessions come and go.
func warm(ctx context.Context, server, fleet *process) error {
	if _, err := tell(ctx, fleet, callers.Command{Open: warmSessions, AtOnce: atOnce}); err != nil {
		return err
	}
	if _, err := tell(ctx, fleet, callers.Command{}); err != nil {
		return err
	}
	return server.empty(ctx)
}

// held is what a session costs.
type held struct{ goroutines, descriptors, heap, stack float64 }

// heldBetween divides what came between two counts among n sessions.
func heldBetween(before, after hosts.Usage, n int) held {
	per := func(from, to float64) float64 { return (to - from) / float64(n) }
	return held{
		goroutines:  per(float64(before.Goroutines), float64(after.Goroutines)),
		descriptors: per(float64(before.Descriptors), float64(after.Descriptors)),
		heap:        per(float64(before.Heap), float64(after.Heap)),
		stack:       per(float64(before.Stack), float64(after.Stack)),
	}
}

func (h held) kbytes() float64 { return (h.heap + h.stack) / 1024 }

func (b *bench) idle(ctx context.Context) error {
	var rows []string
	var all []held
	for _, r := range echoRows() {
		progress("idle: %d sessions with %s", b.sessions, r.name)
		h, err := b.idleRow(ctx, r)
		var tooMany *errDescriptors
		if left := errors.As(err, &tooMany); left && len(all) > 1 {
			rows = append(rows, fmt.Sprintf("%s\t-\t-\t-\t-\t-\t", r.name))
			b.out.line("left out: %s: %v", r.name, tooMany)
			err = nil
		}
		if err = errors.Join(err, b.stopAll()); err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		if tooMany != nil {
			continue
		}
		if len(all) == 0 { // before the others, whose end it may be
			b.out.line("session goroutines %.1f", h.goroutines)
			b.out.line("session kbytes %.1f", h.kbytes())
		}
		all = append(all, h)
		rows = append(rows, fmt.Sprintf("%s\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t",
			r.name, h.goroutines, h.descriptors, h.heap/1024, h.stack/1024, h.kbytes()))
	}
	best := all[1]
	for _, h := range all[2:] {
		best.goroutines = min(best.goroutines, h.goroutines)
		if h.kbytes() < best.kbytes() {
			best.heap, best.stack = h.heap, h.stack
		}
	}
	b.out.line("ratio usher/pion session-goroutines %.2f", all[0].goroutines/best.goroutines)
	b.out.line("ratio usher/pion session-kbytes %.2f", all[0].kbytes()/best.kbytes())
	return b.out.table(fmt.Sprintf("Idle sessions with audio and a data channel (%d)", b.sessions),
		"server\tgoroutines\tdescriptors\theap KB\tstack KB\tsum KB\t", rows)
}

func (b *bench) idleRow(ctx context.Context, r row) (h held, err error) {
	server, err := b.server(r, b.cpus, b.cpus)
	if err != nil {
		return h, err
	}
	fleet, err := b.fleet(server, b.cpus, false)
	if err != nil {
		return h, err
	}
	if err := warm(ctx, server, fleet); err != nil {
		return h, err
	}
	before, err := server.usage(ctx)
	if err != nil {
		return h, err
	}
	n, err := b.first(ctx, server, fleet, before)
	if err != nil {
		return h, err
	}
	if n < b.sessions {
		if _, err := tell(ctx, fleet, callers.Command{Open: b.sessions - n, AtOnce: atOnce}); err != nil {
			return h, err
		}
	}
	if err := wait.For(ctx, settle); err != nil {
		return h, err
	}
	after, err := server.usage(ctx)
	if err != nil {
		return h, err
	}
	if after.Live != b.sessions {
		return h, fmt.Errorf("%d sessions are live, want %d", after.Live, b.sessions)
	}
	if err := b.profile(ctx, r, server); err != nil {
		return h, err
	}
	// A server that is told to end with so many calls takes longer than it is given.
	_, err = tell(ctx, fleet, callers.Command{})
	return heldBetween(before, after, b.sessions), err
}

// errDescriptors is why a row is left out.
type errDescriptors struct {
	each     float64 // per session
	sessions int
	limit    uint64
}

func (e *errDescriptors) Error() string {
	return fmt.Sprintf("%d sessions at %.1f descriptors are more than the %d that a process may have (ulimit -Hn)",
		e.sessions, e.each, e.limit)
}

// room returns an *errDescriptors if as many sessions as are wanted would need more
// descriptors than the limit.
func room(before hosts.Usage, one held, sessions int, limit uint64) error {
	if float64(before.Descriptors)+one.descriptors*float64(sessions) > float64(limit) {
		return &errDescriptors{one.descriptors, sessions, limit}
	}
	return nil
}

// first opens the first sessions, returns how many, and fails if there is no room
// for the rest. The runtime has raised its own limit as far as it may; no program
// gets further without CAP_SYS_RESOURCE.
func (b *bench) first(ctx context.Context, server, fleet *process, before hosts.Usage) (n int, err error) {
	n = min(b.sessions, warmSessions)
	if _, err := tell(ctx, fleet, callers.Command{Open: n, AtOnce: atOnce}); err != nil {
		return 0, err
	}
	now, err := server.usage(ctx)
	if err != nil {
		return 0, err
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, err
	}
	return n, room(before, heldBetween(before, now, n), b.sessions, limit.Max)
}

// profile saves a server's profiles, if asked for.
func (b *bench) profile(ctx context.Context, r row, server *process) error {
	if b.profiles == "" {
		return nil
	}
	for file, path := range map[string]string{
		"goroutine.txt": "/debug/pprof/goroutine?debug=1", "heap.pprof": "/debug/pprof/heap",
	} {
		if err := b.save(ctx, r, server, file, path); err != nil {
			return err
		}
	}
	return nil
}

// save keeps a page of a server in the directory of profiles.
func (b *bench) save(ctx context.Context, r row, server *process, file, path string) error {
	var content []byte
	if err := server.get(ctx, path, &content); err != nil {
		return err
	}
	name := strings.ReplaceAll(r.name, " ", "-") + "-" + file
	return os.WriteFile(filepath.Join(b.profiles, name), content, 0o644)
}
