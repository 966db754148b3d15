package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/usher-rtc/usher/internal/bench/flags"
	"github.com/usher-rtc/usher/internal/bench/load"
	"github.com/usher-rtc/usher/internal/bench/peers"
)

// options are the flags.
type options struct {
	quick            bool
	all              bool
	rounds           int
	only             string
	parts            string
	profiles         string
	dur, warm        time.Duration
	fill, fills      int
	hosts            int
	genCPU, relayCPU int
	axes             axes
}

// everyPeer is all that can be compared, usher first.
var everyPeer = []string{"usher", "usher-500us", "nginx", "nginx-multi", "coturn", "pion-turn", "naive", "c", "nft"}

// everyPart is all that can be measured.
var everyPart = []string{"cells", "floor", "profile", "table", "workers", "latency", "lossfree"}

func newPeer(name string) (peers.Peer, error) {
	switch name {
	case "usher":
		return peers.NewUsher(name, 0), nil
	case "usher-500us":
		return peers.NewUsher(name, 500*time.Microsecond), nil
	case "nginx":
		return peers.NewNginx(false), nil
	case "nginx-multi":
		return peers.NewNginx(true), nil
	case "coturn":
		return peers.NewCoturn(), nil
	case "pion-turn":
		return peers.NewPionTURN(), nil
	case "naive":
		return peers.NewNaive(), nil
	case "c":
		return peers.NewC(), nil
	}
	return nil, fmt.Errorf("unknown peer %q: want some of %s", name, strings.Join(everyPeer, ","))
}

func parseFlags() (options, error) {
	var o options
	var clients, sz, dirs, rates string
	flag.BoolVar(&o.quick, "quick", false, "a look: two rounds of short cells, only the main load")
	flag.BoolVar(&o.all, "all", false, "every combination of clients, sizes, directions and rates")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds")
	flag.StringVar(&o.only, "only", strings.Join(everyPeer, ","), "peers to compare, comma separated")
	flag.StringVar(&o.parts, "parts", strings.Join(everyPart, ","), "parts to run, comma separated: "+strings.Join(everyPart, ", "))
	flag.StringVar(&o.profiles, "profiles", "", "directory to keep the relay's CPU profiles in")
	flag.DurationVar(&o.dur, "dur", time.Second, "length of a cell at a stated rate")
	flag.IntVar(&o.fill, "fill", 5000, "packets in the queues of a stopped relay; a quarter for bursts, which are larger")
	flag.IntVar(&o.fills, "fills", 8, "fills per cell at saturation")
	flag.IntVar(&o.hosts, "hosts", 1, "Hosts over which usher's sessions are spread; the fewer, the more packets share a datagram")
	flag.IntVar(&o.genCPU, "gen-cpu", 0, "processor of the harness")
	flag.IntVar(&o.relayCPU, "relay-cpu", 1, "processor of the relays")
	flag.StringVar(&clients, "clients", "64,1000", "numbers of clients")
	flag.StringVar(&sz, "sizes", "160,opus,burst", "payload sizes; the first is the main load")
	flag.StringVar(&dirs, "dirs", "uplink,downlink,both", "directions")
	flag.StringVar(&rates, "rates", "10000,50000,100000,full", "packets a second, both directions together, or full")
	flag.Parse()
	o.warm = 100 * time.Millisecond
	if o.quick {
		flags.Quick(flag.CommandLine, map[string]string{
			"rounds": "2", "dur": "300ms", "fills": "2", "clients": "1000", "sizes": string(fixed), "rates": "50000,full",
		})
		o.warm = 50 * time.Millisecond
	}
	var err error
	if o.axes, err = parseAxes(clients, sz, dirs, rates); err != nil {
		return o, err
	}
	err = cmp.Or(
		flags.InRange(flag.CommandLine,
			flags.Range{Name: "rounds", Min: 1, Max: 1000}, flags.Range{Name: "fill", Min: load.Slots, Max: 100_000},
			flags.Range{Name: "fills", Min: 1, Max: 10_000}, flags.Range{Name: "hosts", Min: 1, Max: 64}),
		flags.SomeOf(flag.CommandLine, "parts", strings.Join(everyPart, ",")),
		flags.SomeOf(flag.CommandLine, "only", strings.Join(everyPeer, ",")),
	)
	switch {
	case err != nil:
		return o, err
	case o.dur < 50*time.Millisecond || o.dur > time.Minute:
		return o, fmt.Errorf("-dur: want 50ms to 1m, got %v", o.dur)
	case o.genCPU == o.relayCPU:
		return o, errors.New("-gen-cpu and -relay-cpu: want two processors")
	case runtime.NumCPU() < 2:
		return o, errors.New("needs two processors: one for the generator, one for the relay")
	}
	return o, nil
}

func (o *options) part(name string) bool { return slices.Contains(strings.Split(o.parts, ","), name) }
func (o *options) peer(name string) bool { return slices.Contains(strings.Split(o.only, ","), name) }

func main() {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		if err := peers.Serve(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "relaybench serve:", err)
			os.Exit(1)
		}
		return
	}
	// The processes that this thread starts end with it.
	runtime.LockOSThread()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "relaybench:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	o, err := parseFlags()
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("needs root: it sends with the addresses of a thousand clients")
	}
	if err := load.PinProcess(o.genCPU); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "relaybench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	env := &peers.Env{CPUs: fmt.Sprint(o.relayCPU), Workers: 1, Dir: dir, Exe: exe}
	if pid, err := load.Ksoftirqd(o.genCPU); err == nil {
		env.Softirq = pid
	}
	if env.Raw, err = load.NewRaw(); err != nil {
		return err
	}
	defer env.Raw.Close()
	if env.Clients, err = load.NewSink(); err != nil {
		return err
	}
	defer env.Clients.Close()
	for range o.hosts {
		s, err := load.NewSink()
		if err != nil {
			return err
		}
		defer s.Close()
		env.Upstreams = append(env.Upstreams, s)
	}
	b := &bench{options: o, env: env}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-stop
		b.stopped.Store(true)
	}()
	return b.run()
}

// bench is one run.
type bench struct {
	options
	env     *peers.Env
	stopped atomic.Bool // by a signal: end after the current cell
	results results
}

var errStopped = errors.New("stopped by a signal")

func (b *bench) run() error {
	type part struct {
		name string
		run  func() error
	}
	for _, p := range []part{
		{"cells", b.cells}, {"floor", b.floor}, {"profile", b.profile}, {"table", b.table},
		{"workers", b.workers}, {"latency", b.latency}, {"lossfree", b.lossFree},
	} {
		if !b.part(p.name) {
			continue
		}
		if err := p.run(); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return b.results.ratios(os.Stdout)
}

// progress says on standard error what is going on.
func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
