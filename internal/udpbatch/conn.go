package udpbatch

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync/atomic"

	"github.com/usher-rtc/usher/internal/config"
)

// Conn is a UDP socket. Its methods are safe for concurrent use.
type Conn struct {
	t     transport
	n     *counters
	local netip.AddrPort
	asked SocketConfig
	group atomic.Pointer[Group] // the Group that reads it, if any
}

// transport is what the two paths have in common.
type transport interface {
	writeBatch(ms []Message) (sent int)
	close() error
	file() (*os.File, error)
	addStats(*Stats)
}

// counters are shared by the reading and the writing side; each adds once a batch.
type counters struct {
	received, receivedBytes, reads     atomic.Uint64
	sent, writes                       atomic.Uint64
	truncated, badSource               atomic.Uint64
	gsoRefused, tosRefused             atomic.Uint64
	readErrs, writeErrs                errCounters
	grantedReadBuffer, grantedWriteBuf atomic.Int64
}

// Listen opens a socket. On Linux it is batched; every datagram it sends may
// be fragmented (IP_PMTUDISC_OMIT), because a path MTU learned from an ICMP
// message must not make larger datagrams fail. It returns a *config.Error for
// a bad configuration and an error that wraps the system's otherwise.
func Listen(cfg SocketConfig) (*Conn, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return listen(cfg)
}

// CheckFree returns an error unless an exclusive bind to the address succeeds.
// Sockets that share an address by ReusePort would share its packets with
// another process of the same user that does so, too, and not notice. It
// leaves nothing open. Any port is free if addr has none.
func CheckFree(addr netip.AddrPort) error {
	if addr.Port() == 0 {
		return nil
	}
	c, err := Listen(SocketConfig{Addr: addr})
	if err != nil {
		return err
	}
	return c.Close()
}

func (cfg *SocketConfig) validate() error {
	// The kernel doubles the value, which must then fit in 31 bits.
	const maxBuffer = 1<<30 - 1
	if cfg.ReadBuffer < 0 || cfg.ReadBuffer > maxBuffer {
		return config.Errorf("ReadBuffer", "must be 0 to %d, is %d", maxBuffer, cfg.ReadBuffer)
	}
	if cfg.WriteBuffer < 0 || cfg.WriteBuffer > maxBuffer {
		return config.Errorf("WriteBuffer", "must be 0 to %d, is %d", maxBuffer, cfg.WriteBuffer)
	}
	a := cfg.Addr.Addr()
	if a.IsLinkLocalUnicast() && a.Is6() && a.Zone() == "" {
		return config.Errorf("Addr", "link-local address %s needs a zone", a)
	}
	return nil
}

// NewConn takes a socket over: use neither pc nor its Close afterwards, but
// the Conn's. A *[net.UDPConn] is batched where the system can; anything else
// goes the portable path: its read deadline must end a blocked ReadFrom, and if
// setting one fails, Stop of a Group closes it. On error pc stays the caller's.
func NewConn(pc net.PacketConn) (*Conn, error) {
	return NewConnConfig(pc, SocketConfig{})
}

// NewConnConfig is NewConn with buffer sizes and offloads. Addr, ReusePort
// and V6Only are not used: the socket is bound.
func NewConnConfig(pc net.PacketConn, cfg SocketConfig) (*Conn, error) {
	if pc == nil {
		return nil, config.Errorf("PacketConn", "must not be nil")
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return takeOver(pc, cfg)
}

// FromFile makes a Conn of a descriptor that another Conn's File returned or
// another process passed on. It duplicates the descriptor: f stays the
// caller's to close. Of cfg the buffer sizes and offloads are used.
func FromFile(f *os.File, cfg SocketConfig) (*Conn, error) {
	if f == nil {
		return nil, config.Errorf("File", "must not be nil")
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return fromFile(f, cfg)
}

// LocalAddr returns the bound address. An IPv4 address is in its 4-byte form.
func (c *Conn) LocalAddr() netip.AddrPort { return c.local }

// WriteBatch sends each message and sets its Err. It never stops at a bad
// one, and it waits at most about a millisecond a call for room in the
// socket's send buffer; what does not fit then is dropped with EAGAIN. An
// error that stems from an earlier datagram (ECONNREFUSED after an ICMP
// message) is not charged to the next one: that is sent again, once. Order is
// kept. It returns the number of messages without an error, counts each
// error, and allocates nothing on the batched path. Concurrent calls wait for
// each other.
func (c *Conn) WriteBatch(ms []Message) (sent int) {
	if len(ms) == 0 {
		return 0
	}
	return c.t.writeBatch(ms)
}

// File returns a duplicate of the descriptor, for the caller to pass on and
// close. The socket, its queue and its port live until every duplicate is
// closed. It returns an error that wraps [errors.ErrUnsupported] if there is
// no descriptor.
func (c *Conn) File() (*os.File, error) { return c.t.file() }

// Close closes the socket. When it returns, no system call of this package
// uses the descriptor any more. A Group that reads the Conn goes on with its
// other sockets; Close of the Group closes all.
func (c *Conn) Close() error { return c.t.close() }

// Stats returns the counters. They stay readable after Close.
func (c *Conn) Stats() Stats {
	n := c.n
	s := Stats{
		Received:           n.received.Load(),
		ReceivedBytes:      n.receivedBytes.Load(),
		Reads:              n.reads.Load(),
		Sent:               n.sent.Load(),
		Writes:             n.writes.Load(),
		Truncated:          n.truncated.Load(),
		BadSource:          n.badSource.Load(),
		GSORefused:         n.gsoRefused.Load(),
		TOSRefused:         n.tosRefused.Load(),
		ReadErrors:         n.readErrs.snapshot(),
		WriteErrors:        n.writeErrs.snapshot(),
		AskedReadBuffer:    c.asked.ReadBuffer,
		AskedWriteBuffer:   c.asked.WriteBuffer,
		GrantedReadBuffer:  int(n.grantedReadBuffer.Load()),
		GrantedWriteBuffer: int(n.grantedWriteBuf.Load()),
	}
	c.t.addStats(&s)
	return s
}

// unmap gives an address its one canonical form.
func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

var errNoFile = errors.Join(errors.New("udpbatch: the connection has no descriptor"), errors.ErrUnsupported)
