package udpbatch

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/usher-rtc/usher/internal/config"
)

// portableConn is the path over any net.PacketConn: a call for each datagram.
type portableConn struct {
	pc     net.PacketConn
	udp    udpAddrPortConn // pc, if it can do without net.Addr
	n      *counters
	closed atomic.Bool
	gso    Offload
	gro    Offload

	wmu     sync.Mutex
	scratch []byte // a message gathered
}

// udpAddrPortConn is what *net.UDPConn offers to avoid an allocation per call.
type udpAddrPortConn interface {
	ReadFromUDPAddrPort(b []byte) (n int, addr netip.AddrPort, err error)
	WriteToUDPAddrPort(b []byte, addr netip.AddrPort) (int, error)
}

func newPortable(pc net.PacketConn, cfg SocketConfig) (*Conn, error) {
	local, ok := addrPort(pc.LocalAddr())
	if !ok {
		return nil, config.Errorf("PacketConn", "its local address %v is not an IP address and port", pc.LocalAddr())
	}
	p := &portableConn{pc: pc, n: &counters{}}
	p.udp, _ = pc.(udpAddrPortConn)
	if cfg.GSO {
		p.gso = OffloadUnsupported
	}
	if cfg.GRO {
		p.gro = OffloadUnsupported
	}
	if cfg.ReadBuffer > 0 {
		if b, ok := pc.(interface{ SetReadBuffer(int) error }); ok {
			if err := b.SetReadBuffer(cfg.ReadBuffer); err != nil {
				return nil, fmt.Errorf("udpbatch: read buffer of %s: %w", local, err)
			}
		}
	}
	if cfg.WriteBuffer > 0 {
		if b, ok := pc.(interface{ SetWriteBuffer(int) error }); ok {
			if err := b.SetWriteBuffer(cfg.WriteBuffer); err != nil {
				return nil, fmt.Errorf("udpbatch: write buffer of %s: %w", local, err)
			}
		}
	}
	return &Conn{t: p, n: p.n, local: unmap(local), asked: cfg}, nil
}

// addrPort reads an address of whatever type a PacketConn uses.
func addrPort(a net.Addr) (netip.AddrPort, bool) {
	switch a := a.(type) {
	case nil:
		return netip.AddrPort{}, false
	case *net.UDPAddr:
		ap := a.AddrPort()
		if !ap.IsValid() && len(a.IP) == 0 {
			ap = netip.AddrPortFrom(netip.IPv6Unspecified(), ap.Port())
		}
		return unmap(ap), ap.IsValid()
	case interface{ AddrPort() netip.AddrPort }:
		return unmap(a.AddrPort()), a.AddrPort().IsValid()
	default:
		ap, err := netip.ParseAddrPort(a.String())
		return unmap(ap), err == nil
	}
}

// errNoAddress says that a datagram came from something without an IP address.
var errNoAddress = errors.New("udpbatch: sender has no IP address")

func (p *portableConn) read(b []byte) (int, netip.AddrPort, error) {
	if p.udp != nil {
		n, from, err := p.udp.ReadFromUDPAddrPort(b)
		return n, unmap(from), err
	}
	n, addr, err := p.pc.ReadFrom(b)
	if err != nil {
		return 0, netip.AddrPort{}, err
	}
	from, ok := addrPort(addr)
	if !ok {
		return 0, netip.AddrPort{}, errNoAddress
	}
	return n, from, nil
}

func (p *portableConn) writeBatch(ms []Message) (sent int) {
	p.wmu.Lock()
	defer p.wmu.Unlock()
	for i := range ms {
		m := &ms[i]
		if m.Err = p.write(p.gather(m.Buffers), m.To); m.Err == nil {
			sent++
		}
	}
	p.n.sent.Add(uint64(sent))
	return sent
}

func (p *portableConn) gather(bufs [][]byte) []byte {
	if len(bufs) == 1 {
		return bufs[0]
	}
	p.scratch = p.scratch[:0]
	for _, b := range bufs {
		p.scratch = append(p.scratch, b...)
	}
	return p.scratch
}

func (p *portableConn) write(b []byte, to netip.AddrPort) error {
	if p.closed.Load() {
		p.n.writeErrs.add(classClosed)
		return net.ErrClosed
	}
	if !to.IsValid() {
		p.n.writeErrs.add(classInvalid)
		return config.Errorf("To", "is not an address")
	}
	err := p.writeTo(b, to)
	if err != nil && classify(err) == classRefused {
		err = p.writeTo(b, to) // it was the answer to an earlier datagram
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, net.ErrClosed):
		p.n.writeErrs.add(classClosed)
		return net.ErrClosed
	default:
		p.n.writeErrs.add(classify(err))
		return err
	}
}

