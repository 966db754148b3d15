package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/usher-rtc/usher/internal/bench/procs"
	"github.com/usher-rtc/usher/internal/e2e/netns"
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

// start starts a program on the node and waits until it says that it is ready. up
// is when it did.
func (n *node) start(ctx context.Context, name, ready, path string, args ...string) (p *procs.Process, up int64, err error) {
	err = n.do(func() error { p, err = procs.Start(name, path, args...); return err })
	if err != nil {
		return nil, 0, err
	}
	up, err = p.Says(ctx, ready, startLimit)
	return p, up, err
}
