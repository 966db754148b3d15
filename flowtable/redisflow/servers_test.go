//go:build unix

package redisflow

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/usher-rtc/usher/internal/parts"
)

// Real servers: processes on free loopback ports, each in a directory of its own.

// server is a redis-server process, or a Sentinel.
type server struct {
	t    testing.TB
	bin  string
	addr string
	port int
	bus  int // of a cluster node
	args []string
	cmd  *exec.Cmd
	done chan struct{}
}

// flavours are the programs that speak the protocol; they differ in age and in who
// maintains them.
var flavours = []string{"redis-server", "valkey-server"}

// binary is the program for tests that need one of any flavour.
func binary(t testing.TB) string {
	t.Helper()
	for _, name := range flavours {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	parts.Need(t, errors.New("no redis-server: install it (Debian: apt-get install redis-server)"))
	return ""
}

// each runs a test with every flavour. Not every Debian has Valkey, so one is enough.
func each(t *testing.T, test func(t *testing.T, bin string)) {
	t.Helper()
	binary(t)
	for _, name := range flavours {
		t.Run(name, func(t *testing.T) {
			path, err := exec.LookPath(name)
			if err != nil {
				t.Skipf("no %s: install Debian's %[1]s (in bookworm, from backports)", name)
			}
			test(t, path)
		})
	}
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// start starts a server. Another process may take the free port first, so it tries
// again.
func start(t testing.TB, args ...string) *server {
	t.Helper()
	return startAs(t, binary(t), args...)
}

// startAs is start with a given program.
func startAs(t testing.TB, bin string, args ...string) *server {
	t.Helper()
	for range 5 {
		s := &server{t: t, bin: bin, port: freePort(t)}
		s.args = append([]string{
			"--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--dir", t.TempDir(),
			"--save", "", "--appendonly", "no",
		}, args...)
		if s.try() {
			return s
		}
	}
	t.Fatalf("%s does not start", bin)
	return nil
}

func startNode(t testing.TB, bin string) *server {
	t.Helper()
	for range 5 {
		s := &server{t: t, bin: bin, port: freePort(t), bus: freePort(t)}
		s.args = []string{
			"--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--dir", t.TempDir(),
			"--save", "", "--appendonly", "no",
			"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(s.bus),
			"--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no",
		}
		if s.try() {
			return s
		}
	}
	t.Fatal("no cluster node starts")
	return nil
}

// startSentinel starts a Sentinel that watches a master under the name "flows".
func startSentinel(t testing.TB, master *server) *server {
	t.Helper()
	file := filepath.Join(t.TempDir(), "sentinel.conf")
	for range 5 {
		s := &server{t: t, bin: binary(t), port: freePort(t)}
		conf := fmt.Sprintf(`port %d
bind 127.0.0.1
sentinel monitor flows 127.0.0.1 %d 1
sentinel down-after-milliseconds flows 500
sentinel failover-timeout flows 1000
`, s.port, master.port)
		if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
			t.Fatal(err)
		}
		s.args = []string{file, "--sentinel"}
		if s.try() {
			return s
		}
	}
	t.Fatal("no Sentinel starts")
	return nil
}

// try starts the process and waits until it answers.
func (s *server) try() bool {
	s.addr = fmt.Sprintf("127.0.0.1:%d", s.port)
	s.cmd = exec.Command(s.bin, s.args...)
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	cmd, done := s.cmd, make(chan struct{})
	s.done = done
	go func() {
		_ = cmd.Wait() // killed, most likely
		close(done)
	}()
	s.t.Cleanup(func() { kill(cmd, done) })
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		select {
		case <-done:
			return false
		default:
		}
		if s.command("PING") == "PONG" {
			return true
		}
		time.Sleep(5 * time.Millisecond)
	}
	kill(cmd, done)
	return false
}

func kill(cmd *exec.Cmd, done chan struct{}) {
	_ = cmd.Process.Kill() // it may have ended
	<-done
}

// kill ends the process at once.
func (s *server) kill() { kill(s.cmd, s.done) }

// restart starts the process again, at the same address and without data.
func (s *server) restart() {
	s.t.Helper()
	if !s.try() {
		s.t.Fatal("the server does not start again")
	}
}

// hang stops the process: its socket accepts, and nothing answers.
func (s *server) hang() { s.signal(syscall.SIGSTOP) }

// resume ends hang.
func (s *server) resume() { s.signal(syscall.SIGCONT) }

func (s *server) signal(sig os.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// command runs a command over a connection of its own and returns the answer as
// text, or "".
func (s *server) command(args ...any) string {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	c := redis.NewClient(&redis.Options{Addr: s.addr, MaxRetries: -1, ContextTimeoutEnabled: true, DialerRetries: 1})
	defer c.Close()
	answer, err := c.Do(ctx, args...).Result()
	if err != nil {
		return ""
	}
	return fmt.Sprint(answer)
}

// must is command for commands that answer OK.
func (s *server) must(args ...any) {
	s.t.Helper()
	if got := s.command(args...); got != "OK" {
		s.t.Fatalf("%v: %q", args, got)
	}
}

func eventually(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for start := time.Now(); !ok(); {
		if time.Since(start) > limit {
			t.Fatalf("not within %v: %s", limit, what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// startCluster starts three masters that share the slots.
func startCluster(t testing.TB, bin string) []*server {
	t.Helper()
	nodes := []*server{startNode(t, bin), startNode(t, bin), startNode(t, bin)}
	for i, n := range nodes {
		n.must("CLUSTER", "ADDSLOTSRANGE", i*16384/3, (i+1)*16384/3-1)
		if i > 0 {
			n.must("CLUSTER", "MEET", "127.0.0.1", nodes[0].port, nodes[0].bus)
		}
	}
	eventually(t, 30*time.Second, "the cluster is whole", func() bool {
		for _, n := range nodes {
			info := n.command("CLUSTER", "INFO")
			if !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, "cluster_slots_ok:16384") {
				return false
			}
		}
		return true
	})
	return nodes
}

func addrs(servers []*server) (a []string) {
	for _, s := range servers {
		a = append(a, s.addr)
	}
	return a
}
