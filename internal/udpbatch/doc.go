// Package udpbatch moves UDP datagrams in batches.
//
// It owns the sockets and the loop that serves them: opening, taking over and
// handing on descriptors; reading with recvmmsg and writing with sendmmsg;
// the TOS byte and the local address of each datagram; segmentation offload
// (GSO, GRO) with a fall-back; buffers and what the kernel really granted;
// counters for everything that was lost. A [Conn] is one socket, a [Group] is a
// set of sockets that one thread serves.
//
// Two paths have the same functions and pass the same tests. On Linux a
// socket is read and written by system calls of this package: one locked
// thread a Group with an epoll of its own, no allocation per datagram. Every
// other operating system, and any [net.PacketConn] that is not a
// [net.UDPConn], goes the portable path: a goroutine for each socket, one
// datagram a call. The portable path knows neither TOS nor the local address.
//
// It refuses to interpret payloads, to decide where a datagram goes, and to
// end a loop because of something a socket reported: what the network or a
// stranger can cause is counted, and only Stop and Close end a loop.
package udpbatch
