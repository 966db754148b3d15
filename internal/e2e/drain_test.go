package e2e

import (
	"context"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/e2e/netns"
)

// hangUp ends a call with DELETE at its Location.
func (c *pionClient) hangUp(t *testing.T, ctx context.Context, n *network) {
	t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodDelete, c.location, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := n.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode/100 != 2 {
		t.Errorf("DELETE: %s", response.Status)
	}
}

// TestTransceiverDrains sends SIGTERM to a transceiver with a call on it. The
// call must go on, the process must say that it takes no new ones, and it must
// end by itself when the call does, well before its limit.
func TestTransceiverDrains(t *testing.T) {
	need(t, netns.Available())
	ctx := testContext(t, time.Minute, fleetPrograms...)
	d := fleet(t, ctx)
	call := pionCall(t, ctx, d.network, d.hosts[0])
	if got := call.echo(t, 0, 25); got < 24 {
		t.Fatalf("before: %d of 25 packets came back", got)
	}
	draining := d.transceivers[0]
	if err := draining.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, func() string {
		if err := d.get(ctx, d.hosts[0]+"/readyz", nil); err == nil || !strings.Contains(err.Error(), "503") {
			return "/readyz does not say 503 after SIGTERM"
		}
		return ""
	})
	if err := d.get(ctx, d.hosts[0]+"/healthz", nil); err != nil {
		t.Errorf("a draining process is healthy: %v", err)
	}
	if got := call.echo(t, 1000, 100); got < 98 {
		t.Errorf("%d of 100 packets came back while draining", got)
	}
	call.hangUp(t, ctx, d.network)
	select {
	case <-draining.exited:
		if !draining.cmd.ProcessState.Success() {
			t.Errorf("after the last call: %v", draining.cmd.ProcessState)
		}
	case <-time.After(8 * time.Second):
		t.Error("the process lives on after its last call has ended")
	}
}
