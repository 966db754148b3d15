package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/usher-rtc/usher/internal/bench/hosts"
)

func TestRoomForDescriptors(t *testing.T) {
	before := hosts.Usage{Goroutines: 10, Descriptors: 20, Heap: 1 << 20, Stack: 1 << 16}
	after := hosts.Usage{Goroutines: 10 + 18*32, Descriptors: 20 + 2*32, Heap: 1<<20 + 32*4096, Stack: 1<<16 - 32*1024}
	one := heldBetween(before, after, 32)
	if want := (held{goroutines: 18, descriptors: 2, heap: 4096, stack: -1024}); one != want {
		t.Fatalf("a session holds %+v, want %+v", one, want)
	}
	if one.kbytes() != 3 {
		t.Errorf("%v KB, want 3", one.kbytes())
	}
	for sessions, fits := range map[int]bool{1: true, 9990: true, 9991: false} {
		err := room(before, one, sessions, 20_000)
		var left *errDescriptors
		if fits != (err == nil) || err != nil && (!errors.As(err, &left) || !strings.Contains(err.Error(), "20000")) {
			t.Errorf("%d sessions: %v", sessions, err)
		}
	}
	if err := room(before, held{}, 1_000_000, 20_000); err != nil {
		t.Errorf("sessions without descriptors: %v", err)
	}
}
