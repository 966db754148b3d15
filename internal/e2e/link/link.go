package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Config describes a Link.
type Config struct {
	// Listen is where clients send to: what the relay advertises. Port 0 is a free
	// one, see Addr.
	Listen netip.AddrPort
	// Relay is where the relay listens.
	Relay netip.AddrPort
	// Source is the NAT's address on the relay's side. Every client has a port
	// of its own there.
	Source netip.Addr
	// Delay is what each direction takes, half of the round trip.
	Delay time.Duration
	// Enter runs f where the sockets are to be opened, inside a network
	// namespace for instance. nil runs it as it is.
	Enter func(f func() error) error
}

// Direction says which way a packet travels.
type Direction uint8

// The two directions.
const (
	Up   Direction = iota // to the relay
	Down                  // to the client
)

// Link is a running proxy. Its methods may be called from several goroutines.
type Link struct {
	cfg   Config
	front *net.UDPConn
	lines [2]chan parcel
	done  chan struct{}
	work  sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	err      error
	mappings map[netip.AddrPort]*mapping // by client
	old      []*mapping
	drop     [2]bool
	trace    []Packet
	late     int
}

// mapping is a client's port at the NAT.
type mapping struct {
	client netip.AddrPort
	conn   *net.UDPConn
	outer  netip.AddrPort
	dead   bool // after a rebinding; what arrives there is lost
}

// parcel is a packet on its way.
type parcel struct {
	due  time.Time
	m    *mapping
	data []byte
}

// queued is how many packets may be on their way in one direction. At 100
// clients with 100 packets a second each, 25 ms hold 250.
const queued = 1 << 14

// New opens the front socket and starts forwarding. Close the Link when done.
func New(cfg Config) (*Link, error) {
	if cfg.Enter == nil {
		cfg.Enter = func(f func() error) error { return f() }
	}
	l := &Link{cfg: cfg, done: make(chan struct{}), mappings: make(map[netip.AddrPort]*mapping)}
	for i := range l.lines {
		l.lines[i] = make(chan parcel, queued)
	}
	var err error
	if l.front, err = l.open(cfg.Listen); err != nil {
		return nil, err
	}
	l.work.Add(3)
	go l.readClients()
	go l.carry(Up)
	go l.carry(Down)
	return l, nil
}

func (l *Link) open(addr netip.AddrPort) (conn *net.UDPConn, err error) {
	err = l.cfg.Enter(func() error {
		pc, err := new(net.ListenConfig).ListenPacket(context.Background(), "udp", addr.String())
		if err != nil {
			return fmt.Errorf("link: %w", err)
		}
		conn = pc.(*net.UDPConn)
		return conn.SetReadBuffer(4 << 20)
	})
	if err != nil && conn != nil {
		_ = conn.Close()
	}
	return conn, err
}

// Close stops the Link and waits for its goroutines. It returns the first error
// that kept a packet from being forwarded, which a test should fail for.
func (l *Link) Close() error {
	l.mu.Lock()
	if l.closed {
		defer l.mu.Unlock()
		return l.err
	}
	l.closed = true
	close(l.done)
	_ = l.front.Close()
	for _, m := range l.mappings {
		_ = m.conn.Close()
	}
	for _, m := range l.old {
		_ = m.conn.Close()
	}
	l.mu.Unlock()
	l.work.Wait()
	return l.err
}

// Rebind gives every client a new port at the NAT. What arrives for the old one
// is lost without an answer, as at a NAT that forgot its mappings. Packets that
// left the old port before are still on their way. It returns the time.
func (l *Link) Rebind() (time.Time, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for client, m := range l.mappings {
		fresh, err := l.mapLocked(client)
		if err != nil {
			return time.Time{}, err
		}
		m.dead = true
		l.old = append(l.old, m) // open, so that its port is not given out again
		l.mappings[client] = fresh
	}
	return time.Now(), nil
}

// Drop makes the link lose everything in a direction, or nothing any more.
func (l *Link) Drop(d Direction, lose bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop[d] = lose
}

// Addr returns where clients send to.
func (l *Link) Addr() netip.AddrPort { return addrOf(l.front) }

