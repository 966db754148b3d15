package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

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
type held struct{ goroutines, heap, stack float64 }

func (h held) kbytes() float64 { return (h.heap + h.stack) / 1024 }

func (b *bench) idle(ctx context.Context) error {
	var rows []string
	var all []held
	for _, r := range echoRows() {
		progress("idle: %d sessions with %s", b.sessions, r.name)
		h, err := b.idleRow(ctx, r)
		if err = errors.Join(err, b.stopAll()); err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		if len(all) == 0 { // before the others, whose end it may be
			b.out.line("session goroutines %.1f", h.goroutines)
			b.out.line("session kbytes %.1f", h.kbytes())
		}
		all = append(all, h)
		rows = append(rows, fmt.Sprintf("%s\t%.1f\t%.1f\t%.1f\t%.1f\t", r.name, h.goroutines, h.heap/1024, h.stack/1024, h.kbytes()))
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
		"server\tgoroutines\theap KB\tstack KB\tsum KB\t", rows)
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
	if _, err := tell(ctx, fleet, callers.Command{Open: b.sessions, AtOnce: atOnce}); err != nil {
		return h, err
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
	n := float64(b.sessions)
	h = held{
		goroutines: float64(after.Goroutines-before.Goroutines) / n,
		heap:       (float64(after.Heap) - float64(before.Heap)) / n,
		stack:      (float64(after.Stack) - float64(before.Stack)) / n,
	}
	return h, b.profile(ctx, r, server)
}

// profile saves a server's profiles, if asked for.
func (b *bench) profile(ctx context.Context, r row, server *process) error {
	if b.profiles == "" {
		return nil
	}
	for file, path := range map[string]string{
		"goroutine.txt": "/debug/pprof/goroutine?debug=1", "heap.pprof": "/debug/pprof/heap",
	} {
		var content []byte
		if err := server.get(ctx, path, &content); err != nil {
			return err
		}
		name := strings.ReplaceAll(r.name, " ", "-") + "-" + file
		if err := os.WriteFile(filepath.Join(b.profiles, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
