package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/usher-rtc/usher/internal/bench/procs"
	"github.com/usher-rtc/usher/internal/bench/wait"
	"github.com/usher-rtc/usher/internal/parts"
)

const (
	redisAddr = "127.0.0.1:6379"
	proxyAddr = "127.0.0.1:6380" // where relays think that it is
	proxyURL  = "redis://" + proxyAddr
)

// redis is a real server behind a proxy that can be slow.
type redis struct {
	*procs.Process
	listener net.Listener
	delay    atomic.Int64
	work     sync.WaitGroup
	done     chan struct{}
}

// newRedis starts both. The server keeps nothing on disk.
func (r *runner) newRedis(ctx context.Context) (*redis, error) {
	s := &redis{done: make(chan struct{})}
	if err := s.launch(ctx); err != nil {
		return nil, err
	}
	var err error
	if s.listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", proxyAddr); err != nil {
		s.Kill()
		return nil, err
	}
	s.work.Go(s.accept)
	return s, nil
}

// launch starts the server, again if it was killed.
func (s *redis) launch(ctx context.Context) (err error) {
	if err := parts.Program("redis-server", "redis-server"); err != nil {
		return err
	}
	s.Process, err = procs.Start("redis-server", "redis-server", "--bind", "127.0.0.1", "--port", "6379",
		"--save", "", "--appendonly", "no", "--daemonize", "no", "--dir", "/")
	if err != nil {
		return err
	}
	_, err = s.Says(ctx, "eady to accept connections", startLimit)
	return err
}

func (s *redis) close() {
	close(s.done)
	_ = s.listener.Close()
	s.Kill()
	s.work.Wait()
}

func (s *redis) accept() {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.work.Go(func() { s.carry(c) })
	}
}

// carry passes on what one connection says, after the delay.
func (s *redis) carry(c net.Conn) {
	defer c.Close()
	server, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", redisAddr)
	if err != nil {
		return
	}
	defer server.Close()
	ended := make(chan struct{}, 2)
	pass := func(dst, src net.Conn, delayed bool) {
		defer func() { ended <- struct{}{} }()
		for buf := make([]byte, 64<<10); ; {
			n, err := src.Read(buf)
			if n > 0 {
				if d := time.Duration(s.delay.Load()); delayed && d > 0 {
					select {
					case <-time.After(d):
					case <-s.done:
						return
					}
				}
				if _, err := dst.Write(buf[:n]); err != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	}
	go pass(server, c, true)
	go pass(c, server, false)
	select {
	case <-ended:
	case <-s.done:
	}
	_ = c.Close()
	_ = server.Close()
	<-ended // the other one, or both
}

// command sends one command to the server itself and returns the reply: a number,
// a string, or for an array its elements in separate lines.
func command(ctx context.Context, args ...string) (string, error) {
	c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", redisAddr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	if _, err := io.WriteString(c, b.String()); err != nil {
		return "", err
	}
	return reply(bufio.NewReader(c))
}

// reply reads a reply of the Redis protocol, RESP2.
func reply(r *bufio.Reader) (string, error) {
	head, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	head = strings.TrimSuffix(head, "\r\n")
	if head == "" {
		return "", errors.New("redis: an empty line")
	}
	switch kind, rest := head[0], head[1:]; kind {
	case '+', ':':
		return rest, nil
	case '$', '*':
		n, err := strconv.Atoi(rest)
		if err != nil || n < 0 {
			return "", err
		}
		if kind == '$' {
			b := make([]byte, n+2)
			_, err := io.ReadFull(r, b)
			return string(b[:n]), err
		}
		var all []string
		for range n {
			one, err := reply(r)
			if err != nil {
				return "", err
			}
			all = append(all, one)
		}
		return strings.Join(all, "\n"), nil
	default:
		return "", fmt.Errorf("redis: %s", rest)
	}
}

// entries returns how many flows the server has.
func entries(ctx context.Context) (int, error) {
	text, err := command(ctx, "DBSIZE")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}

// holds waits until the server has an entry for every call.
func (s *redis) holds(ctx context.Context, f *fleet, limit time.Duration) error {
	want := len(f.callers) + len(f.talkers)
	return wait.Until(ctx, limit, func() error {
		n, err := entries(ctx)
		if err != nil {
			return err
		}
		if n < want {
			return fmt.Errorf("redis has %d entries, want %d", n, want)
		}
		return nil
	})
}

// falsify gives every entry a value that no relay may believe: of four kinds in
// turn, a right one of another client, one with a bit of its tag changed, one that
// another fleet has sealed, and something else altogether.
func (s *redis) falsify(ctx context.Context, foreign string) (n int, err error) {
	text, err := command(ctx, "KEYS", "*")
	if err != nil {
		return 0, err
	}
	keys := strings.Split(text, "\n")
	values := make([]string, len(keys))
	for i, k := range keys {
		if values[i], err = command(ctx, "GET", k); err != nil {
			return 0, err
		}
		if values[i] == "" {
			return 0, fmt.Errorf("redis: no value of %s", k)
		}
	}
	for i, k := range keys {
		bad := ""
		switch i % 4 {
		case 0:
			bad = values[(i+1)%len(values)]
		case 1:
			b := []byte(values[i])
			b[len(b)-1] ^= 1
			bad = string(b)
		case 2:
			bad = foreign
		default:
			bad = strings.Repeat("\x00nonsense", 1000)
		}
		if _, err := command(ctx, "SET", k, bad); err != nil {
			return i, err
		}
	}
	return len(keys), nil
}
