// Package bridge carries a session's audio and events to an ordinary service
// over WebSocket, and the service's answer back, so that a service in any
// language has a voice without knowing WebRTC. docs/bridge.md is the protocol.
//
// Attach is the transceiver's side: it connects a transceiver.Session to the
// service that Config names, keeps the session alive while the service is
// away, and connects again. Handler and NewHandler are the service's side in
// Go: an http.Handler that turns each connection into a Call. What the client
// says is read from it as from a transceiver.Audio and transceiver.Events; what
// the service says is an Utterance, which is written, followed to its end, and
// stopped. Package bridgetest has a caller for the tests of a service.
//
// The package owns the protocol, the connection's life, and the bounds of all
// that waits on it. It refuses: to interpret what clients and services say to
// each other, to let a service that does not read slow anything but its own
// session, to hold more than a second of audio back for a service that is away
// (it is told what it missed), and codecs other than Opus, which come from outside (Codec).
package bridge
