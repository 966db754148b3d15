// Command voice measures a voice call through all of usher's parts: Pion clients
// on loopback, a relay, a Host with the bridge, and a service that says back
// what it hears, each in a process of its own.
//
//	go run ./internal/bench/voice          # five minutes
//	go run ./internal/bench/voice -quick   # half a minute
//
// Part latency: mouth to ear is the time from a client's writing a packet to
// its reading the packet that came back, so it holds the client's own SRTP and
// eight passes through the kernel. The base is the same for the same clients
// with a stock Pion peer that says back what it hears: everything that is not
// ours. What our parts add is mouth to ear less the median of the base: relay
// and trunk twice, the Host's ICE, SRTP and queues, the bridge, the service,
// and the pacing of what leaves.
//
// Part soak: many sessions for a while. Frames that did not come back, or not
// in order, are lost by us; memory is that of the Host's process after a
// collection, at the beginning and at the end.
package main
