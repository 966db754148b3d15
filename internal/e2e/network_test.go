package e2e

import (
	"context"
	"net"
	"net/http"
	"os/exec"
	"testing"
	"time"

	"github.com/pion/ice/v4"
	"github.com/pion/webrtc/v4"

	"github.com/usher-rtc/usher/internal/e2e/netns"
)

// network is where a test's processes, browsers and sockets live: a namespace
// of the test's own, so that fixed ports never collide, nothing reaches a real
// network, and the answer to "which interface is there" is the test's.
type network struct {
	*netns.Namespace
	client *http.Client
}

// The address of the one interface of an outside network (RFC 5737).
const outsideAddr = "198.51.100.2"

func newNetwork(t *testing.T) *network {
	t.Helper()
	need(t, netns.Available())
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	n := &network{Namespace: ns}
	transport := &http.Transport{DialContext: n.dial}
	n.client = &http.Client{Transport: transport, Timeout: 10 * time.Second}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = ns.Close()
	})
	return n
}

// loopbackNetwork has 127.0.0.1 and nothing else. Firefox looks for a default
// route before it uses any interface, so there is one.
func loopbackNetwork(t *testing.T) *network {
	t.Helper()
	n := newNetwork(t)
	n.ip(t, "route", "add", "default", "dev", "lo", "src", "127.0.0.1")
	return n
}

// outsideNetwork has an interface with outsideAddr besides the loopback one,
// like any machine on a network.
func outsideNetwork(t *testing.T) *network {
	t.Helper()
	n := newNetwork(t)
	n.ip(t, "link", "add", "out0", "type", "veth", "peer", "name", "out1") // nobody is at out1
	n.ip(t, "link", "set", "out1", "up")
	n.ip(t, "address", "add", outsideAddr+"/24", "dev", "out0")
	n.ip(t, "link", "set", "out0", "up")
	n.ip(t, "route", "add", "default", "via", "198.51.100.1", "dev", "out0")
	return n
}

func (n *network) ip(t *testing.T, args ...string) {
	t.Helper()
	if err := n.IP(args...); err != nil {
		t.Fatal(err)
	}
}

// start starts a command inside the network.
func (n *network) start(cmd *exec.Cmd) error { return n.Do(cmd.Start) }

func (n *network) dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	err = n.Do(func() error {
		c, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return c, err
}

func (n *network) listen(t *testing.T, address string) net.Listener {
	t.Helper()
	var l net.Listener
	err := n.Do(func() (err error) {
		l, err = new(net.ListenConfig).Listen(t.Context(), "tcp", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// iceMux gives Pion a socket inside the network.
func (n *network) iceMux(t *testing.T, address string) ice.UDPMux {
	t.Helper()
	var c net.PacketConn
	err := n.Do(func() (err error) {
		c, err = new(net.ListenConfig).ListenPacket(t.Context(), "udp4", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	mux := webrtc.NewICEUDPMux(nil, c)
	t.Cleanup(func() { _ = mux.Close() }) // and the socket with it
	return mux
}
