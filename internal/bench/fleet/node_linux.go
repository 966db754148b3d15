package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/usher-rtc/usher/internal/e2e/netns"
	"github.com/usher-rtc/usher/internal/meter"
)

// node is a host: a network namespace and a thread that lives in it. What the
// thread opens and starts is there, and the processes that it starts end with it.
type node struct {
	addr netip.Addr
	ns   *netns.Namespace
	jobs chan func()
	tid  int
	web  *http.Client // of those who are there
	done chan struct{}
}

func newNode(addr netip.Addr) (*node, error) {
	ns, err := netns.New()
	if err != nil {
		return nil, err
	}
	n := &node{addr: addr, ns: ns, jobs: make(chan func()), done: make(chan struct{})}
	// Every caller connects anew, as if all were different people; and no connection
	// is left to a server that has been restarted.
	n.web = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: n.dial, DisableKeepAlives: true}}
	entered := make(chan error, 1)
	go func() {
		defer close(n.done)
		err := ns.Do(func() error {
			n.tid = unix.Gettid()
			entered <- nil
			for job := range n.jobs {
				job()
			}
			return nil
		})
		if err != nil {
			entered <- err
		}
	}()
	if err := <-entered; err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return n, nil
}

// do runs f on the node's thread. f must do its work on its own goroutine and not
// call do.
func (n *node) do(f func() error) error {
	done := make(chan error, 1)
	n.jobs <- func() { done <- f() }
	return <-done
}

func (n *node) dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	err = n.do(func() error { c, err = new(net.Dialer).DialContext(ctx, network, address); return err })
	return c, err
}

// ip runs ip(8) on the node, for each line of commands.
func (n *node) ip(commands string) error { return n.feed(commands, "ip", "-batch", "-") }

// nft replaces the node's nftables rules.
func (n *node) nft(rules string) error { return n.feed("flush ruleset\n"+rules, "nft", "-f", "-") }

func (n *node) feed(input, program string, args ...string) error {
	return n.do(func() error {
		cmd := exec.CommandContext(context.Background(), program, args...)
		cmd.Stdin = strings.NewReader(input)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s on %v: %w: %s", program, n.addr, err, out)
		}
		return nil
	})
}

// sysctl writes kernel parameters of the node's network, such as
// "ipv4/ip_forward=1".
func (n *node) sysctl(settings ...string) error {
	return n.do(func() error {
		for _, s := range settings {
			name, value, _ := strings.Cut(s, "=")
			if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0o600); err != nil {
				return err
			}
		}
		return nil
	})
}

// close ends the node's thread and the processes that it started.
func (n *node) close() {
	close(n.jobs)
	<-n.done
	_ = n.ns.Close()
}

// process is a program on a node.
type process struct {
	name   string
	cmd    *exec.Cmd
	exited chan struct{}

	mu    sync.Mutex
	lines []line
	news  chan struct{} // closed and replaced with each line
}

type line struct {
	at   int64 // of meter.Now
	text string
}

// start starts a program on the node and waits until it says that it is ready. up
// is when it did.
func (n *node) start(ctx context.Context, name, ready, path string, args ...string) (p *process, up int64, err error) {
	p = &process{name: name, exited: make(chan struct{}), news: make(chan struct{})}
	p.cmd = exec.CommandContext(context.Background(), path, args...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, 0, err
	}
	p.cmd.Stdout, p.cmd.Stderr = w, w
	err = n.do(p.cmd.Start)
	_ = w.Close()
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("start %s: %w", name, err), r.Close())
	}
	go p.read(r)
	go func() {
		_ = p.cmd.Wait() // its state is in p.cmd.ProcessState
		close(p.exited)
	}()
	up, err = p.says(ctx, ready)
	return p, up, err
}

// maxLines is how many lines of output are kept.
const maxLines = 500

func (p *process) read(r *os.File) {
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

// says waits for a line with a text.
func (p *process) says(ctx context.Context, text string) (at int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
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
		case <-ctx.Done():
			return 0, fmt.Errorf("%s did not say %q: %w: %s", p.name, text, ctx.Err(), p.output())
		}
	}
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var b strings.Builder
	for _, l := range p.lines {
		b.WriteString("\n\t" + l.text)
	}
	return b.String()
}

// kill ends the process as a crash would, and returns when it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// ended waits for the process to end by itself, with success.
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
