package load

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a child process, with its own children, pinned to processors.
type Process struct {
	cmd  *exec.Cmd
	out  *bufio.Reader
	errs *bytes.Buffer
	name string
	soft []int // softirq threads of its processors
}

// StartProcess runs a command on the given processors ("1" or "0,1"). Its
// standard error is kept for error messages, its first 64 KiB.
func StartProcess(cpus string, argv ...string) (*Process, error) {
	args := append([]string{"-c", cpus}, argv...)
	// taskset sets the affinity and then becomes the command, so the runtime
	// of a Go peer sees the processors it has before it starts.
	cmd := exec.CommandContext(context.Background(), "taskset", args...)
	p := &Process{cmd: cmd, errs: &bytes.Buffer{}, name: filepath.Base(argv[0])}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(stdout)
	for f := range strings.SplitSeq(cpus, ",") {
		cpu, err := strconv.Atoi(f)
		if err != nil {
			return nil, fmt.Errorf("processor list %q: %w", cpus, err)
		}
		// A kernel without such threads in /proc does that work elsewhere.
		if pid, err := Ksoftirqd(cpu); err == nil {
			p.soft = append(p.soft, pid)
		}
	}
	cmd.Stderr = &capped{b: p.errs, left: 64 << 10}
	// The child goes when this process goes, whatever the reason.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	return p, nil
}

// capped keeps the first bytes and swallows the rest.
type capped struct {
	b    *bytes.Buffer
	left int
}

func (c *capped) Write(p []byte) (int, error) {
	n := min(len(p), c.left)
	c.left -= n
	c.b.Write(p[:n])
	return len(p), nil
}

// Line reads the next line of the process' standard output, within the limit.
func (p *Process) Line(limit time.Duration) (string, error) {
	type result struct {
		s   string
		err error
	}
	ch := make(chan result, 1)
	go func() {
		s, err := p.out.ReadString('\n')
		ch <- result{s, err}
	}()
	select {
	case r := <-ch:
		if r.err != nil {
			_ = p.Stop() // collects standard error, too
			return "", fmt.Errorf("%s said nothing: %w: %s", p.name, r.err, strings.TrimSpace(p.errs.String()))
		}
		return strings.TrimSpace(r.s), nil
	case <-time.After(limit):
		return "", fmt.Errorf("%s said nothing in %v", p.name, limit)
	}
}

// Discard reads and drops the rest of the process' standard output.
func (p *Process) Discard() { go func() { _, _ = io.Copy(io.Discard, p.out) }() }

// Errors returns what the process wrote to standard error; call it after [Process.Stop].
func (p *Process) Errors() string { return p.errs.String() }

// Stop ends the process and its children and waits for it: SIGTERM, and
// SIGKILL after two seconds.
func (p *Process) Stop() error {
	pids := p.pids()
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGTERM)
		_ = unix.Kill(pid, unix.SIGCONT)
	}
	timer := time.AfterFunc(2*time.Second, func() {
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	})
	defer timer.Stop()
	return p.cmd.Wait()
}

// pids returns the process and all its descendants.
func (p *Process) pids() []int { return descendants(nil, p.cmd.Process.Pid) }

func descendants(dst []int, pid int) []int {
	dst = append(dst, pid)
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // the thread is gone
		}
		for _, s := range strings.Fields(string(b)) {
			if child, err := strconv.Atoi(s); err == nil {
				dst = descendants(dst, child)
			}
		}
	}
	return dst
}

// CPU returns the processor time that the process and its children have used.
// It is the scheduler's own sum over all threads, those that ended included,
// in nanoseconds (the per-process CPU clock of clock_getcpuclockid), and on
// loopback it holds the softirqs that a send runs on its own processor. The
// kernel leaves some of these to the processor's softirq thread when others
// wait for the processor, so that thread's time is added.
func (p *Process) CPU() (time.Duration, error) {
	var sum time.Duration
	for _, pid := range p.pids() {
		var ts unix.Timespec
		clock := int32(^pid)<<3 | 2 // CPUCLOCK_SCHED of that process
		if err := unix.ClockGettime(clock, &ts); err != nil {
			return 0, fmt.Errorf("processor time of %s: %w", p.name, err)
		}
		sum += time.Duration(ts.Nano())
	}
	for _, pid := range p.soft {
		used, err := TaskCPU(pid)
		if err != nil {
			return 0, err
		}
		sum += used
	}
	return sum, nil
}

// Freeze stops every thread of the process and its children, and returns when
// the kernel shows them stopped.
func (p *Process) Freeze() error {
	pids := p.pids()
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			return fmt.Errorf("stop %s: %w", p.name, err)
		}
	}
	for range 1000 {
		n := 0
		for _, pid := range pids {
			if stopped(pid) {
				n++
			}
		}
		if n == len(pids) {
			return nil
		}
		time.Sleep(200 * time.Microsecond)
	}
	return fmt.Errorf("%s does not stop", p.name)
}

// Thaw resumes what [Process.Freeze] stopped.
func (p *Process) Thaw() error {
	for _, pid := range p.pids() {
		if err := unix.Kill(pid, unix.SIGCONT); err != nil {
			return fmt.Errorf("resume %s: %w", p.name, err)
		}
	}
	return nil
}

// Idle reports whether no thread of the process, its children, and the softirq
// threads of its processors runs or wants to: a thread that waits for its
// processor has work left, although it uses no time.
func (p *Process) Idle() bool { return !Runnable(p.pids()...) && !Runnable(p.soft...) }

// Runnable reports whether a thread of any of the processes runs or wants to.
func Runnable(pids ...int) bool {
	for _, pid := range pids {
		if states(pid, 'R') > 0 {
			return true
		}
	}
	return false
}

// states returns how many threads of a process are in a state, and -1 if
// there is no process.
func states(pid int, letter byte) int {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if len(files) == 0 {
		return -1
	}
	n := 0
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		// The name of a program may hold anything, so look behind its end.
		if i := bytes.LastIndex(b, []byte(") ")); i >= 0 && len(b) > i+2 && b[i+2] == letter {
			n++
		}
	}
	return n
}

// stopped reports whether all threads of a process are stopped.
func stopped(pid int) bool {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	return len(files) > 0 && states(pid, 'T') == len(files)
}

// Settled waits until the process has neither used nor wanted the processor for
// a while, at most the limit, and returns the time used by then.
func (p *Process) Settled(quiet, limit time.Duration) (time.Duration, error) {
	last, err := p.CPU()
	if err != nil {
		return 0, err
	}
	still := time.Now()
	for end := time.Now().Add(limit); time.Now().Before(end); {
		time.Sleep(time.Millisecond)
		now, err := p.CPU()
		if err != nil {
			return 0, err
		}
		// A few microseconds are a timer or the runtime's monitor thread.
		if now-last > 20*time.Microsecond || !p.Idle() {
			still = time.Now()
		}
		last = now
		if time.Since(still) >= quiet {
			return now, nil
		}
	}
	return last, nil
}
