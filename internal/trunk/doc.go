// Package trunk is the wire between relay and Host, and between relay and
// relay: UDP datagrams that carry clients' packets with the client's address,
// and a few control datagrams that keep both ends' view of the flows the same.
// docs/wire.md describes it for other languages and has frozen vectors.
//
// It owns the layout, the tag that authenticates a datagram ([Keys]), bundling
// ([Builder]), reading ([Reader]), the control datagrams ([Hello], [HelloAck],
// [Announce], [Keepalive], [Goodbye]) and the rule that makes a control
// datagram fresh ([Link]).
//
// It refuses sockets, timers, the choice of peers (allow-lists), the decision
// where a packet goes, and the protection of payloads: SRTP, DTLS and STUN
// integrity do that themselves.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------+---------------+---------------+---------------+
//	|  version = 1  |     type      |    key id     |   hops left   |
//	+---------------+---------------+---------------+---------------+
//	|                        sender's epoch                         |
//	|                                                               |
//	+---------------------------------------------------------------+
//	|                           sequence                            |
//	+---------------------------------------------------------------+
//	|                      tag (SipHash-2-4)                        |
//	|                                                               |
//	+---------------------------------------------------------------+
//	|   frames of a data datagram, or the body of a control one     |
//
//	frame
//	+-------------------------------+---------------+---------------+
//	|        payload length         |     flags     |   TOS byte    |
//	+-------------------------------+---------------+---------------+
//	|          ingress id           |  client address, 4 or 16 ...  |
//	+-------------------------------+-------------------------------+
//	|        ... address            |          client port          |
//	+-------------------------------+-------------------------------+
//	| route, 12 bytes, if flagged                                   |
//	| return address, 7 or 19 bytes, if flagged                     |
//	| SSRCs, 1 + 4n bytes, if flagged                               |
//	| payload                                                       |
//
// All numbers are big endian.
package trunk
