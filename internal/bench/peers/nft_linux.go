package peers

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/usher-rtc/usher/internal/bench/load"
)

// NFT is a router that does destination NAT with nftables, between three
// network namespaces of its own: clients, router, upstream. A second link
// joins clients and upstream directly, to know what all but the router costs.
type NFT struct {
	ns      [3]string // clients, router, upstream
	made    []string
	rawUp   *load.Raw
	rawDown *load.Raw
	clients *load.Sink
	up      *load.Sink
}

const nftPort = 3478

// nftLinks are run by "ip -n NAMESPACE"; %c, %r and %u are the namespaces.
const nftLinks = `
-n %c link add c0 type veth peer name c1 netns %r
-n %u link add u0 type veth peer name u1 netns %r
-n %c link add d0 type veth peer name d1 netns %u
-n %c addr add 10.76.0.2/24 dev c0
-n %r addr add 10.76.0.1/24 dev c1
-n %u addr add 10.78.0.2/24 dev u0
-n %r addr add 10.78.0.1/24 dev u1
-n %c addr add 10.79.0.1/24 dev d0
-n %u addr add 10.79.0.2/24 dev d1
-n %c link set lo up
-n %r link set lo up
-n %u link set lo up
-n %c link set c0 up
-n %r link set c1 up
-n %u link set u0 up
-n %r link set u1 up
-n %c link set d0 up
-n %u link set d1 up
-n %c route add local 10.77.0.0/16 dev lo
-n %c route add local 10.80.0.0/16 dev lo
-n %r route add 10.77.0.0/16 via 10.76.0.2
-n %u route add default via 10.78.0.1
-n %u route add 10.80.0.0/16 via 10.79.0.1
`

// StartNFT makes the namespaces and the rule. It needs root, ip and nft.
func StartNFT(tag string) (n *NFT, err error) {
	n = &NFT{}
	defer func() {
		if err != nil {
			n.Stop()
			n = nil
		}
	}()
	for i, part := range []string{"c", "r", "u"} {
		n.ns[i] = fmt.Sprintf("usherbench-%s-%s", tag, part)
		if err := ip("", "netns", "add", n.ns[i]); err != nil {
			return n, err
		}
		n.made = append(n.made, n.ns[i])
	}
	names := strings.NewReplacer("%c", n.ns[0], "%r", n.ns[1], "%u", n.ns[2])
	for line := range strings.Lines(strings.TrimSpace(nftLinks)) {
		if err := ip("", strings.Fields(names.Replace(line))...); err != nil {
			return n, err
		}
	}
	if err := n.sockets(); err != nil {
		return n, err
	}
	rules := fmt.Sprintf(`table ip usherbench {
  chain pre {
    type nat hook prerouting priority dstnat; policy accept;
    ip daddr 10.76.0.1 udp dport %d dnat to 10.78.0.2:%d
  }
}
`, nftPort, n.up.Port())
	if err := ip(rules, "netns", "exec", n.ns[1], "nft", "-f", "-"); err != nil {
		return n, err
	}
	return n, n.settings()
}

// settings let the router forward and its flows live as long as the run.
func (n *NFT) settings() error {
	return load.InNamespace(n.ns[1], func() error {
		for name, v := range map[string]string{
			"ipv4/ip_forward":                           "1",
			"ipv4/conf/all/rp_filter":                   "0",
			"netfilter/nf_conntrack_udp_timeout":        "7200",
			"netfilter/nf_conntrack_udp_timeout_stream": "7200",
		} {
			if err := os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(v), 0); err != nil {
				return err
			}
		}
		return nil
	})
}

func (n *NFT) sockets() error {
	open := func(raw **load.Raw, sink **load.Sink) func() error {
		return func() (err error) {
			// Packets of clients arrive by either link.
			for _, name := range []string{"all", "default", "u0", "d0", "d1", "c0"} {
				f := filepath.Join("/proc/sys/net/ipv4/conf", name, "rp_filter")
				if err := os.WriteFile(f, []byte("0"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
					return err
				}
			}
			if *raw, err = load.NewRaw(); err != nil {
				return err
			}
			*sink, err = load.NewSink()
			return err
		}
	}
	return errors.Join(
		load.InNamespace(n.ns[0], open(&n.rawUp, &n.clients)),
		load.InNamespace(n.ns[2], open(&n.rawDown, &n.up)))
}

// Stop removes the namespaces, and with them links, rule and flows.
func (n *NFT) Stop() {
	for _, r := range []*load.Raw{n.rawUp, n.rawDown} {
		if r != nil {
			r.Close()
		}
	}
	for _, s := range []*load.Sink{n.clients, n.up} {
		if s != nil {
			s.Close()
		}
	}
	for _, ns := range n.made {
		_ = ip("", "netns", "del", ns) // nothing else to do about it
	}
}

// Send queues a payload in the given direction, through the router or by the
// direct link.
func (n *NFT) Send(down, routed bool, client int, payload []byte) {
	addr := [4]byte{10, 77, byte(client / 250), byte(1 + client%250)}
	if !routed {
		addr[1] = 80
	}
	c := load.Endpoint{IP: addr, Port: n.clients.Port()}
	u := load.Endpoint{IP: [4]byte{10, 78, 0, 2}, Port: n.up.Port()}
	switch {
	case down:
		n.rawDown.Push(u, c, copy(n.rawDown.Buffer(), payload))
		return
	case routed:
		u = load.Endpoint{IP: [4]byte{10, 76, 0, 1}, Port: nftPort}
	default:
		u.IP = [4]byte{10, 79, 0, 2}
	}
	n.rawUp.Push(c, u, copy(n.rawUp.Buffer(), payload))
}

// Flush sends what is queued.
func (n *NFT) Flush() {
	n.rawUp.Flush()
	n.rawDown.Flush()
}

// Received reads one batch from each side and returns how many datagrams there were.
func (n *NFT) Received() int { return n.clients.Recv() + n.up.Recv() }

// Establish sends a packet of every client until each has arrived.
func (n *NFT) Establish(clients int) error {
	var payload [64]byte
	seen := make([]bool, clients)
	left := clients
	for range tries {
		for c := range clients {
			if !seen[c] {
				PutPayload(payload[:], c, 1, 0)
				n.Send(false, true, c, payload[:])
			}
		}
		n.Flush()
		pollUntilQuiet(func() int {
			k := n.up.Recv()
			for i := range k {
				if c, _, ok := ParsePayload(n.up.Data(i)); ok && c < clients && !seen[c] {
					seen[c] = true
					left--
				}
			}
			return k
		}, tryPause)
		if left == 0 {
			return nil
		}
	}
	return fmt.Errorf("nft: %d of %d clients got no packet through", left, clients)
}

// ip runs ip(8) with some standard input.
func ip(stdin string, args ...string) error {
	cmd := exec.Command("ip", args...) //nolint:noctx // short commands that end by themselves
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
