package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/usher-rtc/usher/internal/bench/procs"
	"github.com/usher-rtc/usher/internal/bench/stats"
	"github.com/usher-rtc/usher/internal/bench/wait"
	"github.com/usher-rtc/usher/internal/e2e/browser"
	"github.com/usher-rtc/usher/internal/parts"
)

// options are the flags.
type options struct {
	quick    bool
	sessions int
	browsers bool
	drills   string
	list     bool
}

const (
	manySessions  = 200
	quickSessions = 60
	// offSessions is the size of a fleet with a mechanism off: enough for a
	// percentile, and they only have to show that a bound does not hold.
	offSessions = 24
)

func parseFlags() (o options, pattern *regexp.Regexp, err error) {
	flag.BoolVar(&o.quick, "quick", false, fmt.Sprintf("%d calls instead of %d, for machines that do other things too", quickSessions, manySessions))
	flag.IntVar(&o.sessions, "sessions", 0, "`number` of Pion calls; 0 is what -quick says")
	flag.BoolVar(&o.browsers, "browsers", true, "a call of Chromium's and of Firefox' too")
	flag.StringVar(&o.drills, "drills", "", "`pattern` that the names of the drills to run match")
	flag.BoolVar(&o.list, "list", false, "print the names of the drills and end")
	flag.Parse()
	if o.sessions == 0 {
		o.sessions = manySessions
		if o.quick {
			o.sessions = quickSessions
		}
	}
	if o.sessions < 6 || o.sessions > 700 {
		return o, nil, fmt.Errorf("-sessions: want 6 to 700, got %d", o.sessions)
	}
	if flag.NArg() > 0 {
		return o, nil, fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if pattern, err = regexp.Compile(o.drills); err != nil {
		return o, nil, fmt.Errorf("-drills: %w", err)
	}
	return o, pattern, nil
}

func main() {
	// The processes that this thread starts end with it.
	runtime.LockOSThread()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "drill:", err)
		os.Exit(1)
	}
}

// priority is that of the drills (setpriority(2)): a normal program has 0, and
// what is more urgent less.
const priority = -10

func run() error {
	o, pattern, err := parseFlags()
	if err != nil {
		return err
	}
	if o.list {
		for _, s := range stages {
			for _, d := range s.drills {
				fmt.Println(d.name)
			}
		}
		return nil
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := parts.Program("nft", "nftables"); err != nil {
		return err
	}
	// The bounds are milliseconds, so what else the machine does has to wait. The
	// processes inherit it from this thread. Where it is not allowed, they compete.
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, priority)
	if inside, err := procs.OwnNetwork(ctx); !inside {
		return err
	}
	r := &runner{options: o, pattern: pattern, browsers: make(map[browser.Kind]running)}
	if r.dir, err = os.MkdirTemp("", "usher-drill-"); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(r.dir) }()
	defer r.closeBrowsers()
	if r.programs, err = r.build(ctx, "programs"); err != nil {
		return err
	}
	return r.runAll(ctx)
}

// runner runs the stages.
type runner struct {
	options
	pattern  *regexp.Regexp
	dir      string
	programs *procs.Programs
	browsers map[browser.Kind]running
	failed   []string
	unjudged []string // gaps were too long while the machine was busy
	done     int
}

// stage is a kind of fleet and the drills that it goes through one after the
// other. Each drill leaves the fleet as it was, so that any of them may be left out.
type stage struct {
	name string
	plan func(*runner) plan
	// programs are built for the stage; nil means the ordinary ones.
	programs func(context.Context, *runner) (*procs.Programs, error)
	drills   []drill
}

// drill is one event and its judgement.
type drill struct {
	name string
	run  func(context.Context, *fleet) error
}

const (
	// What hangs ends.
	setupLimit = 2 * time.Minute
	drillLimit = 90 * time.Second
)

