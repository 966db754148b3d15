// Package relay is the public, stateless front of a fleet: it hands each packet
// of a WebRTC client to the one process that owns the client's session, and the
// answers back, without reading any of them.
//
// It owns sockets, workers, the trunk to Hosts, health and statistics. It
// refuses to decrypt, to terminate anything, to ask a database in the packet
// path, and to send a byte of its own to a client.
//
// # The life of a packet
//
// A client has an SDP answer with the relay's address as the only candidate and
// a ufrag that carries the route to its session. Its first packet, a STUN
// check, arrives at one of the workers: each is a thread with its own
// SO_REUSEPORT socket for every ingress, and the kernel picks one by addresses
// and ports. The worker reads up to 64 datagrams at once, takes the lock of its
// shard of the flow table once, and asks internal/forward about each. For the
// check that means: decode the ufrag, resolve the route, hold the address
// against AllowUpstream, verify MESSAGE-INTEGRITY with the password derived
// from the ufrag, make an unconfirmed flow. The check goes into a frame behind
// the client's address and the ingress id; all frames for one Host that are
// there travel in one datagram. Payloads of up to 512 bytes are copied next to
// their headers, larger ones the kernel gathers from the receive slots.
//
// The Host answers to the worker's trunk address. The frame names client and
// ingress, so the worker needs no flow to deliver it; it only notes that the
// flow is alive, and, when the frame is marked validated, that the client
// really is there. The answer leaves from the socket and address of the
// ingress. From then on media follows the flow in both directions.
//
// A flow lives as long as its Host sends. After a restart of the relay it comes
// back with the Host's announcement, with its next validated frame, from the flow
// store, or with the client's next check, whichever is first.
//
// # The flow store
//
// With [Config].Store, flows whose client has answered are written to a store
// behind the packets, and again four times within the life of their entries. A
// packet that may belong to a lost flow waits, in a small room and for at most
// StoreTimeout, while the store is asked about its client: once for each, at a
// limited rate, and not at all while the store fails. What the store says counts
// only with a MAC, makes an unconfirmed flow, and never changes one that lives. So
// a store that is down, slow, empty or full of lies costs recovery time and
// nothing else.
//
// # Two tiers
//
// A relay with [Config].Clusters is an edge: packets for sessions of other clusters
// go to a relay there, which the directory names and keepalives find well, with
// the route in the frame. A relay with AllowEdges passes such packets on to its own
// Hosts, and their answers back, and keeps nothing about them. A relay may be both;
// one without AllowUpstream is an edge alone.
//
// # Upgrades
//
// With [Config].Handover, starting a second process is an upgrade: New finds the
// running relay and gets its sockets, Serve its flows, and that relay's Serve
// returns [ErrHandedOver]. Packets wait in the kernel for that moment; Hosts notice
// nothing, because the epoch stays. A successor that fails or hangs before it serves
// changes nothing; a running relay that is killed or closed in the middle leaves its
// sockets to the successor, which serves with what it got. The two processes must be of one user (or the one that has the sockets of
// root), see the same path, and agree on cluster, workers, trunk and ingresses.
//
// # Operation
//
// [Server.Stats] has a counter for every reason to drop a packet; they answer
// most questions. [Server.Handler] serves health and a list of flows over HTTP;
// keep it off the public address. [Server.Shutdown] drains. Changing a
// configuration needs a restart, except for keys and resolver, which reload
// themselves.
package relay
