package transceiver

import (
	"crypto/rand"
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pion/ice/v4"

	"github.com/usher-rtc/usher/internal/stun"
)

// Pion sees one path for the whole life of a session, between two addresses
// of TEST-NET-1 (RFC 5737) that exist nowhere.
var (
	virtualLocal  = netip.MustParseAddrPort("192.0.2.2:9")
	virtualRemote = netip.MustParseAddrPort("192.0.2.1:9")
)

const (
	// inQueue bounds what waits for Pion: 640 ms of audio, or one congestion
	// window of a data channel. A slow session loses its own packets only.
	inQueue = 32
	// heldQueue bounds what waits for Pion's agent to start: a ClientHello in
	// two datagrams, once repeated.
	heldQueue = 8
	// feedInterval is how often the first check is put to Pion again, until
	// its agent has started and answers.
	feedInterval = 5 * time.Millisecond
	// feedAgain is how often Pion gets a check from then on. With the longest gap
	// between a browser's checks it must be less than pionDisconnected; a client that
	// checks more often need not cost Pion's part of each.
	feedAgain = 5 * time.Second
)

// sessionMux is the ice.UDPMux of one session. Pion asks it for one conn.
type sessionMux struct{ conn *virtualConn }

var _ ice.UDPMux = (*sessionMux)(nil)

// GetConn implements ice.UDPMux.
func (m *sessionMux) GetConn(string, net.Addr) (net.PacketConn, error) { return m.conn, nil }

// RemoveConnByUfrag implements ice.UDPMux. Pion's restarts never happen, so
// this comes with the end of the agent.
func (m *sessionMux) RemoveConnByUfrag(string) { _ = m.conn.Close() }

// GetListenAddresses implements ice.UDPMux.
func (m *sessionMux) GetListenAddresses() []net.Addr {
	return []net.Addr{net.UDPAddrFromAddrPort(virtualLocal)}
}

// Close implements ice.UDPMux.
func (m *sessionMux) Close() error { return m.conn.Close() }

// virtualConn is the socket that Pion reads from and writes to. Packets for
// Pion wait in a short queue; what Pion writes goes to write at once, except
// STUN, which is between Pion and this type.
type virtualConn struct {
	pionUfrag, pionPassword     string // Pion's own ICE credentials, never on the wire
	clientUfrag, clientPassword string // the client's first ones

	write  func(b []byte) // takes DTLS, RTP and RTCP; never blocks, keeps no reference
	queue  chan *packet   // closed, with mu held, when closed is set
	closed atomic.Bool

	started atomic.Bool // Pion has answered a check

	mu   sync.Mutex // held by all who send to queue
	feed feed
	held []*packet // what came before Pion had started
}

var (
	_ net.PacketConn           = (*virtualConn)(nil)
	_ ice.AddrPortReaderWriter = (*virtualConn)(nil)
)

func newVirtualConn(clientUfrag, clientPassword string, write func([]byte)) *virtualConn {
	return &virtualConn{
		pionUfrag:      rand.Text()[:8],
		pionPassword:   rand.Text(),
		clientUfrag:    clientUfrag,
		clientPassword: clientPassword,
		write:          write,
		queue:          make(chan *packet, inQueue),
	}
}

