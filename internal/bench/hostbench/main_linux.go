package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/usher-rtc/usher/internal/bench/callers"
	"github.com/usher-rtc/usher/internal/bench/flags"
	"github.com/usher-rtc/usher/internal/bench/hosts"
	"github.com/usher-rtc/usher/internal/bench/procs"
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
	flag.StringVar(&o.profiles, "profiles", "", "idle, cpu, churn: directory for the servers' goroutine and heap profiles, and for CPU profiles, each of a round that does not count")
	flag.Parse()
	if o.quick {
		flags.Quick(flag.CommandLine, map[string]string{
			"n": "2", "sessions": "100", "rate-sessions": "60", "rounds": "2", "live": "100", "seconds": "2", "churn": "900",
		})
	}
	err := cmp.Or(
		flags.InRange(flag.CommandLine, []flags.Range{
			{Name: "n", Min: 1, Max: 1000}, {Name: "sessions", Min: 1, Max: 18_000}, {Name: "rate-sessions", Min: 1, Max: 100_000},
			{Name: "rounds", Min: 1, Max: 100}, {Name: "live", Min: 1, Max: 5000}, {Name: "seconds", Min: 1, Max: 600},
			{Name: "mux-rate", Min: 1, Max: 10_000}, {Name: "churn", Min: 3, Max: 1_000_000},
		}...),
		flags.SomeOf(flag.CommandLine, "parts", allParts),
		flags.SomeOf(flag.CommandLine, "browsers", allClients),
	)
	if err != nil {
		return o, err
	}
	if o.hostCPU == o.clientCPU || max(o.hostCPU, o.clientCPU) >= runtime.NumCPU() {
		return o, errors.New("-host-cpu and -client-cpu: want two processors of this machine")
	}
	return o, nil
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

func run() error {
	o, err := parseFlags()
	if err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if inside, err := procs.OwnNetwork(ctx); !inside {
		return err
	}
	return newBench(o).run(ctx)
}

// progress says on standard error what is going on.
func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
