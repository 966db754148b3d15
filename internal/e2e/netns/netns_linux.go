package netns

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// Namespace is a network namespace. Its methods may be called concurrently.
type Namespace struct {
	ns *os.File
}

// Available reports what is missing for New; nil means nothing.
func Available() error {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces need root: run the tests with sudo or in a container")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return errors.New("no ip: install iproute2 (Debian: apt-get install iproute2)")
	}
	n, err := New()
	if err != nil {
		return err
	}
	return n.Close()
}

// New makes a namespace whose loopback interface is up.
func New() (*Namespace, error) {
	n := new(Namespace)
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("netns: no network namespace: %w", err)
		}
		var err error
		n.ns, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := n.IP("link", "set", "lo", "up"); err != nil {
		_ = n.Close()
		return nil, err
	}
	return n, nil
}

// Do runs f inside the namespace. Sockets that f opens and processes that it
// starts stay there afterwards. f must do its work on its own goroutine.
func (n *Namespace) Do(f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(n.ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("netns: enter: %w", err)
		}
		return f()
	})
}

// onThread runs f on an OS thread that ends with it. Changing a thread's
// namespace back can fail half-way; a thread that is thrown away cannot leak
// into other goroutines.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the runtime ends the thread
		done <- f()
	}()
	return <-done
}

// IP runs ip(8) inside the namespace.
func (n *Namespace) IP(args ...string) error {
	return n.Do(func() error {
		out, err := exec.CommandContext(context.Background(), "ip", args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("ip %q: %w: %s", args, err, out)
		}
		return nil
	})
}

// Close lets go of the namespace; it lives on while processes or sockets in it
// do.
func (n *Namespace) Close() error { return n.ns.Close() }
