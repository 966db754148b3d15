package main

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

// process is a program of the fleet. Its output is kept line by line, with the
// time of each.
type process struct {
	name   string
	cmd    *exec.Cmd
	exited chan struct{}

	mu    sync.Mutex
	lines []line
	news  chan struct{} // closed and replaced with each line
}

type line struct {
	at   int64
	text string
}

// maxLines is how many lines of output are kept: more than a program that says a
// line a minute for each reason would write.
const maxLines = 2000

// start starts a program. It ends with the thread that this is called on, which
// is the main one.
func start(name, path string, args ...string) (*process, error) {
	p := &process{name: name, exited: make(chan struct{}), news: make(chan struct{})}
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

func (p *process) read(r io.ReadCloser) {
	defer r.Close()
	for in := bufio.NewScanner(r); in.Scan(); {
		p.mu.Lock()
		if len(p.lines) < maxLines {
			p.lines = append(p.lines, line{meter.Now(), in.Text()})
		}
		close(p.news)
		p.news = make(chan struct{})
		p.mu.Unlock()
	}
}

// since returns the lines that were written at or after a time.
func (p *process) since(at int64) (out []line) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lines {
		if l.at >= at {
			out = append(out, l)
		}
	}
	return out
}

// says waits for a line with a text and returns its time.
func (p *process) says(ctx context.Context, text string, limit time.Duration) (int64, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		p.mu.Lock()
		news := p.news
		for _, l := range p.lines {
			if strings.Contains(l.text, text) {
				p.mu.Unlock()
				return l.at, nil
			}
		}
		p.mu.Unlock()
		select {
		case <-news:
		case <-p.exited:
			return 0, fmt.Errorf("%s ended (%v): %s", p.name, p.cmd.ProcessState, p.output())
		case <-timer.C:
			return 0, fmt.Errorf("%s did not say %q in %v: %s", p.name, text, limit, p.output())
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

func (p *process) output() string {
	var b strings.Builder
	for _, l := range p.since(0) {
		b.WriteString("\n\t" + l.text)
	}
	return b.String()
}

func (p *process) signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// kill ends the process as a crash of it would, and returns when it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// ended waits for the process to end by itself and reports its status.
func (p *process) ended(limit time.Duration) error {
	select {
	case <-p.exited:
		if !p.cmd.ProcessState.Success() {
			return fmt.Errorf("%s: %v: %s", p.name, p.cmd.ProcessState, p.output())
		}
		return nil
	case <-time.After(limit):
		return fmt.Errorf("%s has not ended in %v", p.name, limit)
	}
}

// residentBytes returns the memory that the process uses.
func (p *process) residentBytes() (int64, error) {
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
