// Fleet runs usher in two regions on one machine: network namespaces are the
// hosts, and each region has edge relays behind a balancer, cluster relays,
// transceivers, Redis, clients, and a NAT with clients behind one address. A link
// in user space puts a delay between the regions, less for the fleet's own
// traffic than for that of clients.
//
//	go run ./internal/bench/fleet [-calls N]
//
// It makes calls within and across the regions, checks that each is on the owner
// that its ufrag names and lands near its client, prints set-up times and round
// trips, and then rolls the fleet over, one process after the other, under load.
// It ends with status 1 if something is not as it must be. docs/fleet.md says what
// the lines mean.
//
// It owns the topology, the delay and the judgement. It changes nothing outside
// namespaces of its own, and needs root to make them.
package main
