package procs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/usher-rtc/usher/internal/parts"
)

// insideEnv tells the process that it is in the namespace.
const insideEnv = "USHER_BENCH_INSIDE"

// OwnNetwork runs this command again, with the same arguments, inside a network
// namespace of its own that has a loopback interface and nothing else, and returns
// false when it has ended. In that second process it returns true at once.
//
//	if inside, err := procs.OwnNetwork(ctx); !inside {
//		return err
//	}
//
// The second process is told to end when ctx ends or the thread of the first does
// on which this was called, which is to be locked.
func OwnNetwork(ctx context.Context) (inside bool, err error) {
	if os.Getenv(insideEnv) != "" {
		err := loopback(ctx)
		return err == nil, err
	}
	if err := parts.Root("a network namespace"); err != nil {
		return false, err
	}
	if err := parts.Program("ip", "iproute2"); err != nil {
		return false, err
	}
	exe, err := os.Executable()
	if err != nil {
		return false, err
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), exe, os.Args[1:]...) // it is told to end below
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGTERM, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return false, fmt.Errorf("in a network namespace: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer stop()
	return false, cmd.Wait()
}

// loopback makes the new namespace's only interface one that everything uses.
// Firefox looks for a default route before it uses any.
func loopback(ctx context.Context) error {
	for _, args := range [][]string{
		{"link", "set", "lo", "up"}, {"route", "add", "default", "dev", "lo", "src", "127.0.0.1"},
	} {
		if out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %q: %w: %s", args, err, out)
		}
	}
	return nil
}
