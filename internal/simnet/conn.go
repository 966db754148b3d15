package simnet

import (
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
)

// Conn is a simulated UDP socket. It implements [net.PacketConn].
type Conn struct {
	n      *Network
	nat    *NAT // if the host is behind one
	local  netip.AddrPort
	queue  chan datagram
	closed chan struct{}
	once   sync.Once

	mu       sync.Mutex
	deadline *time.Timer
	expired  chan struct{} // closed when the read deadline has passed
}

var _ net.PacketConn = (*Conn)(nil)

func newConn(n *Network, nat *NAT, local netip.AddrPort, queue int) *Conn {
	return &Conn{
		n: n, nat: nat, local: local,
		queue:   make(chan datagram, queue),
		closed:  make(chan struct{}),
		expired: make(chan struct{}),
	}
}

// push reports whether the queue had room.
func (c *Conn) push(d datagram) bool {
	select {
	case c.queue <- d:
		return true
	default:
		return false
	}
}

func (c *Conn) isClosed() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

func (c *Conn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "udp", Source: c.LocalAddr(), Err: err}
}

// ReadFrom reads one datagram. What does not fit in b is cut off, as with a UDP socket.
func (c *Conn) ReadFrom(b []byte) (int, net.Addr, error) {
	c.mu.Lock()
	expired := c.expired
	c.mu.Unlock()
	select { // what is over is over, whatever is in the queue
	case <-c.closed:
		return 0, nil, c.opError("read", net.ErrClosed)
	case <-expired:
		return 0, nil, c.opError("read", os.ErrDeadlineExceeded)
	default:
	}
	select {
	case d := <-c.queue:
		return copy(b, d.data), net.UDPAddrFromAddrPort(d.from), nil
	case <-c.closed:
		return 0, nil, c.opError("read", net.ErrClosed)
	case <-expired:
		return 0, nil, c.opError("read", os.ErrDeadlineExceeded)
	}
}

// WriteTo sends one datagram; addr is a *[net.UDPAddr] or its text. It never
// blocks and reports no loss.
func (c *Conn) WriteTo(b []byte, addr net.Addr) (int, error) {
	if c.isClosed() {
		return 0, c.opError("write", net.ErrClosed)
	}
	to, err := netip.ParseAddrPort(addr.String())
	if err != nil {
		return 0, c.opError("write", err)
	}
	c.n.send(c, b, netip.AddrPortFrom(to.Addr().Unmap(), to.Port()))
	return len(b), nil
}

// Close closes the socket and frees its address.
func (c *Conn) Close() error {
	c.once.Do(func() {
		c.n.mu.Lock()
		defer c.n.mu.Unlock()
		if c.nat != nil {
			delete(c.nat.conns, c.local)
		} else {
			delete(c.n.conns, c.local)
		}
		close(c.closed)
	})
	return c.SetReadDeadline(time.Time{}) // stops its timer
}

// LocalAddr returns the socket's own address; behind a NAT, the private one.
func (c *Conn) LocalAddr() net.Addr { return net.UDPAddrFromAddrPort(c.local) }

// AddrPort returns LocalAddr in its other form.
func (c *Conn) AddrPort() netip.AddrPort { return c.local }

// SetDeadline sets the read deadline; writes never block.
func (c *Conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// SetWriteDeadline does nothing: writes never block.
func (c *Conn) SetWriteDeadline(time.Time) error { return nil }

// SetReadDeadline ends reads, also those that wait now, at a time; the zero time never.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deadline != nil {
		c.deadline.Stop()
		c.deadline = nil
	}
	select {
	case <-c.expired:
		c.expired = make(chan struct{})
	default:
	}
	if t.IsZero() {
		return nil
	}
	expired := c.expired
	if wait := time.Until(t); wait > 0 {
		c.deadline = time.AfterFunc(wait, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.expired == expired && c.deadline != nil {
				close(expired)
				c.deadline = nil
			}
		})
	} else {
		close(expired)
	}
	return nil
}
