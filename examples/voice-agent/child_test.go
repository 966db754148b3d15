package main

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/usher-rtc/usher/transceiver/bridge/bridgetest"
)

// TestTheServiceIsStartedAgain kills the service's process and finds another.
func TestTheServiceIsStartedAgain(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c, err := startChild(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel()
		<-c.done
		wait, cancel := context.WithCancel(context.Background())
		cancel()
		if target, err := c.target(wait, nil, 0); err == nil {
			t.Errorf("after the end there is still %q", target.URL)
		}
	}()
	connect := func() (url string, pid int) {
		t.Helper()
		wait, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		target, err := c.target(wait, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		return target.URL, dial(t, bridgetest.Service{URL: target.URL}).next("hello").PID
	}
	first, pid := connect()
	if pid == os.Getpid() {
		t.Fatal("the service is no process of its own")
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Kill(); err != nil {
		t.Fatal(err)
	}
	wait, stop := context.WithTimeout(ctx, patience)
	defer stop()
	for {
		target, err := c.target(wait, nil, 0) // the dead one's for a moment, then none, then the next one's
		if err != nil {
			t.Fatal(err)
		}
		if target.URL != first {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if _, again := connect(); again == pid {
		t.Errorf("the service that was killed answers: pid %d", again)
	}
}
