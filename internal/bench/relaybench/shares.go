package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/pprof/profile"
)

// group is whose code a sample of the profile is in.
type group int

const (
	// own: the function that was running is usher's.
	own group = iota
	// helpers: a library or the runtime, called from usher's code, such as a
	// hash, a comparison or a copy of memory.
	helpers
	// kernel: a system call. The profiler sees the kernel's time in the
	// instruction after the call.
	kernel
	// goRuntime: everything else, such as the scheduler and the collector.
	goRuntime
	numGroups
)

func (g group) String() string {
	return [...]string{"own", "helpers", "kernel", "runtime"}[g]
}

func shareNames(sep string) string {
	s := ""
	for g := range numGroups {
		s += g.String() + sep
	}
	return s
}

// shares are the samples of a profile by group.
type shares struct {
	samples int64
	by      [numGroups]int64
	flat    map[string]int64 // of usher's functions
}

func sharesOf(p *profile.Profile) *shares {
	s := &shares{flat: make(map[string]int64)}
	for _, sample := range p.Sample {
		n := sample.Value[0]
		stack := functions(sample)
		if len(stack) == 0 {
			continue
		}
		g := groupOf(stack)
		s.samples += n
		s.by[g] += n
		if g == own {
			s.flat[stack[0]] += n
		}
	}
	return s
}

// functions are the names on a sample's stack, the running one first. The function
// that the scheduler interrupted counts as running: both come with the same tick.
func functions(s *profile.Sample) (names []string) {
	for _, loc := range s.Location {
		for _, line := range loc.Line {
			if f := line.Function; f != nil && f.Name != "runtime.asyncPreempt" {
				names = append(names, f.Name)
			}
		}
	}
	return names
}

// module is the import path that usher's functions begin with.
const module = "github.com/usher-rtc/usher/"

// groupOf judges by the function that was running.
func groupOf(stack []string) group {
	switch leaf := stack[0]; {
	case strings.HasPrefix(leaf, module):
		return own
	case systemCall(leaf):
		return kernel
	case slices.ContainsFunc(stack, func(f string) bool { return strings.HasPrefix(f, module) }):
		return helpers
	}
	return goRuntime
}

// systemCall reports whether a function is nothing but a system call.
func systemCall(f string) bool {
	for _, p := range []string{"syscall.", "internal/runtime/syscall", "golang.org/x/sys/unix."} {
		if strings.HasPrefix(f, p) {
			return true
		}
	}
	return slices.Contains([]string{
		"runtime.futex", "runtime.usleep", "runtime.tgkill", "runtime.epollwait", "runtime.sigprocmask", "runtime.rtsigprocmask",
	}, strings.TrimSuffix(f, ".abi0"))
}

func (s *shares) percent(g group) float64 {
	return 100 * float64(s.by[g]) / float64(max(s.samples, 1))
}

// hottest names the n functions of usher's with the most samples.
func (s *shares) hottest(n int) string {
	names := slices.SortedFunc(maps.Keys(s.flat), func(a, b string) int {
		return cmp.Or(cmp.Compare(s.flat[b], s.flat[a]), cmp.Compare(a, b))
	})
	var out []string
	for _, f := range names[:min(n, len(names))] {
		out = append(out, fmt.Sprintf("%s %.1f", strings.TrimPrefix(f, module), 100*float64(s.flat[f])/float64(s.samples)))
	}
	return strings.Join(out, ", ")
}
