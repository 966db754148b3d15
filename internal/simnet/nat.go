package simnet

import (
	"errors"
	"net/netip"
)

// NAT joins private hosts to the network under one public address. Mappings
// are endpoint-independent unless Symmetric: one public port for each private
// address and port. Only peers that were sent something may send back.
type NAT struct {
	n         *Network
	public    netip.Addr
	symmetric bool
	conns     map[netip.AddrPort]*Conn
	out       map[natKey]uint16
	in        map[uint16]*mapping
	next      uint16
}

// natKey is what a mapping is made for; peer is set if the NAT is symmetric.
type natKey struct{ private, peer netip.AddrPort }

type mapping struct {
	conn  *Conn
	peers map[netip.AddrPort]bool
}

// NATConfig says how a NAT behaves.
type NATConfig struct {
	// Public is the address that peers see.
	Public netip.Addr
	// Symmetric gives each destination a public port of its own.
	Symmetric bool
}

// NAT adds a NAT to the network.
func (n *Network) NAT(cfg NATConfig) (*NAT, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !cfg.Public.IsValid() || n.nats[cfg.Public] != nil {
		return nil, errors.New("simnet: a NAT needs a public address of its own")
	}
	nat := &NAT{
		n: n, public: cfg.Public, symmetric: cfg.Symmetric,
		conns: make(map[netip.AddrPort]*Conn),
		out:   make(map[natKey]uint16),
		in:    make(map[uint16]*mapping),
		next:  1024,
	}
	n.nats[cfg.Public] = nat
	return nat, nil
}

// Listen opens a socket on a private address, as Network.Listen does.
func (t *NAT) Listen(private netip.AddrPort, queue int) (*Conn, error) {
	return t.n.listen(private, queue, t)
}

// Rebind forgets all mappings: what is sent next leaves from a new public
// port, and what comes for an old one is lost.
func (t *NAT) Rebind() {
	t.n.mu.Lock()
	defer t.n.mu.Unlock()
	t.forget()
}

// Move is Rebind with a change of the public address, as from Wi-Fi to a mobile network.
func (t *NAT) Move(public netip.Addr) error {
	t.n.mu.Lock()
	defer t.n.mu.Unlock()
	if !public.IsValid() || t.n.nats[public] != nil {
		return errors.New("simnet: a NAT needs a public address of its own")
	}
	delete(t.n.nats, t.public)
	t.public = public
	t.n.nats[public] = t
	t.forget()
	return nil
}

func (t *NAT) forget() {
	clear(t.out)
	clear(t.in)
}

// outbound returns the public address for a datagram; the network's lock is held.
func (t *NAT) outbound(c *Conn, to netip.AddrPort) netip.AddrPort {
	key := natKey{private: c.local}
	if t.symmetric {
		key.peer = to
	}
	port, ok := t.out[key]
	if !ok {
		for port = t.next; t.in[port] != nil; port = t.after(port) {
		}
		t.next = t.after(port)
		t.out[key] = port
		t.in[port] = &mapping{peers: make(map[netip.AddrPort]bool)}
	}
	m := t.in[port]
	m.conn = c // a private address may have been opened anew
	m.peers[to] = true
	return netip.AddrPortFrom(t.public, port)
}

func (t *NAT) after(port uint16) uint16 { return max(port+1, 1024) }

// inbound returns the socket behind a public address, or nil; the network's
// lock is held.
func (t *NAT) inbound(from, to netip.AddrPort) *Conn {
	m := t.in[to.Port()]
	if m == nil || !m.peers[from] {
		return nil
	}
	return m.conn
}
