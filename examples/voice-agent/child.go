package main

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/usher-rtc/usher/transceiver"
	"github.com/usher-rtc/usher/transceiver/bridge"
)

// restartAfter is how long a dead service stays dead, so that one that cannot
// start does not keep a machine busy.
const restartAfter = 250 * time.Millisecond

// child is the service as a process of its own, which is started again whenever
// it ends.
type child struct {
	url  chan string // holds the address while the service is there
	done chan struct{}
}

// startChild starts the service. It lives until ctx is done; wait for done.
func startChild(ctx context.Context) (*child, error) {
	c := &child{url: make(chan string, 1), done: make(chan struct{})}
	process, err := c.start(ctx)
	if err != nil {
		return nil, err
	}
	go c.keep(ctx, process)
	return c, nil
}

// start returns once the service listens.
func (c *child) start(ctx context.Context) (*exec.Cmd, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	process := exec.CommandContext(ctx, program, "service", "-listen", "127.0.0.1:0", "-tied")
	process.Stderr = os.Stderr
	stdin, err := process.StdinPipe()
	if err != nil {
		return nil, err
	}
	process.Cancel, process.WaitDelay = stdin.Close, 2*time.Second // -tied
	stdout, err := process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := process.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		_ = process.Wait() // its state says more
		return nil, fmt.Errorf("the service ended before it was ready: %v", process.ProcessState)
	}
	c.url <- strings.TrimSpace(line)
	slog.Info("service", "pid", process.Process.Pid, "url", strings.TrimSpace(line))
	return process, nil
}

func (c *child) keep(ctx context.Context, process *exec.Cmd) {
	defer close(c.done)
	for {
		if process != nil {
			err := process.Wait()
			<-c.url
			if ctx.Err() != nil {
				return
			}
			slog.Warn("the service has ended and is started again", "pid", process.Process.Pid, "err", err)
		}
		select {
		case <-time.After(restartAfter):
		case <-ctx.Done():
			return
		}
		var err error
		if process, err = c.start(ctx); err != nil {
			slog.Warn("the service cannot be started", "err", err)
		}
	}
}

// target tells a session where the service is, and waits while it is nowhere.
// It is a bridge.Config.Select.
func (c *child) target(ctx context.Context, _ *transceiver.Session, _ int) (bridge.Target, error) {
	select {
	case url := <-c.url:
		c.url <- url
		return bridge.Target{URL: url}, nil
	case <-ctx.Done():
		return bridge.Target{}, fmt.Errorf("the service is not there: %w", ctx.Err())
	}
}
