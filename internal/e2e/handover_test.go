package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/usher-rtc/usher/internal/e2e/netns"
	"github.com/usher-rtc/usher/internal/e2e/tail"
)

// upgrade starts another relayd with the flags of the first, and waits until that
// one has ended by itself.
func (d *deployment) upgrade(t *testing.T) {
	t.Helper()
	old := d.relay
	d.relay = d.run(t, "relayd", old.cmd.Args[1:]...)
	select {
	case <-old.exited:
		if !old.cmd.ProcessState.Success() {
			t.Fatalf("the old relayd: %v\n%s", old.cmd.ProcessState, old.output)
		}
	case <-d.relay.exited:
		t.Fatalf("the new relayd has ended: %s", d.relay.output)
	case <-time.After(15 * time.Second):
		t.Fatal("the old relayd does not end")
	}
}

// handoverFleet is fleet with a relayd that can be upgraded.
func handoverFleet(t *testing.T) *deployment {
	t.Helper()
	ctx := testContext(t, 2*time.Minute, fleetPrograms...)
	path, codec := keyFile(t, ctx)
	d := &deployment{network: loopbackNetwork(t), codec: codec, relayURL: "http://127.0.0.1:8081", hosts: []string{"http://127.0.0.1:8091"}}
	d.relay = d.run(t, "relayd", "-listen", "127.0.0.1:3478", "-trunk", "127.0.0.1:4000", "-http", "127.0.0.1:8081",
		"-keys", path, "-allow-upstream", "127.0.0.1", "-workers", "2", "-handover", filepath.Join(t.TempDir(), "relay.sock"))
	d.transceivers = []*process{d.run(t, "transceiverd", "-trunk", "127.0.0.1:9001", "-http", "127.0.0.1:8091",
		"-ingress", "127.0.0.1:3478", "-allow-relay", "127.0.0.1", "-keys", path)}
	d.waitReady(t, ctx)
	return d
}

// TestRelaydUpgradesUnderACall replaces the relayd process three times while a call
// runs through it. Not one packet may be lost, and health must not show a gap.
func TestRelaydUpgradesUnderACall(t *testing.T) {
	need(t, netns.Available())
	d := handoverFleet(t)
	ctx := testContext(t, time.Minute)
	call := pionCall(t, ctx, d.network, d.hosts[0])
	const packets, upgrades = 250, 3
	returned := make(chan int, 1)
	go func() { returned <- call.echo(t, 0, packets) }()
	for range upgrades {
		time.Sleep(time.Second) // the interval, not a wait for something
		d.upgrade(t)
		if err := d.get(ctx, d.relayURL+"/healthz", nil); err != nil {
			t.Error(err)
		}
	}
	got := <-returned
	t.Logf("%d of %d packets came back across %d upgrades", got, packets, upgrades)
	if got != packets {
		t.Errorf("%d packets were lost", packets-got)
	}
	d.checkOwner(t, call.ufrag, d.sessions(t, ctx))
	if n := d.flows(t, ctx); n != 1 {
		t.Errorf("the relay has %d flows, want 1", n)
	}
}

// TestRelaydGoesOnWithoutAnHeir starts a successor that does not fit, and a relayd
// after a crash at the same path.
func TestRelaydGoesOnWithoutAnHeir(t *testing.T) {
	need(t, netns.Available())
	d := handoverFleet(t)
	ctx := testContext(t, time.Minute)
	call := pionCall(t, ctx, d.network, d.hosts[0])
	returned := make(chan int, 1)
	const packets = 150
	go func() { returned <- call.echo(t, 0, packets) }()

	args := append([]string(nil), d.relay.cmd.Args[1:]...)
	misfit := append(append([]string(nil), args...), "-cluster", "9")
	cmd := exec.CommandContext(ctx, build(t, "relayd"), misfit...)
	out := new(tail.Buffer)
	cmd.Stdout, cmd.Stderr = out, out
	if err := d.start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(out.String(), "Cluster: ") || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("a relayd of another cluster: %v, %s", err, out)
	}
	if got := <-returned; got != packets {
		t.Errorf("%d of %d packets came back", got, packets)
	}
	d.upgrade(t)
	d.relay.kill()
	d.relay = d.run(t, "relayd", args...)
	d.waitReady(t, ctx)
	if got := call.echo(t, 1000, 50); got < 45 {
		t.Errorf("%d of 50 packets came back after a crash and a start at the same path", got)
	}
}

// TestRelaydTakesSystemdSockets starts relayd as systemd does: with sockets that are
// open, and the variables of sd_listen_fds(3).
func TestRelaydTakesSystemdSockets(t *testing.T) {
	need(t, netns.Available())
	ctx := testContext(t, time.Minute, fleetPrograms...)
	path, codec := keyFile(t, ctx)
	d := &deployment{network: loopbackNetwork(t), codec: codec, relayURL: "http://127.0.0.1:8081", hosts: []string{"http://127.0.0.1:8091"}}
	var files []*os.File
	for range 2 {
		files = append(files, d.reusable(t, "127.0.0.1:3478"))
	}
	flags := []string{"-listen", "127.0.0.1:3478", "-trunk", "127.0.0.1:4000", "-http", "127.0.0.1:8081",
		"-keys", path, "-allow-upstream", "127.0.0.1", "-workers", "2"}
	// LISTEN_PID is the process's own, which is known only after the fork.
	script := fmt.Sprintf(`LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=relayd.socket:relayd.socket exec %q "$@"`, build(t, "relayd"))
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "/bin/sh", append([]string{"-c", script, "relayd"}, flags...)...)
	cmd.ExtraFiles = files
	d.relay = d.runCommand(t, "relayd", cmd)
	for _, f := range files {
		_ = f.Close()
	}
	d.transceivers = []*process{d.run(t, "transceiverd", "-trunk", "127.0.0.1:9001", "-http", "127.0.0.1:8091",
		"-ingress", "127.0.0.1:3478", "-allow-relay", "127.0.0.1", "-keys", path)}
	d.waitReady(t, ctx)
	call := pionCall(t, ctx, d.network, d.hosts[0])
	if got := call.echo(t, 0, 50); got < 49 {
		t.Errorf("%d of 50 packets came back", got)
	}
}

// reusable opens a UDP socket with SO_REUSEPORT in the network, as systemd does with
// ReusePort=yes.
func (n *network) reusable(t *testing.T, addr string) *os.File {
	t.Helper()
	config := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) (err error) {
		if errControl := conn.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}); errControl != nil {
			return errControl
		}
		return err
	}}
	var f *os.File
	err := n.Do(func() error {
		pc, err := config.ListenPacket(t.Context(), "udp4", addr)
		if err != nil {
			return err
		}
		defer pc.Close()
		f, err = pc.(*net.UDPConn).File()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}
