package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// limit bounds everything.
	limit = 10 * time.Minute
	// maxCalls is what two busy cores carry.
	maxCalls = 400
)

// options say what is run.
type options struct {
	calls    int
	rollouts *regexp.Regexp // those whose names it matches
	quick    bool           // one server of each kind, and no judgement of times and losses
	out      io.Writer
}

func main() {
	if err := runFlags(); err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

func runFlags() error {
	o := options{out: os.Stdout}
	flag.IntVar(&o.calls, "calls", 100, "`number` of calls, a multiple of 4")
	pattern := flag.String("rollouts", "", "`pattern` that the names of the roll-outs to run match")
	flag.BoolVar(&o.quick, "quick", false, "roll over one server of each kind, and do not judge times and losses: for machines that do other things too")
	flag.Parse()
	if o.calls < 4 || o.calls > maxCalls || o.calls%4 != 0 {
		return fmt.Errorf("-calls: want a multiple of 4 up to %d", maxCalls)
	}
	var err error
	if o.rollouts, err = regexp.Compile(*pattern); err != nil {
		return fmt.Errorf("-rollouts: %w", err)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	urge()
	return run(ctx, o)
}

// priority is that of the fleet (setpriority(2)): a normal program has 0, and what
// is more urgent less.
const priority = -10

// urge makes what else the machine does wait: the bounds are milliseconds. Threads
// and processes that are started later inherit it. Where it is not allowed, they
// compete.
func urge() {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, t := range threads {
		if tid, err := strconv.Atoi(t.Name()); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, tid, priority)
		}
	}
}

// run makes the fleet with calls on it, shows what it must show, and rolls it over.
func run(ctx context.Context, o options) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := available(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "usher-fleet-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	f, err := newFleet(ctx, dir, o.out)
	defer f.close()
	if err != nil {
		return fmt.Errorf("the fleet did not start: %w", err)
	}
	f.quick = o.quick
	if err := f.show(ctx, o); err != nil {
		for _, s := range f.servers() {
			f.say("%s said:%s", s.name, s.Output())
		}
		return err
	}
	return nil
}

func (f *fleet) show(ctx context.Context, o options) error {
	// While nothing else goes on, or they would show how busy the machine is.
	if err := f.showChecks(ctx); err != nil {
		return err
	}
	if err := f.openCalls(ctx, o.calls); err != nil {
		return err
	}
	f.showSetup()
	for _, show := range []func(context.Context) error{f.showOwners, f.showMedia} {
		if err := show(ctx); err != nil {
			return err
		}
	}
	if err := f.rollOver(ctx, o.rollouts); err != nil {
		return err
	}
	if len(f.problems) > 0 {
		return errors.New("not as it must be: " + strings.Join(f.problems, "; "))
	}
	return nil
}
