package main

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/usher-rtc/usher/internal/bench/procs"
)

// places are the names of the regions, as geo headers say them.
var places = [2]string{"east", "west"}

// pair is how many there are of each kind of process in a region.
const pair = 2

// Addresses. Region r, 0 or 1, is 10.(r+1).0.0/16, with a network for each kind of
// host. Its public address is on all of its edges.
const (
	edgeNet = iota + 1
	clusterNet
	transceiverNet
	redisNet
	clientNet // each client has an address of its own
	natNet    // what the NAT's clients come from
)

func addr(region, network, host int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(region + 1), byte(network), byte(host)})
}

func publicAddr(region int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(region + 1)}), 3478)
}

// homeAddr is an address behind the NAT; 1 is the NAT's own.
func homeAddr(host int) netip.Addr { return netip.AddrFrom4([4]byte{192, 168, 0, byte(host)}) }

// isClient reports whether an address is that of a client, or of a NAT.
func isClient(a netip.Addr) bool {
	b := a.As4()
	return b[0] == 10 && b[2] >= clientNet
}

const (
	startLimit = 20 * time.Second
	// relayDrain and hostDrain are how long programs drain.
	relayDrain = 2 * time.Second
	hostDrain  = 6 * time.Second
)

// region is one of the two, and cluster number r+1.
type region struct {
	fleet                        *fleet
	number                       int
	router                       *node
	clients                      *node // many clients, each with an address
	nat, home                    *node // home is behind the NAT
	store                        *node
	edges, clusters, transceiver [pair]*server
	balanced                     [pair]bool // which edges get clients
	links                        int
}

// server is a process of usher's: where it runs, and how it is started.
type server struct {
	*procs.Process
	node  *node
	name  string
	path  string
	ready string // what it says once it has its sockets
	args  []string
}

// start starts the server, again if it has ended or is to hand over, and returns
// when it had its sockets.
func (s *server) start(ctx context.Context) (up int64, err error) {
	s.Process, up, err = s.node.start(ctx, s.name, s.ready, s.path, s.args...)
	return up, err
}

// newRegion makes the network of a region, without processes.
func (f *fleet) newRegion(number int) (r *region, err error) {
	r = &region{fleet: f, number: number, balanced: [pair]bool{true, true}}
	if r.router, err = f.newNode(addr(number, 0, 1)); err != nil {
		return r, err
	}
	// The balancer is the router's choice between two next hops by a hash of
	// addresses and ports, as that of anycast: no packet is changed, no state kept.
	if err := r.router.sysctl("ipv4/ip_forward=1", "ipv4/fib_multipath_hash_policy=1", "ipv4/conf/all/send_redirects=0", "ipv4/conf/default/send_redirects=0"); err != nil {
		return r, err
	}
	if err := r.router.ip(fmt.Sprintf("link add name lan type bridge\naddr add %v/16 dev lan\nlink set lan up\n", r.router.addr)); err != nil {
		return r, err
	}
	for i := range pair {
		for _, of := range []struct {
			servers *[pair]*server
			network int
			name    string
		}{{&r.edges, edgeNet, "edge"}, {&r.clusters, clusterNet, "cluster relay"}, {&r.transceiver, transceiverNet, "transceiver"}} {
			n, err := r.join(addr(number, of.network, i+1))
			if err != nil {
				return r, err
			}
			of.servers[i] = &server{node: n, name: fmt.Sprintf("%s %s %d", places[number], of.name, i+1)}
		}
		if err := r.edges[i].node.ip(fmt.Sprintf("addr add %v/32 dev lo\n", publicAddr(number).Addr())); err != nil {
			return r, err
		}
	}
	if r.store, err = r.join(addr(number, redisNet, 1)); err != nil {
		return r, err
	}
	if r.clients, err = r.join(addr(number, clientNet, 1)); err != nil {
		return r, err
	}
	if err := r.clients.ip(fmt.Sprintf("route add local %v/24 dev lo\n", addr(number, clientNet, 0))); err != nil {
		return r, err
	}
	return r, r.translate()
}

// join makes a node that is connected to the region's network.
func (r *region) join(a netip.Addr) (*node, error) {
	n, err := r.fleet.newNode(a)
	if err != nil {
		return nil, err
	}
	r.links++
	port := fmt.Sprintf("port%d", r.links)
	if err := r.router.ip(fmt.Sprintf("link add name %s type veth peer name eth0 netns %d\nlink set %s master lan up\n", port, n.tid, port)); err != nil {
		return nil, err
	}
	return n, n.ip(fmt.Sprintf("addr add %v/16 dev eth0\nlink set eth0 up\nroute add default via %v\n", a, r.router.addr))
}

