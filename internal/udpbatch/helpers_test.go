package udpbatch

import (
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for something that must happen.
const patience = 10 * time.Second

// onlyPacketConn hides everything but net.PacketConn, which forces the portable path.
type onlyPacketConn struct{ net.PacketConn }

// udpMethods keeps the methods of *net.UDPConn that save allocations, and is
// on the portable path all the same.
type udpMethods struct{ *net.UDPConn }

// path is a way to get a Conn; every functional test runs on each.
type path struct {
	name    string
	batched bool
	listen  func(addr netip.AddrPort) (*Conn, error)
}

// bigBuffer holds all that a test puts into a queue before it is read.
const bigBuffer = 8 << 20

func wrapped(wrap func(*net.UDPConn) net.PacketConn) func(netip.AddrPort) (*Conn, error) {
	return func(addr netip.AddrPort) (*Conn, error) {
		u, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr))
		if err != nil {
			return nil, err
		}
		return NewConnConfig(wrap(u), SocketConfig{ReadBuffer: bigBuffer})
	}
}

// eachPath runs a test on every path.
func eachPath(t *testing.T, f func(t *testing.T, p path)) {
	t.Helper()
	for _, p := range paths {
		t.Run(p.name, func(t *testing.T) { f(t, p) })
	}
}

func (p path) open(t testing.TB, addr string) *Conn {
	t.Helper()
	c, err := p.listen(netip.MustParseAddrPort(addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// received is a Packet that outlives its batch.
type received struct {
	conn int
	Packet
}

// collector is a Handler that hands everything to a channel and, if echo is set, sends it back.
type collector struct {
	conns []*Conn // to echo; nil: no echo
	got   chan received
	idle  func(now time.Time) time.Duration
	msgs  []Message
	bufs  [][1][]byte
}

func newCollector() *collector { return &collector{got: make(chan received, 4096)} }

func (h *collector) HandleBatch(conn int, pkts []Packet) {
	if h.conns != nil {
		h.echo(conn, pkts)
	}
	for _, p := range pkts {
		p.Data = append([]byte(nil), p.Data...)
		h.got <- received{conn, p}
	}
}

func (h *collector) echo(conn int, pkts []Packet) {
	h.msgs, h.bufs = h.msgs[:0], h.bufs[:0]
	for _, p := range pkts {
		h.bufs = append(h.bufs, [1][]byte{p.Data})
		h.msgs = append(h.msgs, Message{Buffers: h.bufs[len(h.bufs)-1][:], To: p.From, Local: p.Local, TOS: p.TOS})
	}
	h.conns[conn].WriteBatch(h.msgs)
}

func (h *collector) Idle(now time.Time) time.Duration {
	if h.idle == nil {
		return 0
	}
	return h.idle(now)
}

func (h *collector) next(t testing.TB) received {
	t.Helper()
	select {
	case p := <-h.got:
		return p
	case <-time.After(patience):
		t.Fatal("no packet arrived")
		panic("not reached")
	}
}

// serve runs a Group until the end of the test, or until the returned function is called.
func serve(t testing.TB, h Handler, cfg GroupConfig, conns ...*Conn) (*Group, func()) {
	t.Helper()
	g, err := NewGroup(conns, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- g.Serve(h) }()
	var once sync.Once
	stop := func() {
		once.Do(func() {
			if err := g.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			select {
			case err := <-ended:
				if err != nil {
					t.Errorf("Serve: %v", err)
				}
			case <-time.After(patience):
				t.Error("Serve goes on after Close")
			}
		})
	}
	t.Cleanup(stop)
	return g, stop
}

// client opens a plain socket.
func client(t testing.TB, addr string) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addr)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetReadBuffer(4 << 20); err != nil {
		t.Fatal(err)
	}
	return c
}

// receive reads one datagram.
func receive(t testing.TB, c *net.UDPConn) ([]byte, netip.AddrPort) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, MaxDatagram)
	n, from, err := c.ReadFromUDPAddrPort(buf)
	if err != nil {
		t.Fatal(err)
	}
	return buf[:n], unmap(from)
}

func addrOf(c *net.UDPConn) netip.AddrPort { return unmap(c.LocalAddr().(*net.UDPAddr).AddrPort()) }

// pattern is a payload that shows where it was cut.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i % 251)
	}
	return b
}

func message(to netip.AddrPort, bufs ...[]byte) Message { return Message{Buffers: bufs, To: to} }