func addrOf(conn *net.UDPConn) netip.AddrPort {
	a := conn.LocalAddr().(*net.UDPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// Relay returns where the relay listens.
func (l *Link) Relay() netip.AddrPort { return l.cfg.Relay }

// Outer returns the address that the relay sees a client at.
func (l *Link) Outer(client netip.AddrPort) (netip.AddrPort, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.mappings[client]
	if m == nil {
		return netip.AddrPort{}, false
	}
	return m.outer, true
}

// Client returns the client that the relay sees at an address now.
func (l *Link) Client(outer netip.AddrPort) (netip.AddrPort, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for client, m := range l.mappings {
		if m.outer == outer {
			return client, true
		}
	}
	return netip.AddrPort{}, false
}

// mapLocked opens a port for a client. The lock is held.
func (l *Link) mapLocked(client netip.AddrPort) (*mapping, error) {
	conn, err := l.open(netip.AddrPortFrom(l.cfg.Source, 0))
	if err != nil {
		return nil, err
	}
	m := &mapping{client: client, conn: conn, outer: addrOf(conn)}
	l.work.Add(1)
	go l.readRelay(m)
	return m, nil
}

func (l *Link) readClients() {
	defer l.work.Done()
	for buf := make([]byte, 64<<10); ; {
		n, from, err := l.front.ReadFromUDPAddrPort(buf)
		if err != nil {
			if l.over(err) {
				return
			}
			continue
		}
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		l.mu.Lock()
		m := l.mappings[from]
		if m == nil && !l.closed {
			if m, err = l.mapLocked(from); err != nil {
				l.failLocked(err)
			} else {
				l.mappings[from] = m
			}
		}
		l.mu.Unlock()
		if m != nil {
			l.send(Up, m, buf[:n])
		}
	}
}

func (l *Link) readRelay(m *mapping) {
	defer l.work.Done()
	for buf := make([]byte, 64<<10); ; {
		n, from, err := m.conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			if l.over(err) {
				return
			}
			continue
		}
		// A NAT lets only the relay's own packets in.
		if netip.AddrPortFrom(from.Addr().Unmap(), from.Port()) == l.cfg.Relay {
			l.send(Down, m, buf[:n])
		}
	}
}

// over reports whether a socket has ended. Errors of single packets, such as
// ECONNREFUSED while no relay listens, are what networks are like.
func (l *Link) over(err error) bool {
	select {
	case <-l.done:
		return true
	default:
		return errors.Is(err, net.ErrClosed)
	}
}

// send puts a packet on its way. What it is, and through which port it went, is
// decided now.
func (l *Link) send(d Direction, m *mapping, b []byte) {
	l.mu.Lock()
	lost := l.drop[d]
	l.mu.Unlock()
	if lost {
		return
	}
	select {
	case l.lines[d] <- parcel{time.Now().Add(l.cfg.Delay), m, append([]byte(nil), b...)}:
	default:
		l.mu.Lock()
		l.failLocked(errors.New("link: more packets on their way than it can hold"))
		l.mu.Unlock()
	}
}

func (l *Link) failLocked(err error) {
	if l.err == nil {
		l.err = err
	}
}

// carry delivers the packets of a direction when they are due. The delay is the
// same for all, so they stay in order.
func (l *Link) carry(d Direction) {
	defer l.work.Done()
	wait := time.NewTimer(0)
	defer wait.Stop()
	<-wait.C
	for {
		var p parcel
		select {
		case p = <-l.lines[d]:
		case <-l.done:
			return
		}
		if left := time.Until(p.due); left > 0 {
			wait.Reset(left)
			select {
			case <-wait.C:
			case <-l.done:
				return
			}
		}
		l.deliver(d, p)
	}
}

func (l *Link) deliver(d Direction, p parcel) {
	l.mu.Lock()
	lost := d == Down && p.m.dead
	if lost {
		l.late++
	} else {
		l.recordLocked(d, p)
	}
	l.mu.Unlock()
	switch {
	case lost:
	case d == Up:
		_, _ = p.m.conn.WriteToUDPAddrPort(p.data, l.cfg.Relay)
	default:
		_, _ = l.front.WriteToUDPAddrPort(p.data, p.m.client)
	}
}
