// Package stun reads and writes STUN messages (RFC 8489) as ICE uses them
// (RFC 8445). It is the parser that reads bytes from strangers, so relay and
// Host share it: what one refuses, the other refuses too.
//
// It owns telling the kinds of packets on one port apart ([Classify], [SSRC]),
// the message and attribute layout ([Parse]), MESSAGE-INTEGRITY with
// HMAC-SHA1 ([Authenticator]), FINGERPRINT, and an append-style [Builder].
// Nothing on these paths allocates, and nothing keeps a reference to a
// datagram except the slices in [Message] that point into it.
//
// It refuses transactions, retransmissions, sockets, long-term credentials,
// the MESSAGE-INTEGRITY-SHA256 of RFC 8489 section 14.6 (ICE does not use it)
// and RFC 3489 messages without the cookie.
//
// # Rules of refusal
//
// A datagram is refused whole, with a [Problem], if
//   - it has fewer than 20 bytes, a first byte with one of the two top bits
//     set, or no cookie;
//   - the length field is not a multiple of four, or says more than there is;
//   - an attribute reaches beyond the message;
//   - an attribute that this package interprets has the wrong size. Only the
//     first of its type is looked at; USE-CANDIDATE counts as a flag whatever
//     its length, because some stacks put padding into it;
//   - the USERNAME has more than [MaxUsername] bytes;
//   - there is a FINGERPRINT that is wrong or that is not the last attribute.
//
// Bytes after the message are accepted and ignored: they take part in no
// check, and whoever forwards the datagram forwards it whole.
//
// The first attribute of a type counts. Nothing after MESSAGE-INTEGRITY counts
// except FINGERPRINT (RFC 8489 section 14.5), since no password protects it.
package stun
