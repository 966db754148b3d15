package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/usher-rtc/usher/internal/bench/flags"
	"github.com/usher-rtc/usher/internal/bench/hosts"
)

type options struct {
	quick    bool
	parts    string
	sessions int
	latency  int
	soak     int
	seconds  int
	service  string
}

const allParts = "latency,soak"

func parseFlags() (options, error) {
	var o options
	flag.BoolVar(&o.quick, "quick", false, "a look: few sessions, a few seconds")
	flag.StringVar(&o.parts, "parts", allParts, "parts to run, comma separated")
	flag.IntVar(&o.sessions, "sessions", 100, "latency: sessions")
	flag.IntVar(&o.latency, "latency-seconds", 30, "latency: seconds of each row")
	flag.IntVar(&o.soak, "soak-sessions", 250, "soak: sessions")
	flag.IntVar(&o.seconds, "seconds", 60, "soak: seconds")
	flag.StringVar(&o.service, "service", "", "address of a service to measure with instead of the one in Go")
	flag.Parse()
	if o.quick {
		flags.Quick(flag.CommandLine, map[string]string{"sessions": "20", "latency-seconds": "3", "soak-sessions": "40", "seconds": "5"})
	}
	err := cmp.Or(
		flags.InRange(flag.CommandLine, []flags.Range{
			{Name: "sessions", Min: 1, Max: 5000}, {Name: "latency-seconds", Min: 1, Max: 3600},
			{Name: "soak-sessions", Min: 1, Max: 5000}, {Name: "seconds", Min: 1, Max: 86400},
		}...),
		flags.SomeOf(flag.CommandLine, "parts", allParts),
	)
	if err != nil {
		return o, err
	}
	if flag.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	return o, nil
}

// Roles of this program besides hosts.Role's.
const (
	roleHost    = "host"
	roleService = "service"
)

func main() {
	var err error
	switch {
	case len(os.Args) == 3 && os.Args[1] == "serve":
		err = hosts.Serve(os.Args[2])
	case len(os.Args) == 4 && os.Args[1] == roleHost:
		err = serveHost(os.Args[2], os.Args[3])
	case len(os.Args) == 2 && os.Args[1] == roleService:
		err = serveService()
	default:
		err = run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "voice:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	o, err := parseFlags()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s, err := newSite(o.service)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if strings.Contains(o.parts, "latency") {
		if err := latencyPart(ctx, s, &o); err != nil {
			return err
		}
	}
	if strings.Contains(o.parts, "soak") {
		return soakPart(ctx, s, &o)
	}
	return nil
}

func latencyPart(ctx context.Context, s *site, o *options) error {
	base, err := measure(ctx, s.stock, o.sessions, time.Duration(o.latency)*time.Second)
	if err != nil {
		return fmt.Errorf("the base: %w", err)
	}
	all, err := measure(ctx, s.host, o.sessions, time.Duration(o.latency)*time.Second)
	if err != nil {
		return fmt.Errorf("through all parts: %w", err)
	}
	fmt.Printf("\n%d sessions, %d s each: milliseconds from a client's write to its read\n", o.sessions, o.latency)
	fmt.Printf("%-34s %8s %8s %8s %10s\n", "", "p50", "p99", "p99.9", "frames")
	row := func(name string, r *result, less float64) [3]float64 {
		var v [3]float64
		for i, p := range []float64{0.5, 0.99, 0.999} {
			v[i] = r.quantile(p) - less
		}
		fmt.Printf("%-34s %8.2f %8.2f %8.2f %10d\n", name, v[0], v[1], v[2], r.back)
		return v
	}
	row("base: client, kernel, stock Pion", base, 0)
	row("mouth to ear", all, 0)
	v := row("added by our parts", all, base.quantile(0.5))
	fmt.Printf("\nvoice added ms p50 %.2f p99 %.2f p99.9 %.2f (goals: p50 2.00, p99 10.00)\n", v[0], v[1], v[2])
	fmt.Printf("voice latency lost %d reordered %d of %d frames\n", all.lost(), all.reordered, all.sent)
	return nil
}

func soakPart(ctx context.Context, s *site, o *options) error {
	c, err := newCallers(ctx, s.host, o.soak)
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.warm(ctx); err != nil {
		return err
	}
	begin, err := s.usage(ctx)
	if err != nil {
		return err
	}
	r, err := c.talk(ctx, time.Duration(o.seconds)*time.Second)
	if err != nil {
		return err
	}
	end, err := s.usage(ctx)
	if err != nil {
		return err
	}
	mib := func(n uint64) float64 { return float64(n) / (1 << 20) }
	fmt.Printf("\n%d bridged sessions, %d s\n", o.soak, o.seconds)
	fmt.Printf("%-34s %10s %10s\n", "the Host's process", "begin", "end")
	fmt.Printf("%-34s %10.1f %10.1f\n", "heap after collection, MiB", mib(begin.Heap), mib(end.Heap))
	fmt.Printf("%-34s %10.1f %10.1f\n", "stacks, MiB", mib(begin.Stack), mib(end.Stack))
	fmt.Printf("%-34s %10d %10d\n", "goroutines", begin.Goroutines, end.Goroutines)
	fmt.Printf("%-34s %10d %10d\n", "bridges that are ready", begin.Ready, end.Ready)
	fmt.Printf("\nvoice soak sessions %d sent %d back %d lost %d reordered %d\n", o.soak, r.sent, r.back, r.lost(), r.reordered)
	fmt.Printf("voice soak lost-at host-in %d overrun %d bridge-missed %d bridge-dropped %d\n",
		end.Lost-begin.Lost, end.Overrun-begin.Overrun, end.Missed-begin.Missed, end.Dropped-begin.Dropped)
	fmt.Printf("voice soak mouth-to-ear ms p50 %.2f p99 %.2f p99.9 %.2f\n", r.quantile(0.5), r.quantile(0.99), r.quantile(0.999))
	fmt.Printf("voice soak heap begin %d end %d bytes, a session %d\n", begin.Heap, end.Heap, end.Heap/uint64(o.soak))
	return nil
}