// runAll runs the drills that were asked for and says what failed.
func (r *runner) runAll(ctx context.Context) error {
	begin := time.Now()
	for _, s := range stages {
		var wanted []drill
		for _, d := range s.drills {
			if r.pattern.MatchString(d.name) {
				wanted = append(wanted, d)
			}
		}
		if len(wanted) == 0 {
			continue
		}
		if err := r.runStage(ctx, s, wanted); err != nil {
			r.fail(s.name, err.Error())
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	r.progress("%v for %d drills", time.Since(begin).Round(time.Second), r.done)
	if len(r.unjudged) > 0 {
		r.progress("not judged, the machine was too busy: %s", strings.Join(r.unjudged, ", "))
	}
	switch {
	case len(r.failed) > 0:
		return fmt.Errorf("failed: %s", strings.Join(r.failed, ", "))
	case r.done == 0:
		return errors.New("-drills matches no drill; -list shows them")
	}
	return nil
}

func (r *runner) fail(name, problem string) {
	r.progress("FAIL %s: %s", name, problem)
	if !slices.Contains(r.failed, name) {
		r.failed = append(r.failed, name)
	}
}

func (r *runner) runStage(ctx context.Context, s stage, wanted []drill) (err error) {
	pl := s.plan(r)
	if s.programs != nil {
		r.progress("%s: building its programs", s.name)
		if pl.programs, err = s.programs(ctx, r); err != nil {
			return err
		}
	}
	if pl.browsers {
		// Before the fleet has anything to do.
		for _, kind := range kinds {
			if _, _, err := r.browser(ctx, kind); err != nil {
				return err
			}
		}
	}
	setup, cancel := context.WithTimeout(ctx, setupLimit)
	defer cancel()
	begin := time.Now()
	f, err := r.newFleet(setup, pl)
	if err != nil {
		return fmt.Errorf("the fleet did not start: %w", err)
	}
	r.progress("%s: %d calls after %v", s.name, len(f.callers)+len(f.talkers), time.Since(begin).Round(100*time.Millisecond))
	defer func() { err = errors.Join(err, f.close()) }()
	for _, d := range wanted {
		for attempt := 1; ; attempt++ {
			again, err := f.attempt(ctx, d, attempt < attempts)
			if err != nil {
				r.fail(d.name, err.Error())
				r.explain(f)
				return errors.New("the rest of the stage was left out")
			}
			if !again {
				break
			}
		}
		r.done++
	}
	return nil
}

const (
	// attempts is how often a drill is made in all if the machine disturbs it.
	attempts = 3
	// disturbed is how long this process may be held up before a bound that was
	// not kept is taken for the machine's fault.
	disturbed = 10 * time.Millisecond
	// patience is how long a drill waits for a machine that is busy.
	patience = 15 * time.Second
)

// calm waits until this process has not been held up for a second, at most for
// patience: browsers that have just started, for instance, keep a machine busy.
func (f *fleet) calm(ctx context.Context) error {
	for begin := time.Now(); time.Since(begin) < patience; {
		f.pacer.Late()
		if err := wait.For(ctx, time.Second); err != nil {
			return err
		}
		if f.pacer.Late() <= disturbed {
			break
		}
	}
	return nil
}

// attempt makes a drill and reports what came of it. If bounds were not kept while
// the machine was busy with something else, it may ask for another one instead.
func (f *fleet) attempt(ctx context.Context, d drill, more bool) (again bool, err error) {
	limited, cancel := context.WithTimeout(ctx, drillLimit)
	defer cancel()
	f.drill, f.verdicts = d.name, nil
	if err := f.refresh(limited); err != nil {
		return false, err
	}
	if err := f.calm(limited); err != nil {
		return false, err
	}
	if err := d.run(limited, f); err != nil {
		return false, err
	}
	late := f.pacer.Late()
	failed := slices.ContainsFunc(f.verdicts, func(v *verdict) bool { return len(v.Problems) > 0 })
	if failed && more && late > disturbed {
		for _, v := range f.verdicts {
			f.run.progress("disturbed for %.0f ms, so once more: %v %q", stats.Millis(late), v, v.Problems)
		}
		return true, nil
	}
	// Only how long gaps are is a matter of the machine.
	busy := late > disturbed && !slices.ContainsFunc(f.verdicts, func(v *verdict) bool { return len(v.Problems) > v.late })
	for _, v := range f.verdicts {
		fmt.Println(v)
		for _, p := range v.Problems {
			if busy {
				f.run.progress("disturbed for %.0f ms, so not judged: %s: %s", stats.Millis(late), v.Name, p)
				continue
			}
			f.run.fail(v.Name, p)
		}
	}
	switch {
	case failed && busy:
		f.run.unjudged = append(f.run.unjudged, d.name)
	case failed:
		f.run.explain(f)
	}
	return false, nil
}

// progress says on standard error what is going on.
func (r *runner) progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (r *runner) closeBrowsers() {
	for _, b := range r.browsers {
		b.Close()
	}
}

// explain shows what processes have said, after a failure.
func (r *runner) explain(f *fleet) {
	for _, p := range f.all {
		r.progress("%s said:%s", p.Name, p.Output())
	}
}

// build compiles the example programs.
func (r *runner) build(ctx context.Context, name string, flags ...string) (*procs.Programs, error) {
	return procs.Build(ctx, filepath.Join(r.dir, name), flags...)
}
