package transceiver

import "sync/atomic"

// Reason says why a Session ended.
type Reason uint32

// The reasons a session ends for. ReasonNone means that it has not ended.
const (
	ReasonNone           Reason = iota
	ReasonClientClosed          // the client closed DTLS or asked for the end (DELETE)
	ReasonServer                // the application called Session.Close
	ReasonNeverConnected        // no authenticated check within Config.ConnectTimeout
	ReasonConsentLost           // the client fell silent for Config.ConsentTimeout
	ReasonDTLSTimeout           // no DTLS association within Config.DTLSTimeout
	ReasonDTLSFailed            // the DTLS handshake failed, a wrong certificate for example
	ReasonDrained               // Host.Shutdown's context ended before the session did
	ReasonHostClosed            // Host.Close
	ReasonPanic                 // a callback of the application panicked
	ReasonRejected              // OnSession or Prepare returned an error, or no answer could be made
	ReasonTooMany               // the client opened more media streams or data channels than it may
	reasonCount
)

var reasonNames = [reasonCount]string{
	"none", "client closed", "closed by the server", "never connected", "consent lost",
	"dtls timeout", "dtls failed", "drained", "host closed", "panic", "rejected", "too many streams",
}

// String returns a short name, the one used in logs and in statistics.
func (r Reason) String() string {
	if r < reasonCount {
		return reasonNames[r]
	}
	return "unknown"
}

// MarshalText implements encoding.TextMarshaler, so that statistics have names
// in JSON.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// DropReason says why a datagram, a frame or a packet went no further.
type DropReason uint8

// The reasons for which a Host drops. Every one is a counter in Stats.
const (
	DropRelayRefused  DropReason = iota // the datagram's source is not in AllowRelays
	DropTruncated                       // longer than the receive slot
	DropTrunk                           // no valid trunk datagram: version, key, tag, framing
	DropDirection                       // a frame that is meant for a client
	DropIngress                         // a frame with an ingress id of zero
	DropSTUN                            // a STUN message that does not parse
	DropUsername                        // a STUN request without a "server:client" USERNAME
	DropUnknownUfrag                    // no live session has that ufrag
	DropUnknownPath                     // no session knows that client address and ingress
	DropClass                           // neither STUN, DTLS, RTP nor RTCP
	DropRefused                         // the session's ICE front end refused it
	DropQueueFull                       // the session's own queue to Pion was full
	DropSendQueueFull                   // the socket's send queue was full
	DropNoPath                          // Pion wrote before any path was known, or beyond the budget of an unproven one
	DropSend                            // the kernel refused the datagram
	DropOversize                        // longer than one trunk datagram can carry
	DropControl                         // a control datagram that does not parse or is not for a Host
	dropCount
)

var dropNames = [dropCount]string{
	"relay_refused", "truncated", "trunk", "direction", "ingress", "stun", "username",
	"unknown_ufrag", "unknown_path", "class", "refused", "queue_full", "send_queue_full",
	"no_path", "send", "oversize", "control",
}

// String returns the counter's name.
func (d DropReason) String() string {
	if d < dropCount {
		return dropNames[d]
	}
	return "unknown"
}

// MarshalText implements encoding.TextMarshaler, as for Reason.
func (d DropReason) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// counters belong to one socket, so that two sockets never share a cache line
// for every packet.
type counters struct {
	drops                  [dropCount]atomic.Uint64
	datagramsIn, framesIn  atomic.Uint64
	datagramsOut, frameOut atomic.Uint64
	bytesIn, bytesOut      atomic.Uint64
	_                      [64]byte
}

func (c *counters) drop(r DropReason) { c.drops[r].Add(1) }

// Stats is a snapshot of a Host's counters. All of them only grow, except
// Live, Connected and Sockets.
type Stats struct {
	Live      int // sessions that have not ended
	Connected int // of these, the ones with a DTLS association

	Accepted     uint64            // sessions ever made
	Refused      uint64            // offers refused: bad, full or draining
	Ended        map[Reason]uint64 // by the reason of the end
	Limited      uint64            // signalling requests refused by SignallingConfig.Limit
	Sockets      int               // WebSockets of signalling that are open
	Restarts     uint64            // ICE restarts, whoever began
	PathChanges  uint64            // moves of a session to another client address or ingress
	Contested    uint64            // a path claimed by two live sessions
	DatagramsIn  uint64            // trunk datagrams from relays, before any check
	FramesIn     uint64            // client packets in them
	DatagramsOut uint64            // trunk datagrams to relays
	FramesOut    uint64            // packets for clients in them
	BytesIn      uint64            // payload bytes of FramesIn
	BytesOut     uint64            // payload bytes of FramesOut
	Drops        map[DropReason]uint64
	KernelDrops  uint64 // datagrams that the kernel dropped because a socket buffer was full
}