// translate makes the NAT and the network behind it.
func (r *region) translate() (err error) {
	if r.nat, err = r.join(addr(r.number, natNet, 1)); err != nil {
		return err
	}
	if r.home, err = r.fleet.newNode(homeAddr(2)); err != nil {
		return err
	}
	if err := r.nat.sysctl("ipv4/ip_forward=1"); err != nil {
		return err
	}
	if err := r.nat.ip(fmt.Sprintf("link add name inside type veth peer name eth0 netns %d\naddr add %v/24 dev inside\nlink set inside up\n", r.home.tid, homeAddr(1))); err != nil {
		return err
	}
	if err := r.home.ip(fmt.Sprintf("addr add %v/24 dev eth0\nlink set eth0 up\nroute add default via %v\n", r.home.addr, homeAddr(1))); err != nil {
		return err
	}
	return r.nat.nft("table ip nat {\n\tchain out {\n\t\ttype nat hook postrouting priority srcnat\n\t\toifname \"eth0\" masquerade\n\t}\n}\n")
}

// connect leads to the other region, once there is a link.
func (r *region) connect() error {
	other := 1 - r.number
	return r.router.ip(fmt.Sprintf("link set %s up\nroute add %v/16 dev %s\nroute add %v dev %s\n",
		wanDevice, addr(other, 0, 0), wanDevice, publicAddr(other).Addr(), wanDevice))
}

// balance spreads the region's public address over the edges that are to get
// clients.
func (r *region) balance() error {
	route := fmt.Sprintf("route replace %v", publicAddr(r.number).Addr())
	for i, in := range r.balanced {
		if in {
			route += fmt.Sprintf(" nexthop via %v", r.edges[i].node.addr)
		}
	}
	return r.router.ip(route + "\n")
}

// startAll starts the region's processes.
func (r *region) startAll(ctx context.Context) error {
	f := r.fleet
	_, _, err := r.store.start(ctx, places[r.number]+" redis", "eady to accept connections", "redis-server", "--bind", r.store.addr.String(),
		"--protected-mode", "no", "--save", "", "--appendonly", "no", "--dir", f.dir)
	if err != nil {
		return err
	}
	net := func(network int) string { return fmt.Sprintf("%v/24", addr(r.number, network, 0)) }
	everywhere := func(network int) string {
		return fmt.Sprintf("%v/24,%v/24", addr(0, network, 0), addr(1, network, 0))
	}
	for i := range pair {
		t := r.transceiver[i]
		t.path, t.ready = f.programs.Transceiverd, " transceiver trunk="
		t.args = []string{
			"-app", "meter", "-cluster", fmt.Sprint(r.number + 1), "-trunk", fmt.Sprintf("%v:9000", t.node.addr), "-http", t.page(),
			"-keys", f.file("keys"), "-trunk-keys", f.file("trunk-keys"), "-allow-relay", net(clusterNet), "-geo", f.file("geo.json"), "-drain", hostDrain.String(),
		}
		c := r.clusters[i]
		c.path, c.ready = f.programs.Relayd, " relay ingress="
		c.args = []string{
			"-cluster", fmt.Sprint(r.number + 1), "-trunk", fmt.Sprintf("%v:4000", c.node.addr), "-workers", "1", "-http", c.page(), "-keys", f.file("keys"),
			"-trunk-keys", f.file("trunk-keys"), "-edge-keys", f.file("edge-keys"), "-allow-upstream", net(transceiverNet), "-allow-edge", everywhere(edgeNet), "-drain", relayDrain.String(),
		}
		e := r.edges[i]
		e.path, e.ready = f.programs.Relayd, " relay ingress="
		e.args = []string{
			"-listen", fmt.Sprintf("id=%d,addr=%v", r.number+1, publicAddr(r.number)), "-trunk", fmt.Sprintf("%v:4000", e.node.addr), "-workers", "1", "-http", e.page(),
			"-keys", f.file("keys"), "-edge-keys", f.file("edge-keys"), "-clusters", f.file("clusters"), "-allow-cluster", everywhere(clusterNet),
			"-redis", fmt.Sprintf("redis://%v:6379", r.store.addr), "-handover", filepath.Join(f.dir, fmt.Sprintf("handover-%v", e.node.addr)), "-drain", relayDrain.String(),
		}
		for _, s := range []*server{t, c, e} {
			if _, err := s.start(ctx); err != nil {
				return err
			}
		}
	}
	return r.balance()
}

// page is where the server's pages are.
func (s *server) page() string { return s.node.addr.String() + ":8080" }

func (s *server) url(path string) string { return "http://" + s.page() + path }

// clusterFile is the directory of clusters.
func clusterFile() string {
	var b strings.Builder
	for r := range places {
		fmt.Fprintf(&b, "%d", r+1)
		for i := range pair {
			fmt.Fprintf(&b, " %v:4000", addr(r, clusterNet, i+1))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// regionHeader is the header in which a CDN would say where a client is.
const regionHeader = "X-Client-Region"

// geoFile says what is where.
func geoFile() string {
	var list []string
	for r, name := range places {
		list = append(list, fmt.Sprintf(`{"region": %q, "latitude": 0, "longitude": %d, "ingresses": [{"id": %d, "advertise": %q}]}`, name, 90*r, r+1, publicAddr(r)))
	}
	return fmt.Sprintf(`{"region_header": %q, "places": [%s]}`, regionHeader, strings.Join(list, ", "))
}
