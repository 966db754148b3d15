package load

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// InNamespace runs f on a thread that is in the named network namespace
// (made by "ip netns add"). Sockets that f opens stay in that namespace.
func InNamespace(name string, f func() error) error {
	ns, err := os.Open("/run/netns/" + name)
	if err != nil {
		return err
	}
	defer ns.Close()
	errc := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine, so no other
		// goroutine finds itself in the wrong namespace.
		runtime.LockOSThread()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			errc <- fmt.Errorf("enter namespace %s: %w", name, err)
			return
		}
		errc <- f()
	}()
	return <-errc
}
