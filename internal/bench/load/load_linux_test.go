package load

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/parts"
)

func pair(t *testing.T) (*Raw, *Sink) {
	t.Helper()
	parts.Need(t, parts.Root("a raw socket"))
	r, err := NewRaw()
	parts.Need(t, err)
	t.Cleanup(func() { r.Close() })
	s, err := NewSink()
	parts.Need(t, err)
	t.Cleanup(func() { s.Close() })
	return r, s
}

func TestRawToSink(t *testing.T) {
	r, s := pair(t)
	if err := s.Stamps(true); err != nil {
		t.Fatal(err)
	}
	start := Now()
	const n = 3*Slots + 1
	for i := range n {
		src := Endpoint{IP: [4]byte{127, 1, 2, byte(i)}, Port: uint16(1000 + i)}
		k := copy(r.Buffer(), bytes.Repeat([]byte{byte(i)}, i+1))
		r.Push(src, Endpoint{IP: [4]byte{127, 3, 0, 1}, Port: s.Port()}, k)
	}
	r.Flush()
	if r.Sent() != n || r.Lost() != 0 {
		t.Errorf("sent %d, lost %d", r.Sent(), r.Lost())
	}
	got := 0
	for end := time.Now().Add(30 * time.Second); got < n && time.Now().Before(end); {
		for i := range s.Recv() {
			want := Endpoint{IP: [4]byte{127, 1, 2, byte(got)}, Port: uint16(1000 + got)}
			if s.From(i) != want {
				t.Fatalf("datagram %d is from %v, want %v", got, s.From(i), want)
			}
			if d := s.Data(i); len(d) != got+1 || d[0] != byte(got) {
				t.Fatalf("datagram %d: % x", got, d)
			}
			if at := s.Stamp(i); at < start || at > Now() {
				t.Errorf("datagram %d: stamp %d is not between %d and now", got, at, start)
			}
			got++
		}
	}
	if got != n {
		t.Fatalf("%d of %d datagrams arrived", got, n)
	}
}

// A packet costs the harness no allocation, or the collector's work would be
// part of what is measured.
func TestNoAllocations(t *testing.T) {
	r, s := pair(t)
	dst := Endpoint{IP: [4]byte{127, 0, 0, 1}, Port: s.Port()}
	if n := testing.AllocsPerRun(100, func() {
		r.Push(dst, dst, 100)
		r.Flush()
		for i := range s.Recv() {
			_, _ = s.Data(i), s.From(i)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// start runs a shell script on a processor of its own choice.
func start(t *testing.T, script string) *Process {
	t.Helper()
	parts.Need(t, parts.Program("taskset", "util-linux"))
	runtime.LockOSThread() // the process ends with the thread
	t.Cleanup(runtime.UnlockOSThread)
	p, err := StartProcess("0", "sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Stop() })
	return p
}

// The processor time of a process with children is what schedstat says of all
// their threads.
func TestCPUMatchesSchedstat(t *testing.T) {
	p := start(t, `i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 60 & echo ready; wait`)
	p.soft = nil // others use it, too
	if _, err := p.Line(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	got, err := p.Settled(20*time.Millisecond, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var want time.Duration
	pids := p.pids()
	for _, pid := range pids {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		for _, f := range tasks {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			ns, err := strconv.ParseInt(strings.Fields(string(b))[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			want += time.Duration(ns)
		}
	}
	if len(pids) != 2 || got != want || got < time.Millisecond {
		t.Errorf("processes %v used %v, schedstat says %v", pids, got, want)
	}
}

func TestFreezeAndThaw(t *testing.T) {
	p := start(t, `echo ready; while :; do :; done`)
	if _, err := p.Line(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	if p.Idle() {
		t.Error("a busy loop counts as idle")
	}
	if err := p.Freeze(); err != nil {
		t.Fatal(err)
	}
	a, err := p.CPU()
	if err != nil {
		t.Fatal(err)
	}
	b, err := p.Settled(50*time.Millisecond, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if soft := 10 * time.Millisecond; b-a > soft {
		t.Errorf("a stopped process used %v", b-a)
	}
	if err := p.Thaw(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); ; {
		c, err := p.CPU()
		if err != nil {
			t.Fatal(err)
		}
		if c-b > 20*time.Millisecond {
			break
		}
		if time.Now().After(end) {
			t.Fatal("a resumed process uses no processor time")
		}
		time.Sleep(time.Millisecond)
	}
}

func TestLineReportsWhatTheProcessSaid(t *testing.T) {
	p := start(t, `echo "no such thing" >&2; exit 3`)
	if _, err := p.Line(20 * time.Second); err == nil || !strings.Contains(err.Error(), "no such thing") {
		t.Errorf("%v", err)
	}
}
