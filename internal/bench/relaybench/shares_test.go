package main

import (
	"strings"
	"testing"

	"github.com/google/pprof/profile"
)

// profileWith is a profile of stacks, the running function first, with their
// numbers of samples.
func profileWith(stacks map[string]int64) *profile.Profile {
	p := &profile.Profile{}
	for stack, n := range stacks {
		s := &profile.Sample{Value: []int64{n, n * 10_000_000}}
		for name := range strings.FieldsSeq(stack) {
			f := &profile.Function{Name: name}
			s.Location = append(s.Location, &profile.Location{Line: []profile.Line{{Function: f}}})
		}
		p.Sample = append(p.Sample, s)
	}
	return p
}

// A sample counts for who was running, and a helper only for usher if usher called it.
func TestSharesOfAProfile(t *testing.T) {
	const worker = " github.com/usher-rtc/usher/relay.(*worker).HandleBatch"
	s := sharesOf(profileWith(map[string]int64{
		"github.com/usher-rtc/usher/flowtable.(*Table).find" + worker:                           5,
		"runtime.asyncPreempt github.com/usher-rtc/usher/relay.(*worker).HandleBatch main.main": 3,
		"internal/runtime/syscall/linux.Syscall6 syscall.RawSyscall6" + worker:                  60,
		"runtime.futex runtime.notesleep runtime.sysmon":                                        10,
		"runtime.memmove" + worker:                                                              12,
		"github.com/dchest/siphash.Hash github.com/usher-rtc/usher/internal/trunk.Seal":         4,
		"runtime.scanobject runtime.gcDrain":                                                    6,
		"":                                                                                      100, // no function, no share
	}))
	if s.samples != 100 {
		t.Fatalf("%d samples", s.samples)
	}
	for g, want := range map[group]float64{own: 8, helpers: 16, kernel: 70, goRuntime: 6} {
		if got := s.percent(g); got != want {
			t.Errorf("%v: %v %%, want %v", g, got, want)
		}
	}
	if got := s.hottest(1); got != "flowtable.(*Table).find 5.0" {
		t.Errorf("hottest: %q", got)
	}
	if got := s.hottest(9); strings.Count(got, ",") != 1 {
		t.Errorf("all: %q", got)
	}
	if none := sharesOf(&profile.Profile{}); none.percent(own) != 0 || none.hottest(3) != "" {
		t.Errorf("an empty profile: %+v", none)
	}
}
