package main

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
)

// vip is the one public address of the fleet. No relay listens on it: the
// balancer sends what comes for it to the relays' own addresses.
var vip = netip.MustParseAddrPort("127.0.0.1:3478")

// groups is how many groups of clients the balancer tells apart.
const groups = 3

// groupAddr returns address n of a group of clients.
func groupAddr(group, n int) netip.Addr {
	return netip.AddrFrom4([4]byte{127, 1, byte(group), byte(n)})
}

// balancer stands for one that spreads clients by a hash of their address and
// keeps no state: rules that write another destination into their packets, and
// the public address into the answers. The kernel does it, so that it costs the
// machine next to nothing, and clients keep their addresses.
type balancer struct {
	targets [groups][2]netip.Addr // of the halves of each group
	refuse  []string              // further rules
}

// assign sends a group to a relay.
func (b *balancer) assign(group int, relay netip.Addr) { b.split(group, relay, relay) }

// split sends the two halves of a group to two relays.
func (b *balancer) split(group int, low, high netip.Addr) {
	b.targets[group] = [2]netip.Addr{low, high}
}

// apply makes the rules those of now, all at once.
func (b *balancer) apply(ctx context.Context) error {
	var targets []string
	for g, halves := range b.targets {
		targets = append(targets,
			fmt.Sprintf("127.1.%d.0/25 : %v", g, halves[0]), fmt.Sprintf("127.1.%d.128/25 : %v", g, halves[1]))
	}
	rules := fmt.Sprintf(`table ip balancer
delete table ip balancer
table ip balancer {
	chain clients {
		type route hook output priority -300;
		ip daddr %v udp dport %d ip daddr set ip saddr map { %s }
		ip saddr 127.0.2.0/24 udp sport %d ip saddr set %v
	}
	chain faults {
		type filter hook output priority 0;
		%s
	}
}
`, vip.Addr(), vip.Port(), strings.Join(targets, ", "), vip.Port(), vip.Addr(), strings.Join(b.refuse, "\n\t\t"))
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}
