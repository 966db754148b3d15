// Package link puts a network between clients and a relay, or any other server: a
// UDP proxy with a delay, behind which a NAT can give its clients new ports, lose
// their packets, or stop. It keeps a trace of what passed, so that a test can say
// how long nothing did.
//
// It owns sockets and goroutines of its own and works in real time; for
// deterministic networks without sockets there is the simnet package. It changes
// no packet and knows nothing of usher.
package link
