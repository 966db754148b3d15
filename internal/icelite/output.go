package icelite

import (
	"net/netip"

	"github.com/usher-rtc/usher/internal/stun"
)

// Outgoing is one STUN message to send.
type Outgoing struct {
	// Path is where it goes, Via the trunk address of the relay to send it
	// through.
	Path Path
	Via  netip.AddrPort
	// Validated says that the path is proven, for the trunk frame's flag.
	Validated bool
	// Data lies in the Output and is valid until its Reset.
	Data []byte
}

// Events is a set of things that happened in one call.
type Events uint16

const (
	// EventFirstCheck is the session's first authenticated check: the first
	// path is in use from here on, and DTLS may start.
	EventFirstCheck Events = 1 << iota
	// EventAuthenticated is an authenticated check that is not a repetition.
	EventAuthenticated
	// EventPathSelected is a change of the current path.
	EventPathSelected
	// EventPathValidated is a path that became proven.
	EventPathValidated
	// EventRelayChanged is a path that moved to another relay.
	EventRelayChanged
	// EventStateChanged is a new State.
	EventStateChanged
	// EventConsentLost is the loss of consent on a path that was current. If no
	// other path could take over, the state is failed as well.
	EventConsentLost
	// EventUfragsRetired says that RetiredUfrags has something to return.
	EventUfragsRetired
)

// Has reports whether e contains all of x.
func (e Events) Has(x Events) bool { return e&x == x }

// Output collects what calls of an Agent want done. Calls append to it; Reset
// it between them. Its buffers are reused, so an Output that has been through
// a few calls makes them free of allocations. It may serve many agents one
// after the other, one goroutine at a time.
type Output struct {
	// Packets are to be sent in this order.
	Packets []Outgoing
	// EmbeddedDTLS are the DTLS datagrams that an authenticated check carried
	// in attribute 0xC070. They point into the datagram given to HandleSTUN.
	EmbeddedDTLS [][]byte
	// Events says what happened.
	Events Events
	// ValidatedPath is the path of EventPathValidated, the last one if there
	// were several calls. An answer need not come from the path it proves.
	ValidatedPath Path

	scratch []byte
	auth    stun.Authenticator
	build   stun.Builder
}

// Reset empties o and keeps its buffers.
func (o *Output) Reset() {
	clear(o.EmbeddedDTLS) // do not hold on to the caller's datagrams
	o.Packets = o.Packets[:0]
	o.EmbeddedDTLS = o.EmbeddedDTLS[:0]
	o.Events, o.ValidatedPath = 0, Path{}
	o.scratch = o.scratch[:0]
}

// push appends a packet whose bytes are the end of buf, from start on. buf is
// o.scratch grown by a message, or a larger copy of it: packets that lie in
// the smaller one keep it alive and stay valid.
func (o *Output) push(p Path, via netip.AddrPort, validated bool, buf []byte, start int) {
	o.scratch = buf
	o.Packets = append(o.Packets, Outgoing{
		Path: p, Via: via, Validated: validated, Data: buf[start:len(buf):len(buf)],
	})
}
