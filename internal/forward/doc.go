// Package forward is the relay's judgement: given a packet from a client or a
// frame from a peer, where does it go, or why not.
//
// It owns the rules for flows: who may make one, who owns a contested address,
// what happens to packets that belong to no flow, and the rate limits that keep
// each of these cheap. It does no I/O, reads no clock, starts no goroutine and
// allocates nothing; the caller passes the time in. There is one [Core] a
// worker, with that worker's shard of the flow table; a Core looks into the
// other workers' shards only for what its own does not have.
//
// # A packet from a client
//
//   - A STUN request with a USERNAME goes where its own ufrag says, whatever the
//     flow table thinks (two sessions may share one client address). It makes a
//     flow if its MESSAGE-INTEGRITY is right for the ufrag's derived password.
//   - Everything else goes to the owner of the flow.
//   - RTP, RTCP, DTLS and STUN responses without a flow, from an IP address that
//     has confirmed flows, are most likely a NAT rebinding: they go, rate-limited
//     and marked unverified, to the owner of the flow with the same SSRC, else to
//     at most two owners at that IP address. The owner authenticates them.
//   - What of these has no flow of its SSRC may belong to a flow that a relay before
//     this one had, so the verdict says Lookup: the caller may ask the flow store.
//     [Core.MayAsk] limits that, and [Core.Restore] takes the answer.
//   - The rest is dropped. Nothing is ever sent back.
//
// # Two tiers
//
// A route of another cluster leads to one of that cluster's relays, which [Clusters]
// picks for each packet. Such a flow's owner is the Host in its route, because all
// Hosts of a cluster come by the same relays: a frame from there teaches only if it
// has a route. [Core.FromEdge] and [Core.ToEdge] are the other side: they decide
// about frames that are another relay's, by what is in the frame alone.
//
// # Contests
//
// A flow is unconfirmed until its owner says "validated": it has had an answer
// from that client. A check for another owner, with valid integrity, takes an
// unconfirmed flow over. On a confirmed flow it only registers a claim, and is
// forwarded; the claimant gets the flow when it sends a validated frame for
// that client. An address changes hands at most once a second. So a customer
// with a session of his own who forges a source address cannot divert anybody's
// media: his Host never gets the answer. Two real sessions on one client socket
// share the flow in turns: whose check was validated last has it.
package forward
