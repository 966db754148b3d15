package main

import (
	"context"
	"time"

	"github.com/usher-rtc/usher/internal/bench/callers"
	"github.com/usher-rtc/usher/internal/bench/hosts"
	"github.com/usher-rtc/usher/internal/bench/wait"
)

const (
	// halfOpen is how long a session lives in the churn part that gets no further.
	halfOpen = 5 * time.Second
	// churnChunk is what the fleet is told at once, between signs of life.
	churnChunk = 1000
	// churnWarm is how long sessions come and go before the start value is taken.
	// The half-open ones pile up for as long as they live, and the runtime keeps a
	// descriptor for each goroutine of the most that there were at once.
	churnWarm = 3 * halfOpen
	// churnSlack is what the heap may be larger by in the end: caches of the runtime
	// and of pools, which differ by that much from one moment to the next.
	churnSlack = 1 << 20
)

// churns lets many sessions come and go and looks for what they left.
func (b *bench) churns(ctx context.Context) error {
	r := row{name: "usher", role: hosts.Role{Kind: kindUsher, App: hosts.App{Detach: true}, HalfOpen: halfOpen}}
	server, err := b.server(r, b.cpus, b.cpus)
	if err != nil {
		return err
	}
	fleet, err := b.fleet(server, b.cpus, false)
	if err != nil {
		return err
	}
	cycle := func(n int) error {
		_, err := tell(ctx, fleet, callers.Command{Cycle: &callers.Cycle{N: n, AtOnce: atOnce, HalfOpen: true}})
		return err
	}
	for begin := time.Now(); time.Since(begin) < churnWarm; {
		if err := cycle(churnChunk / 4); err != nil {
			return err
		}
	}
	before, err := b.left(ctx, "churn before", server)
	if err != nil {
		return err
	}
	for done := 0; done < b.churn; {
		n := min(churnChunk, b.churn-done)
		if err := cycle(n); err != nil {
			return err
		}
		done += n
		progress("churn: %d of %d sessions", done, b.churn)
	}
	after, err := b.left(ctx, "churn after", server)
	if err != nil {
		return err
	}
	back := after.Goroutines <= before.Goroutines && after.Descriptors <= before.Descriptors &&
		after.Heap <= before.Heap+churnSlack
	b.out.line("churn sessions %d connected %d", b.churn, after.Connected-before.Connected)
	b.out.line("churn goroutines %d %d", before.Goroutines, after.Goroutines)
	b.out.line("churn descriptors %d %d", before.Descriptors, after.Descriptors)
	b.out.line("churn heap-kbytes %d %d", before.Heap/1024, after.Heap/1024)
	b.out.line("churn back %t", back)
	return nil
}

// left returns what a server holds once all sessions have ended, and saves its
// profiles under a name, if asked for.
func (b *bench) left(ctx context.Context, name string, server *process) (u hosts.Usage, err error) {
	if err := server.empty(ctx); err != nil {
		return u, err
	}
	if err := wait.For(ctx, settle); err != nil {
		return u, err
	}
	if u, err = server.usage(ctx); err != nil {
		return u, err
	}
	return u, b.profile(ctx, row{name: name}, server)
}