func (p *portableConn) writeTo(b []byte, to netip.AddrPort) error {
	p.n.writes.Add(1)
	var err error
	if p.udp != nil {
		_, err = p.udp.WriteToUDPAddrPort(b, to)
	} else {
		_, err = p.pc.WriteTo(b, net.UDPAddrFromAddrPort(unmap(to)))
	}
	return err
}

func (p *portableConn) close() error {
	if p.closed.Swap(true) {
		return nil
	}
	err := p.pc.Close()
	// A writer that got in before waits for nothing but this.
	p.wmu.Lock()
	defer p.wmu.Unlock()
	return err
}

func (p *portableConn) file() (*os.File, error) {
	if f, ok := p.pc.(interface{ File() (*os.File, error) }); ok && !p.closed.Load() {
		return f.File()
	}
	return nil, errNoFile
}

func (p *portableConn) addStats(s *Stats) { s.GSO, s.GRO = p.gso, p.gro }

// portableServer reads each socket in a goroutine of its own; mu makes them
// take turns with the handler.
type portableServer struct {
	conns []*Conn
	wakes chan struct{}
	quit  chan struct{}

	mu    sync.Mutex
	h     Handler
	timer *time.Timer // fires when the next Idle is due
}

func newPortableServer(conns []*Conn) (server, error) {
	for i, c := range conns {
		if _, ok := c.t.(*portableConn); !ok {
			return nil, config.Errorf("conns", "number %d is batched and another is not: a group serves one kind", i)
		}
	}
	return &portableServer{
		conns: conns,
		wakes: make(chan struct{}, 1),
		quit:  make(chan struct{}),
	}, nil
}

func (s *portableServer) serve(h Handler) {
	s.mu.Lock()
	s.h = h
	s.timer = time.NewTimer(time.Hour)
	s.idle()
	s.mu.Unlock()
	defer s.timer.Stop()

	var readers sync.WaitGroup
	for i := range s.conns {
		readers.Go(func() { s.readLoop(i) })
	}
	for open := true; open; {
		select {
		case <-s.quit:
			open = false
		case <-s.wakes:
			s.mu.Lock()
			s.idle()
			s.mu.Unlock()
		case <-s.timer.C:
			s.mu.Lock()
			s.idle()
			s.mu.Unlock()
		}
	}
	readers.Wait()
}

// idle runs with mu held.
func (s *portableServer) idle() {
	if wait := s.h.Idle(time.Now()); wait > 0 {
		s.timer.Reset(wait)
	} else {
		s.timer.Stop()
	}
}

func (s *portableServer) readLoop(i int) {
	p := s.conns[i].t.(*portableConn)
	buf := make([]byte, MaxDatagram+1)
	var pkts [1]Packet
	for failed := 0; ; {
		n, from, err := p.read(buf)
		p.n.reads.Add(1)
		if err != nil {
			select {
			case <-s.quit: // stop set a deadline in the past
				return
			default:
			}
			if p.closed.Load() || errors.Is(err, net.ErrClosed) {
				return
			}
			if errors.Is(err, errNoAddress) {
				p.n.badSource.Add(1)
				continue
			}
			p.n.readErrs.add(classify(err))
			if failed++; failed > maxReadFailures && !s.pause() {
				return
			}
			continue
		}
		failed = 0
		p.n.received.Add(1)
		p.n.receivedBytes.Add(uint64(n))
		s.mu.Lock()
		pkts[0] = Packet{Data: buf[:n:n], From: from}
		s.h.HandleBatch(i, pkts[:])
		s.idle()
		s.mu.Unlock()
	}
}

// A socket that fails so often in a row, with nothing received in between, is
// read only every readPause, lest a lasting error burn a core.
const (
	maxReadFailures = 16
	readPause       = time.Millisecond
)

// pause waits for readPause and says whether to go on.
func (s *portableServer) pause() bool {
	t := time.NewTimer(readPause)
	defer t.Stop()
	select {
	case <-s.quit:
		return false
	case <-t.C:
		return true
	}
}

func (s *portableServer) wake() {
	select {
	case s.wakes <- struct{}{}:
	default: // one is pending
	}
}

func (s *portableServer) stop() {
	close(s.quit)
	for _, c := range s.conns {
		p := c.t.(*portableConn)
		if err := p.pc.SetReadDeadline(time.Unix(1, 0)); err != nil {
			// Without deadlines nothing but Close ends a blocked read. An
			// error of Close means that it is closed.
			_ = c.Close()
		}
	}
}

func (s *portableServer) release() {
	for _, c := range s.conns {
		if p := c.t.(*portableConn); !p.closed.Load() {
			_ = p.pc.SetReadDeadline(time.Time{}) // it worked in stop
		}
	}
}
