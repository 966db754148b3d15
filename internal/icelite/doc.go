// Package icelite is the Host's ICE front end for one session: it decides from
// which paths a session's packets are believed and on which one its own leave.
// To the client it is an ice-lite agent (RFC 8445 section 2.5). Unlike one, it
// sends checks of its own to the addresses it hears from, because a check that
// came from an address does not prove that anything sent there arrives.
//
// It owns the credentials of several ICE generations, the session's paths,
// answers to the client's checks, own checks and consent (RFC 7675), the rules
// for moving the sending path, and the limits on what an unproven address is
// sent. [Agent] is a state machine: it does no I/O, starts no goroutine, reads
// no clock, and allocates nothing per packet once its buffers have grown. Time
// is an argument; what it wants sent comes back in an [Output].
//
// It refuses sockets, SDP, candidates from the client, the role of controlling
// agent, nomination as a command (USE-CANDIDATE is one hint among others), and
// the content of media: SRTP and DTLS authenticate themselves.
//
// # Vocabulary
//
//   - path: a client's address and the ingress it reached. The relay that a
//     path runs through (via) is an attribute of the path, not part of it.
//   - generation: one pair of ufrags and passwords; an ICE restart adds one.
//   - proven path: the client answered a check of our own there less than
//     ConsentTimeout ago. Only these, and the session's first path, carry
//     media.
//   - current path: where outgoing packets go.
//   - non-STUN: DTLS or SRTP that was let through.
//
// # When the sending path moves
//
// The first authenticated check of the session makes its path the current one
// at once. After that, the current path changes to a proven path P when
//
//  1. non-STUN arrives on P and P is of a newer generation, or of the same one
//     and the current path had no non-STUN for 40 ms; or
//  2. a check with USE-CANDIDATE arrives on P and P is of a newer generation; or
//  3. a check arrives on P, P's generation is not older, the current path had
//     no non-STUN for 500 ms, and either the check has USE-CANDIDATE and none
//     on the current path had it in the 500 ms before, or the current path was
//     silent for 500 ms and left a check of ours unanswered for as long. If it
//     is not yet quiet, a timer looks again, for 2 s or until non-STUN shows
//     that the client went on with the current path; or
//  4. the current path is the session's first and still not proven 200 ms after
//     it was chosen; or
//  5. consent for the current path is lost.
//
// Rules 1 to 3 are evaluated again when P becomes proven. The check of our own
// in rule 3 is what tells a silent current path from a dead one: a client with
// two ingresses and nothing to say checks both in turn for as long as it lives.
//
// # When the relay of a path moves
//
// Anything that is let through and comes from a relay this path has not been
// seen behind moves the path there at once. Packets may still be in flight
// through the old relay, so one the path was seen behind before gets it back
// only by authenticated STUN that is certainly newer: the answer to a check
// sent after the last change, or a check of the client's at least a second
// after it. Until then, packets from that relay start a check of our own
// through it, whose answer decides.
//
// # Consent and liveness
//
// Consent (RFC 7675 section 5.1) is the client's answer to a check of our own,
// nothing else: an address that sends has not shown that it wants to receive,
// and a captured check can be sent again from anywhere. Liveness, the
// difference between connected and disconnected, counts all that was let
// through and every check that is authenticated and not a repetition.
package icelite
