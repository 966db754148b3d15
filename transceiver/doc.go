// Package transceiver ends WebRTC sessions that reach this process through
// relays (package relay): a Host owns one UDP address, mints a routed ICE
// username fragment for each session, answers SDP with the addresses of the
// relays' ingresses, and hands the application a Session around a Pion
// PeerConnection.
//
// The package owns SDP negotiation, the session's own ICE front end towards
// the client (lite in SDP, with checks of its own to every new path), the
// trunk to the relays, session lifecycle, drain, and an HTTP handler for
// signalling: WHIP (RFC 9725), WHEP, POST /v1/realtime/calls, and the same over
// one WebSocket (docs/signalling.md), with limits for each client address.
//
// It refuses: packets from outside Config.AllowRelays, candidates that a
// client names (nothing is ever sent to an address that has not sent an
// authenticated check first), offers with far more lines than a browser writes,
// clients that open hundreds of streams or data channels, multi-party media, and
// sockets of Pion's own: a PeerConnection made here opens none, asks no multicast
// name and gathers no candidate.
//
// Session.OpenAudio turns the client's microphone into a stream of Opus frames
// and paces what is sent to it, Session.OpenEvents does the same for a data
// channel, so that a service needs to know neither RTP nor SCTP.
//
// Either side may begin a renegotiation or an ICE restart: the client with an
// offer, the application with Session.Negotiate and Session.RestartICE, which
// can move a client to other ingresses. Neither reaches DTLS.
//
// Start with NewHost and NewHandler. Session.Go, Session.OnTrack and
// Session.OnDataChannel run application code so that a panic ends one session
// and nothing else.
package transceiver
