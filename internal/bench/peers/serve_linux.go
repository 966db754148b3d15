package peers

import (
	"fmt"
	"net/netip"
)

// Serve runs the role "serve NAME ADDRESS..." of the harness: a relay in a
// process of its own. It returns when that relay ends.
func Serve(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("serve: want a role and an address, got %q", args)
	}
	addr, err := netip.ParseAddrPort(args[1])
	if err != nil {
		return err
	}
	switch args[0] {
	case "naive":
		return serveNaive(addr)
	case "usher":
		return serveUsher(addr, args[2:])
	case "pion-turn":
		return servePionTURN(addr)
	}
	return fmt.Errorf("serve: unknown role %q", args[0])
}
