// Package simnet is a small simulated network for tests.
//
// It owns the way of a datagram between simulated sockets: delay, jitter,
// loss, duplication, bounded queues, and NATs whose mappings can be changed
// under way. Its sockets are [net.PacketConn]s, so the code under test is the
// same as on a real network. Whatever is random comes from a seed, separately
// for each direction of each pair of hosts, so one flow's losses do not depend
// on another's timing. Inside [testing/synctest] its clock is the test's.
//
// It refuses to be a model of congestion, of routing or of TCP, and has no
// place outside tests.
package simnet
