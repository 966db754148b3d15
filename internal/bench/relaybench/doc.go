// Command relaybench compares the processor time per packet of usher's relay
// with that of nginx, coturn, pion/turn, a naive Go forwarder, a batched one
// in C, and nftables, side by side on one machine.
//
// Run it as root (raw sockets, network namespaces) on Linux with at least two
// processors:
//
//	go run ./internal/bench/relaybench            # everything
//	go run ./internal/bench/relaybench -quick     # a look, a minute or two
//	go run ./internal/bench/relaybench -only usher,c -parts cells
//
// # Method
//
// The harness starts every relay itself, each with the settings that favour
// it, pins them to one processor and itself to another. All relays of a round
// run at once; those not measured are stopped by signal. A cell (clients,
// sizes, direction, rate) is measured on all relays one after the other, in
// an order that changes each round, before the next cell: a drift of the
// machine meets all alike. Ratios are taken within a round; the median over
// rounds is reported.
//
// Processor time is the scheduler's sum over all threads of the relay's
// processes and the softirq thread of its processor (see [load.Process.CPU]).
// Nothing else should run on the machine.
//
// At a stated rate, packets leave one by one when they are due, flows
// interleaved; the time used is divided by the packets that arrived. The
// generator never sleeps: it sends and empties the sinks in turn, so no relay
// pays for waking a reader.
//
// At saturation ("full") the generator does not run beside the relay at all:
// the relay is stopped, its queues are filled, it is resumed, and the time it
// uses until it rests is divided by the packets that arrived. That is its
// cost, and on one processor its capacity, when it never has to wait. Stopping
// and resuming costs each thread of a relay some microseconds a fill, and a
// runtime's monitor thread is busier after a rest; that is not subtracted, but a
// fill is long enough (-fill) that it hardly shows.
//
// # What else it prints
//
// "floor" is what the same system calls cost without a relay between them, from a
// program of its own, and beside it usher and nginx: the part of usher's cost that
// no code of ours can lower, and how many times nginx' packets a relay without any
// cost of its own could forward.
//
// "profile" is the relay's own CPU profile at saturation: usher's code ("own"), what
// it calls in libraries and the runtime ("helpers"), system calls ("kernel"), and the
// scheduler and collector ("runtime"). -profiles keeps it for "go tool pprof".
//
// "table" is the memory of a flow at a million flows, and what they cost the
// collector.
//
// # nftables
//
// nftables has no process: its work is done in the softirq of whoever sends.
// In namespaces client -> router -> upstream, and with a direct link client ->
// upstream, the harness takes its own thread's time and that of the
// processor's ksoftirqd while it sends the same packets either way. The
// difference is what the router costs: one more veth, forwarding, DNAT.
package main
