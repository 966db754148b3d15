package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/usher-rtc/usher/internal/bench/hosts"
	"github.com/usher-rtc/usher/internal/bench/web"
)

// startLimit is how long a process may take to say its first line.
const startLimit = 20 * time.Second

// site is the processes of a run.
type site struct {
	host, stock string // addresses that take offers at /calls
	children    []*child
}

// child is a process of this program.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer
	out   *bufio.Reader
}

// newSite starts relay, service and Host, and the stock Pion peer beside them.
func newSite(service string) (s *site, err error) {
	key, err := hosts.NewKey()
	if err != nil {
		return nil, err
	}
	s = &site{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
			s = nil
		}
	}()
	start := func(lines int, args ...string) ([]string, error) { return s.start(key, lines, args...) }
	roles := func(r hosts.Role) ([]string, error) {
		args, err := r.Args()
		if err != nil {
			return nil, err
		}
		n := 1
		if r.Kind == "relay" {
			n = 2
		}
		return start(n, args...)
	}
	stock, err := roles(hosts.Role{Kind: "stock"})
	if err != nil {
		return s, err
	}
	relay, err := roles(hosts.Role{Kind: "relay"})
	if err != nil {
		return s, err
	}
	if service == "" {
		own, err := start(1, roleService)
		if err != nil {
			return s, err
		}
		service = "ws://" + own[0]
	}
	host, err := start(1, roleHost, relay[1], service)
	if err != nil {
		return s, err
	}
	s.stock, s.host = "http://"+stock[0], "http://"+host[0]
	return s, nil
}

// start starts a process and returns its first lines.
func (s *site) start(key string, lines int, args ...string) (out []string, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(context.Background(), self, args...)
	cmd.Env = append(os.Environ(), hosts.KeyEnv+"="+key)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, stdin: stdin, out: bufio.NewReader(stdout)}
	s.children = append(s.children, c)
	limit := time.AfterFunc(startLimit, func() { _ = cmd.Process.Kill() })
	defer limit.Stop()
	for range lines {
		line, err := c.out.ReadString('\n')
		if err != nil {
			return nil, fmt.Errorf("%s said nothing: %w", strings.Join(args, " "), err)
		}
		out = append(out, strings.TrimSpace(line))
	}
	return out, nil
}

// close ends the processes, the last one first.
func (s *site) close() error {
	var err error
	for i := len(s.children) - 1; i >= 0; i-- {
		c := s.children[i]
		_ = c.stdin.Close()
		_ = c.cmd.Process.Signal(syscall.SIGTERM) // for those that do not watch it
		limit := time.AfterFunc(startLimit, func() { _ = c.cmd.Process.Kill() })
		_, _ = io.Copy(io.Discard, c.out)
		werr := c.cmd.Wait()
		limit.Stop()
		var exit *exec.ExitError
		if errors.As(werr, &exit) && !exit.Exited() {
			werr = nil // ended by our signal
		}
		err = errors.Join(err, werr)
	}
	return err
}

func (s *site) usage(ctx context.Context) (u usage, err error) {
	err = web.Get(ctx, http.DefaultClient, s.host+"/usage", &u)
	return u, err
}

// post sends an offer and returns the answer.
func post(ctx context.Context, server, offer string) (answer string, err error) {
	answer, _, err = web.Offer(ctx, http.DefaultClient, server+"/calls", offer, nil)
	return answer, err
}
