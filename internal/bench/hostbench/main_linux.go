package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/usher-rtc/usher/internal/bench/callers"
	"github.com/usher-rtc/usher/internal/bench/hosts"
)

// options are the flags.
type options struct {
	quick              bool
	parts, browsers    string
	n                  int
	sessions           int
	rateSessions       int
	rounds             int
	live               int
	seconds            int
	muxRate            int
	churn              int
	hostCPU, clientCPU int
	profiles           string
}

const (
	allParts   = "setup,idle,rate,cpu,churn"
	allClients = "pion,chromium,firefox,chromium-snap,chromium-dtls-in-stun"
)

func parseFlags() (options, error) {
	var o options
	flag.BoolVar(&o.quick, "quick", false, "a look: few runs, few sessions")
	flag.StringVar(&o.parts, "parts", allParts, "parts to run, comma separated")
	flag.StringVar(&o.browsers, "browsers", allClients, "clients of the setup part, comma separated")
	flag.IntVar(&o.n, "n", 8, "setup: calls for each client, round-trip time and server")
	flag.IntVar(&o.sessions, "sessions", 1000, "idle: sessions")
	flag.IntVar(&o.rateSessions, "rate-sessions", 500, "rate: sessions a round")
	flag.IntVar(&o.rounds, "rounds", 5, "rate, cpu: rounds")
	flag.IntVar(&o.live, "live", 300, "cpu: sessions")
	flag.IntVar(&o.seconds, "seconds", 5, "cpu: length of a round")
	flag.IntVar(&o.muxRate, "mux-rate", perCaller, "cpu: packets a second of each session when the muxes are measured alone")
	flag.IntVar(&o.churn, "churn", 50_000, "churn: sessions")
	flag.IntVar(&o.hostCPU, "host-cpu", 1, "processor of the server that is measured")
	flag.IntVar(&o.clientCPU, "client-cpu", 0, "processor of clients and relay beside it")
	flag.StringVar(&o.profiles, "profiles", "", "idle: directory for goroutine and heap profiles of the servers")
	flag.Parse()
	set := make(map[string]bool)
	flag.Visit(func(f *flag.Flag) { set[f.Name] = true })
	if o.quick {
		for _, q := range []struct {
			name  string
			value *int
			quick int
		}{
			{"n", &o.n, 2}, {"sessions", &o.sessions, 100}, {"rate-sessions", &o.rateSessions, 60},
			{"rounds", &o.rounds, 2}, {"live", &o.live, 100}, {"seconds", &o.seconds, 2}, {"churn", &o.churn, 900},
		} {
			if !set[q.name] {
				*q.value = q.quick
			}
		}
	}
	for _, l := range []struct {
		name            string
		value, min, max int
	}{
		{"n", o.n, 1, 1000}, {"sessions", o.sessions, 1, 18_000}, {"rate-sessions", o.rateSessions, 1, 100_000},
		{"rounds", o.rounds, 1, 100}, {"live", o.live, 1, 5000}, {"seconds", o.seconds, 1, 600},
		{"mux-rate", o.muxRate, 1, 10_000}, {"churn", o.churn, 3, 1_000_000},
	} {
		if l.value < l.min || l.value > l.max {
			return o, fmt.Errorf("-%s: want %d to %d, got %d", l.name, l.min, l.max, l.value)
		}
	}
	if err := oneOf("parts", o.parts, allParts); err != nil {
		return o, err
	}
	if err := oneOf("browsers", o.browsers, allClients); err != nil {
		return o, err
	}
	if o.hostCPU == o.clientCPU || max(o.hostCPU, o.clientCPU) >= runtime.NumCPU() {
		return o, errors.New("-host-cpu and -client-cpu: want two processors of this machine")
	}
	return o, nil
}

func oneOf(name, list, all string) error {
	for v := range strings.SplitSeq(list, ",") {
		if !slices.Contains(strings.Split(all, ","), v) {
			return fmt.Errorf("-%s: unknown %q: want some of %s", name, v, all)
		}
	}
	return nil
}

func (o *options) part(name string) bool { return slices.Contains(strings.Split(o.parts, ","), name) }

// Roles of this program besides hosts.Role's.
const (
	someCallers = "callers"
	muteCallers = "mute-callers"
)

func main() {
	var err error
	switch {
	case len(os.Args) == 3 && os.Args[1] == "serve":
		err = hosts.Serve(os.Args[2])
	case len(os.Args) == 3 && (os.Args[1] == someCallers || os.Args[1] == muteCallers):
		err = callers.Serve(os.Args[2], os.Args[1] == muteCallers)
	default:
		// The processes that this thread starts end with it.
		runtime.LockOSThread()
		err = run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "hostbench:", err)
		os.Exit(1)
	}
}

// insideEnv tells the process that it is in the namespace.
const insideEnv = "USHER_BENCH_INSIDE"

func run() error {
	o, err := parseFlags()
	if err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if os.Getenv(insideEnv) == "" {
		return enter(ctx)
	}
	// Firefox looks for a default route before it uses any interface.
	for _, args := range [][]string{
		{"link", "set", "lo", "up"}, {"route", "add", "default", "dev", "lo", "src", "127.0.0.1"},
	} {
		if out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %q: %w: %s", args, err, out)
		}
	}
	return newBench(o).run(ctx)
}

// enter runs the command again, inside a network namespace of its own.
func enter(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("needs root: it makes a network namespace")
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), exe, os.Args[1:]...) // it is told to end below
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGTERM, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("in a network namespace: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer stop()
	return cmd.Wait()
}

// progress says on standard error what is going on.
func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
