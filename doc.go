// Package usher is ufrag-routed WebRTC: one small, fixed public UDP address
// for a whole fleet of media servers, and standard WebRTC for every client.
//
// The package itself is empty. The parts are:
//
//   - [github.com/usher-rtc/usher/relay]: a light UDP forwarder. It reads the
//     server ufrag in a client's first STUN check, decodes the route in it and
//     forwards everything after that unread.
//   - [github.com/usher-rtc/usher/transceiver]: a Host that wraps Pion on one
//     shared UDP socket, mints the routed ufrags, answers SDP with the relay's
//     address and owns ICE, DTLS, SRTP and the life of every session.
//   - [github.com/usher-rtc/usher/ufrag]: the codec that puts a route into an
//     ICE username fragment, with keys and rotation.
//   - [github.com/usher-rtc/usher/flowtable]: the relay's flows.
//   - [github.com/usher-rtc/usher/cluster]: where the relays of other clusters
//     are, for a relay far from the sessions of its clients.
//
// ARCHITECTURE.md follows a packet through them; docs/wire.md has the formats.
package usher
