package procs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/usher-rtc/usher/internal/meter"
)

// Process is a program that was started. Its output is kept line by line. Its
// methods may be called from several goroutines.
type Process struct {
	Name   string // in errors
	cmd    *exec.Cmd
	exited chan struct{}

	mu    sync.Mutex
	lines []Line
	news  chan struct{} // closed and replaced with each line
}

// Line is a line that a program wrote.
type Line struct {
	At   int64 // of meter.Now
	Text string
}

// maxLines is how many lines of output are kept: more than a program that says a
// line a minute for each reason would write.
const maxLines = 2000

// Start starts a program. It is in the network namespace of the thread that this
// is called on, and ends with that thread: one that is locked and lives on.
func Start(name, path string, args ...string) (*Process, error) {
	p := &Process{Name: name, exited: make(chan struct{}), news: make(chan struct{})}
	p.cmd = exec.CommandContext(context.Background(), path, args...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	p.cmd.Stdout, p.cmd.Stderr = w, w
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), r.Close())
	}
	go p.read(r)
	go func() {
		_ = p.cmd.Wait() // its state is in p.cmd.ProcessState
		close(p.exited)
	}()
	return p, nil
}

func (p *Process) read(r io.ReadCloser) {
	defer r.Close()
	for in := bufio.NewScanner(r); in.Scan(); {
		p.mu.Lock()
		if len(p.lines) < maxLines {
			p.lines = append(p.lines, Line{meter.Now(), in.Text()})
		}
		close(p.news)
		p.news = make(chan struct{})
		p.mu.Unlock()
	}
}

// Since returns the lines that were written at or after a time of meter.Now.
func (p *Process) Since(at int64) (lines []Line) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lines {
		if l.At >= at {
			lines = append(lines, l)
		}
	}
	return lines
}

// Says waits for a line with a text and returns its time. A program that ends
// before, or does not say it within the limit, is an error.
func (p *Process) Says(ctx context.Context, text string, limit time.Duration) (at int64, err error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		p.mu.Lock()
		news := p.news
		for _, l := range p.lines {
			if strings.Contains(l.Text, text) {
				p.mu.Unlock()
				return l.At, nil
			}
		}
		p.mu.Unlock()
		select {
		case <-news:
		case <-p.exited:
			return 0, fmt.Errorf("%s ended (%v): %s", p.Name, p.cmd.ProcessState, p.Output())
		case <-timer.C:
			return 0, fmt.Errorf("%s did not say %q in %v: %s", p.Name, text, limit, p.Output())
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// Output returns what the process has said, each line after a line feed and a tab.
func (p *Process) Output() string {
	var b strings.Builder
	for _, l := range p.Since(0) {
		b.WriteString("\n\t" + l.Text)
	}
	return b.String()
}

// Signal sends a signal.
func (p *Process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Kill ends the process as a crash of it would, and returns when it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // if it has ended, that is what is wanted
	<-p.exited
}

// Ended waits for the process to end by itself, with success.
func (p *Process) Ended(limit time.Duration) error {
	select {
	case <-p.exited:
		return p.status()
	case <-time.After(limit):
		return fmt.Errorf("%s has not ended in %v", p.Name, limit)
	}
}

// status returns an error if the process has ended without success.
func (p *Process) status() error {
	if p.cmd.ProcessState.Success() {
		return nil
	}
	return fmt.Errorf("%s: %v: %s", p.Name, p.cmd.ProcessState, p.Output())
}

// Finish kills the process if it has not ended. If it has, in another way than
// with success or by Kill, that is an error.
func (p *Process) Finish() error {
	select {
	case <-p.exited:
	default:
		p.Kill()
		return nil
	}
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == syscall.SIGKILL {
		return nil
	}
	return p.status()
}

// ResidentBytes returns the memory that the process uses.
func (p *Process) ResidentBytes() (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	var total, resident int64
	if _, err := fmt.Sscan(string(b), &total, &resident); err != nil {
		return 0, err
	}
	return resident * int64(os.Getpagesize()), nil
}
