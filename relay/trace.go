package relay

import (
	"net/netip"

	"github.com/usher-rtc/usher/flowtable"
)

// Trace holds functions that observe single events. Each may be nil. They are
// called by a worker in the midst of a batch, with the lock of its flows held:
// they must be quick, must not block, and must not call the Server's Flows.
// Several workers may call them at once.
type Trace struct {
	// FlowCreated is called when a client's check or a Host's word made a flow.
	FlowCreated func(flowtable.Flow)
	// FlowMoved is called when a flow got another owner.
	FlowMoved func(flowtable.Flow)
	// FlowExpired is called when a flow expired or was evicted.
	FlowExpired func(f flowtable.Flow, why flowtable.Removal)
	// Drop is called for some of the drops: each worker reports at most ten a
	// second. From is the client, or the peer for drops on the trunk, where
	// ingress is 0.
	Drop func(reason string, from netip.AddrPort, ingress uint16)
}

// dropsPerSecond bounds Trace.Drop.
const dropsPerSecond = 10
