package delay

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// queue is what may be on its way in one direction.
	queue = 4096
	// maxClients bounds the addresses that one client may use: browsers open
	// a new port for an ICE restart.
	maxClients = 16
	datagram   = 65536
)

// Link carries datagrams between clients, who send to Addr, and one server.
// Every client address gets a port of its own towards the server, as behind a NAT.
type Link struct {
	oneWay  time.Duration
	server  netip.AddrPort
	front   *net.UDPConn
	dropped atomic.Uint64
	wg      sync.WaitGroup

	mu      sync.Mutex
	clients map[netip.AddrPort]*lane
	closed  bool
}

// lane is one client's way up. Its conn also takes what comes down.
type lane struct {
	conn *net.UDPConn
	up   chan parcel
	down chan parcel
}

type parcel struct {
	due time.Time
	b   []byte
}

// New makes a link on a free port of 127.0.0.1. oneWay is the delay of each
// direction; 0 forwards at once. Close it.
func New(server netip.AddrPort, oneWay time.Duration) (*Link, error) {
	front, err := listen()
	if err != nil {
		return nil, err
	}
	l := &Link{oneWay: oneWay, server: server, front: front, clients: make(map[netip.AddrPort]*lane)}
	l.wg.Add(1)
	go l.read()
	return l, nil
}

func listen() (*net.UDPConn, error) {
	c, err := (&net.ListenConfig{}).ListenPacket(context.Background(), "udp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UDPConn)
	if !ok {
		return nil, errors.Join(errors.New("delay: no UDP socket"), c.Close())
	}
	return u, nil
}

// Addr is where clients send to.
func (l *Link) Addr() netip.AddrPort { return addrOf(l.front) }

// Dropped returns how many datagrams found a queue full. It should be 0.
func (l *Link) Dropped() uint64 { return l.dropped.Load() }

func addrOf(c *net.UDPConn) netip.AddrPort {
	if a, ok := c.LocalAddr().(*net.UDPAddr); ok {
		return a.AddrPort()
	}
	return netip.AddrPort{}
}

// read takes what clients send.
func (l *Link) read() {
	defer l.wg.Done()
	buf := make([]byte, datagram)
	for {
		n, from, err := l.front.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			break
		}
		if err != nil {
			continue
		}
		if w := l.lane(from); w != nil {
			l.carry(w.up, buf[:n])
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.clients {
		close(w.up)
	}
}

func (l *Link) lane(client netip.AddrPort) *lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.clients[client]; w != nil {
		return w
	}
	if l.closed || len(l.clients) == maxClients {
		return nil
	}
	conn, err := listen()
	if err != nil {
		return nil
	}
	w := &lane{conn: conn, up: make(chan parcel, queue), down: make(chan parcel, queue)}
	l.clients[client] = w
	l.wg.Add(3)
	go l.deliver(w.up, conn, l.server)
	go l.deliver(w.down, l.front, client)
	go l.readBack(w)
	return w
}

// readBack takes what the server sends to one client.
func (l *Link) readBack(w *lane) {
	defer l.wg.Done()
	defer close(w.down)
	buf := make([]byte, datagram)
	for {
		n, _, err := w.conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			l.carry(w.down, buf[:n])
		}
	}
}

func (l *Link) carry(to chan<- parcel, b []byte) {
	select {
	case to <- parcel{time.Now().Add(l.oneWay), append([]byte(nil), b...)}:
	default:
		l.dropped.Add(1)
	}
}

// deliver sends each parcel when it is due. The delay is the same for all, so
// the first one in is the first one out.
func (l *Link) deliver(from <-chan parcel, conn *net.UDPConn, to netip.AddrPort) {
	defer l.wg.Done()
	for p := range from {
		if l.oneWay > 0 {
			time.Sleep(time.Until(p.due))
		}
		_, _ = conn.WriteToUDPAddrPort(p.b, to) // a closed port is a packet that nobody reads
	}
}

// Close ends the link and waits for its goroutines. What is on its way is
// delivered or lost.
func (l *Link) Close() error {
	l.mu.Lock()
	l.closed = true
	lanes := make([]*lane, 0, len(l.clients))
	for _, w := range l.clients {
		lanes = append(lanes, w)
	}
	l.mu.Unlock()
	err := l.front.Close()
	for _, w := range lanes {
		err = errors.Join(err, w.conn.Close())
	}
	l.wg.Wait()
	return err
}