// deliver hands a client's DTLS, RTP or RTCP to Pion and reports whether there
// was room. Before Pion's agent has started the packet is held back: Pion would
// drop it, and a ClientHello lost costs a second.
func (c *virtualConn) deliver(b []byte) bool {
	if len(b) > slotSize {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.started.Load() {
		return c.push(newPacket(b))
	}
	if c.closed.Load() || len(c.held) == heldQueue {
		return false
	}
	c.held = append(c.held, newPacket(b))
	return true
}

// push queues a packet for Pion. The lock is held.
func (c *virtualConn) push(p *packet) bool {
	if !c.closed.Load() {
		select {
		case c.queue <- p:
			return true
		default:
		}
	}
	p.free()
	return false
}

// ReadFromAddrPort implements ice.AddrPortReaderWriter.
func (c *virtualConn) ReadFromAddrPort(b []byte) (int, netip.AddrPort, error) {
	// A receive from one channel costs half of a choice between two.
	p, open := <-c.queue
	if !open {
		return 0, netip.AddrPort{}, net.ErrClosed
	}
	n := copy(b, p.bytes())
	p.free()
	return n, virtualRemote, nil
}

// WriteToAddrPort implements ice.AddrPortReaderWriter. While the conn is open
// it reports success whatever becomes of the packet, as a network would: an
// error would end Pion's SCTP association.
func (c *virtualConn) WriteToAddrPort(b []byte, _ netip.AddrPort) (int, error) {
	if c.closed.Load() {
		return 0, net.ErrClosed
	}
	if stun.Classify(b) == stun.ClassSTUN {
		c.answered(b)
		return len(b), nil
	}
	c.write(b)
	return len(b), nil
}

// ReadFrom implements net.PacketConn.
func (c *virtualConn) ReadFrom(b []byte) (int, net.Addr, error) {
	n, from, err := c.ReadFromAddrPort(b)
	if err != nil {
		return 0, nil, err
	}
	return n, net.UDPAddrFromAddrPort(from), nil
}

// WriteTo implements net.PacketConn.
func (c *virtualConn) WriteTo(b []byte, _ net.Addr) (int, error) {
	return c.WriteToAddrPort(b, virtualRemote)
}

// Close implements net.PacketConn. It unblocks reads.
func (c *virtualConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed.Swap(true) {
		return nil
	}
	close(c.queue)
	for _, p := range c.held {
		p.free()
	}
	c.held = nil
	return nil
}

// LocalAddr implements net.PacketConn.
func (c *virtualConn) LocalAddr() net.Addr { return net.UDPAddrFromAddrPort(virtualLocal) }

// SetDeadline implements net.PacketConn. Pion sets one only to abort I/O right
// before it closes, and nothing here blocks for longer than that.
func (c *virtualConn) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.PacketConn; see SetDeadline.
func (c *virtualConn) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.PacketConn; see SetDeadline.
func (c *virtualConn) SetWriteDeadline(time.Time) error { return nil }

// feed makes the checks that keep Pion's ICE agent connected.
type feed struct {
	id     stun.TransactionID // of the newest check
	serial uint32
	active bool      // a check was put to Pion at least once
	next   time.Time // when to put the first one again, while Pion has not answered
	again  time.Time // when the next authenticated check is put, after Pion has
}

// writers make the checks. A session needs one every few seconds.
var writers = sync.Pool{New: func() any { return new(stunWriter) }}

type stunWriter struct {
	stun.Builder
	auth stun.Authenticator
}

// inject puts a check to Pion, for an authenticated check of the client.
func (c *virtualConn) inject(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.feed.active && (!c.started.Load() || now.Before(c.feed.again)) {
		return // the first one is still being repeated, or the last one is recent
	}
	c.feed.active = true
	c.check(now)
}

// poll repeats the first check while Pion has not answered.
func (c *virtualConn) poll(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.feed.active && !c.started.Load() && !now.Before(c.feed.next) {
		c.check(now)
	}
}

// nextCheck returns when poll has something to do, the zero time for never.
func (c *virtualConn) nextCheck() time.Time {
	if c.started.Load() {
		return time.Time{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.feed.active {
		return time.Time{}
	}
	return c.feed.next
}

// check builds and queues a check. The lock is held.
func (c *virtualConn) check(now time.Time) {
	f := &c.feed
	f.serial++
	copy(f.id[:], "usher---")
	binary.BigEndian.PutUint32(f.id[8:], f.serial)
	f.next = now.Add(feedInterval)
	p, _ := packets.Get().(*packet)
	w, _ := writers.Get().(*stunWriter)
	w.Reset(p.buf[:0], stun.BindingRequest, f.id)
	w.AddUsername(c.pionUfrag, c.clientUfrag)
	w.AddPriority(0x6e0001ff)
	w.AddControlling(1)
	w.AddUseCandidate()
	w.AddIntegrity(&w.auth, []byte(c.pionPassword))
	w.AddFingerprint()
	p.n = len(w.Bytes())
	w.Reset(nil, 0, stun.TransactionID{}) // the packet is not ours any more
	writers.Put(w)
	if c.push(p) {
		f.again = now.Add(feedAgain)
	}
}

// answered reads a STUN message that Pion wrote. Once the newest check has its
// answer, whatever was held back follows.
func (c *virtualConn) answered(b []byte) {
	if c.started.Load() || stun.Type(binary.BigEndian.Uint16(b)) != stun.BindingSuccess {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// Any check of this conn will do: with a 5 ms interval the answer may be
	// to the one before.
	if !c.feed.active || string(b[8:16]) != "usher---" {
		return
	}
	for _, p := range c.held {
		c.push(p)
	}
	c.held = nil
	c.started.Store(true)
}
