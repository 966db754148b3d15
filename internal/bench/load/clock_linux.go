package load

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Now returns CLOCK_REALTIME in nanoseconds, the clock of [Sink.Stamp].
func Now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME, &ts); err != nil {
		return time.Now().UnixNano()
	}
	return ts.Nano()
}

// ThreadCPU returns the processor time of the calling thread. Lock the
// goroutine to its thread first.
func ThreadCPU() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0, err
	}
	return time.Duration(ts.Nano()), nil
}

// PinProcess restricts all threads of this process, and those that they will
// make, to one processor.
func PinProcess(cpu int) error {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	var set unix.CPUSet
	set.Set(cpu)
	for _, t := range tasks {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		if err := unix.SchedSetaffinity(tid, &set); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("pin to processor %d: %w", cpu, err)
		}
	}
	return nil
}

// Ksoftirqd returns the process id of a processor's softirq thread.
func Ksoftirqd(cpu int) (int, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return 0, err
	}
	want := fmt.Sprintf("ksoftirqd/%d\n", cpu)
	for _, f := range dirs {
		b, err := os.ReadFile(f)
		if err == nil && string(b) == want {
			return strconv.Atoi(filepath.Base(filepath.Dir(f)))
		}
	}
	return 0, fmt.Errorf("no softirq thread of processor %d in /proc", cpu)
}

// TaskCPU returns the processor time of one thread, from its schedstat.
func TaskCPU(tid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", tid))
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(b), " ")
	ns, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("schedstat of %d: %w", tid, err)
	}
	return time.Duration(ns), nil
}
