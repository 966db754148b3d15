// Command hostbench compares usher's Host, behind usher's relay, with stock
// Pion on its own UDP mux and without a relay, side by side on one machine.
//
// Run it as root (it makes a network namespace) on Linux with at least two
// processors, with ip(8), taskset(1), and for the browsers Chromium, Firefox
// and Node.js:
//
//	go run ./internal/bench/hostbench                  # everything
//	go run ./internal/bench/hostbench -quick           # a look
//	go run ./internal/bench/hostbench -parts setup -browsers pion,chromium
//
// # Method
//
// Every server is a process of its own and runs the same application; the
// relay is a further process. All of it lives in a network namespace that has
// a loopback interface and nothing else.
//
// setup: a client makes a call through a delay link, the same for all servers,
// between its port and the server's: half of the round trip each way. Counted
// from applying the answer: connected, data channel open, and the first audio
// packet, which the server sends as soon as it is connected. Each round
// makes one call of every client to every server at every round-trip time, in
// an order that changes, so a drift of the machine meets all alike. The best
// stock row is the one with the least median of the same figure.
//
// idle: sessions with audio and a data channel that say nothing; goroutines,
// descriptors, heap after a collection and stack of the server's process, less those
// it had after some sessions came and went. A row of stock Pion whose sessions would
// need more descriptors than a process may have is left out.
//
// rate: sessions that are made, connect, and end, several at a time; sessions a
// second, and the server's processor time per session, which the clients' own
// cost does not blur.
//
// cpu: sessions that each send 50 packets a second and get them back; the
// server's processor time (see [load.Process.CPU]) per packet, where one in
// and one out are two. Packets of different sessions leave spread over time.
// Then the muxes alone: audio goes back right behind the mux, without SRTP. The
// server has one processor, relay and clients the other.
//
// churn: sessions come and go, a third of them half-open: goroutines,
// descriptors and heap before and afterwards, with no session left and no
// connection of the clients' signalling. Before means: after so many sessions that
// there were as many at once as there ever will be. "back" is true if neither
// goroutines nor descriptors are more and the heap is at most 1 MiB larger.
package main
