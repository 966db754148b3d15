package e2e

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/e2e/tail"
	"github.com/usher-rtc/usher/internal/parts"
)

var binaries struct {
	sync.Mutex
	dir   string
	built map[string]string
}

// TestMain removes the binaries that the tests built.
func TestMain(m *testing.M) {
	code := m.Run()
	if binaries.dir != "" {
		_ = os.RemoveAll(binaries.dir)
	}
	os.Exit(code)
}

// build compiles one of the example programs once, with the race detector where
// there is the C compiler that it needs.
func build(t *testing.T, name string) string {
	t.Helper()
	binaries.Lock()
	defer binaries.Unlock()
	if path := binaries.built[name]; path != "" {
		return path
	}
	if binaries.dir == "" {
		dir, err := os.MkdirTemp("", "usher-e2e-")
		if err != nil {
			t.Fatal(err)
		}
		binaries.dir, binaries.built = dir, make(map[string]string)
	}
	path := filepath.Join(binaries.dir, name)
	args := []string{"build", "-o", path}
	if cgo, _ := exec.CommandContext(t.Context(), "go", "env", "CGO_ENABLED").Output(); string(cgo) != "0\n" {
		args = append(args, "-race")
	} else if parts.Required() {
		t.Fatal("no C compiler for the race detector: install it (Debian: apt-get install gcc)")
	}
	cmd := exec.CommandContext(t.Context(), "go", append(args, "./"+name)...)
	cmd.Dir = filepath.Join("..", "..", "examples")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build %s: %v\n%s", name, err, out)
	}
	binaries.built[name] = path
	return path
}

// process is a program that a test started.
type process struct {
	t      *testing.T
	name   string
	cmd    *exec.Cmd
	output *tail.Buffer
	exited chan struct{}
}

// run starts an example program in the network; the test's cleanup ends it with SIGTERM and
// fails the test if it crashed, raced or did not end in time.
func (n *network) run(t *testing.T, name string, args ...string) *process {
	t.Helper()
	return n.runCommand(t, name, exec.CommandContext(context.WithoutCancel(t.Context()), build(t, name), args...)) // stop ends it
}

// runCommand is run for a command that a test has made.
func (n *network) runCommand(t *testing.T, name string, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, name: name, cmd: cmd, output: new(tail.Buffer), exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	if err := n.start(p.cmd); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.stop()
		if t.Failed() {
			t.Logf("%s (pid %d, %v) said:\n%s", name, p.cmd.Process.Pid, p.cmd.ProcessState, p.output)
		}
	})
	return p
}

// stop ends the process with SIGTERM, as an orchestrator does, and checks its
// exit status. A second call does nothing.
func (p *process) stop() {
	select {
	case <-p.exited:
		if p.cmd.ProcessState.Success() || p.killed() {
			return
		}
		p.t.Errorf("%s ended by itself: %v", p.name, p.cmd.ProcessState)
		return
	default:
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
		if !p.cmd.ProcessState.Success() {
			p.t.Errorf("%s after SIGTERM: %v", p.name, p.cmd.ProcessState)
		}
	case <-time.After(20 * time.Second):
		p.t.Errorf("%s did not end within 20 s of SIGTERM", p.name)
		p.kill()
	}
}

// kill ends the process as a crash of the machine would.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

func (p *process) killed() bool {
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// runToEnd runs a program that is expected to end by itself, and returns its
// exit status and what it wrote.
func runToEnd(t *testing.T, ctx context.Context, stdin, name string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	cmd := exec.CommandContext(ctx, build(t, name), args...)
	var out, errOut tail.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if stdin != "" {
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			defer in.Close()
			_, _ = in.Write([]byte(stdin))
		}()
	}
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v", name, err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errOut.String()
}
