package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/e2e/netns"
)

// relayStats is what the tests read from the relay's /debug/stats.
type relayStats struct {
	Expired     uint64
	Created     uint64
	Unconfirmed uint64
	Drops       map[string]uint64
}

func (d *deployment) relayStats(t *testing.T, ctx context.Context) (s relayStats) {
	t.Helper()
	if err := d.get(ctx, d.relayURL+"/debug/stats", &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestOwnerDies kills one of two transceivers. Calls on the other one must not
// notice, the relay's counters must show that a client talks to nobody, and new
// calls must work.
func TestOwnerDies(t *testing.T) {
	need(t, netns.Available())
	ctx := testContext(t, time.Minute, fleetPrograms...)
	d := fleet(t, ctx)
	doomed := pionCall(t, ctx, d.network, d.hosts[0])
	other := pionCall(t, ctx, d.network, d.hosts[1])
	for name, c := range map[string]*pionClient{"first": doomed, "second": other} {
		if got := c.echo(t, 0, 25); got < 24 {
			t.Fatalf("before: %d of 25 packets came back on the %s call", got, name)
		}
	}
	before := d.relayStats(t, ctx)
	d.transceivers[0].kill()
	d.hosts = d.hosts[1:]

	// The client of the dead one goes on sending media and checks, for longer
	// than the relay keeps a flow whose owner is silent.
	const packets = 300
	quiet := make(chan int)
	go func() { quiet <- doomed.echo(t, 1000, packets) }()
	if got := other.echo(t, 1000, packets); got*100 < packets*98 {
		t.Errorf("%d of %d packets came back on the call whose owner lives", got, packets)
	}
	if got := <-quiet; got != 0 {
		t.Errorf("%d packets came back from a dead owner", got)
	}
	// The relay has noticed that nobody answers there, and counts what it has
	// for it, new checks included.
	eventually(t, 10*time.Second, func() string {
		after := d.relayStats(t, ctx)
		switch {
		case after.Expired == before.Expired:
			return "the flow of a dead owner has not expired"
		case after.Drops["upstream silent"] == 0:
			return "no counter shows that the owner does not answer"
		}
		t.Logf("flows expired %d, made %d, unconfirmed %d; drops %v", after.Expired-before.Expired, after.Created-before.Created,
			after.Unconfirmed, d.drops(t, ctx))
		return ""
	})

	later := pionCall(t, ctx, d.network, d.hosts[0])
	if got := later.echo(t, 0, 50); got < 49 {
		t.Errorf("%d of 50 packets came back on a call made afterwards", got)
	}
	d.checkOwner(t, later.ufrag, d.sessions(t, ctx))
}
