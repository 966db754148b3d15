package callers

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pion/ice/v4"

	"github.com/usher-rtc/usher/internal/bench/hosts"
)

// socket is a client's UDP socket and the ice.UDPMux that hands it to Pion. It
// saves each client the goroutine, the maps and the copies of Pion's own mux.
type socket struct {
	conn   atomic.Pointer[net.UDPConn]
	server atomic.Pointer[netip.AddrPort] // where Pion sent to last
	raw    atomic.Bool                    // audio is counted here and not passed on
	got    atomic.Uint64                  // audio packets so counted

	mu     sync.Mutex // of rebind and Close
	closed bool
}

var (
	_ ice.UDPMux               = (*socketMux)(nil)
	_ ice.AddrPortReaderWriter = (*socket)(nil)
	_ net.PacketConn           = (*socket)(nil)
)

func newSocket(addr netip.Addr) (*socket, error) {
	if !addr.IsValid() {
		addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	u, err := listen(addr)
	if err != nil {
		return nil, err
	}
	s := new(socket)
	s.conn.Store(u)
	return s, nil
}

func listen(addr netip.Addr) (*net.UDPConn, error) {
	c, err := (&net.ListenConfig{}).ListenPacket(context.Background(), "udp4", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UDPConn)
	if !ok {
		return nil, errors.Join(errors.New("callers: no UDP socket"), c.Close())
	}
	return u, nil
}

// rebind replaces the socket. The read that waits on the old one ends with an
// error, and goes on with the new one.
func (s *socket) rebind(addr netip.Addr) error {
	fresh, err := listen(addr)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.Join(net.ErrClosed, fresh.Close())
	}
	return s.conn.Swap(fresh).Close()
}

// Close implements net.PacketConn.
func (s *socket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return s.conn.Load().Close()
}

// ReadFromAddrPort implements ice.AddrPortReaderWriter.
func (s *socket) ReadFromAddrPort(b []byte) (int, netip.AddrPort, error) {
	for {
		c := s.conn.Load()
		n, from, err := c.ReadFromUDPAddrPort(b)
		switch {
		case err != nil && s.conn.Load() != c:
			continue // it was replaced meanwhile
		case err != nil || !s.raw.Load() || !hosts.IsAudio(b[:n]):
			return n, from, err
		}
		s.got.Add(1)
	}
}

// WriteToAddrPort implements ice.AddrPortReaderWriter.
func (s *socket) WriteToAddrPort(b []byte, to netip.AddrPort) (int, error) {
	if old := s.server.Load(); old == nil || *old != to {
		s.server.Store(&to)
	}
	return s.conn.Load().WriteToUDPAddrPort(b, to)
}

// ReadFrom implements net.PacketConn.
func (s *socket) ReadFrom(b []byte) (int, net.Addr, error) {
	n, from, err := s.ReadFromAddrPort(b)
	if err != nil {
		return n, nil, err
	}
	return n, net.UDPAddrFromAddrPort(from), nil
}

// WriteTo implements net.PacketConn.
func (s *socket) WriteTo(b []byte, to net.Addr) (int, error) {
	u, ok := to.(*net.UDPAddr)
	if !ok {
		return 0, fmt.Errorf("callers: %v is no UDP address", to)
	}
	return s.WriteToAddrPort(b, u.AddrPort())
}

// LocalAddr implements net.PacketConn.
func (s *socket) LocalAddr() net.Addr { return s.conn.Load().LocalAddr() }

// SetDeadline implements net.PacketConn.
func (s *socket) SetDeadline(t time.Time) error { return s.conn.Load().SetDeadline(t) }

// SetReadDeadline implements net.PacketConn.
func (s *socket) SetReadDeadline(t time.Time) error { return s.conn.Load().SetReadDeadline(t) }

// SetWriteDeadline implements net.PacketConn.
func (s *socket) SetWriteDeadline(t time.Time) error { return s.conn.Load().SetWriteDeadline(t) }

// rawBytes is the size of an audio packet after SRTP.
const rawBytes = 82

// sendRaw sends something that looks like audio packet number n, past Pion.
func (s *socket) sendRaw(n uint16, ssrc uint32) error {
	to := s.server.Load()
	if to == nil {
		return errors.New("callers: not connected")
	}
	var b [rawBytes]byte
	b[0], b[1] = 0x80, 111
	binary.BigEndian.PutUint16(b[2:], n)
	binary.BigEndian.PutUint32(b[4:], uint32(n)*960)
	binary.BigEndian.PutUint32(b[8:], ssrc)
	_, err := s.conn.Load().WriteToUDPAddrPort(b[:], *to)
	return err
}

// socketMux is the ice.UDPMux of one client.
type socketMux struct{ s *socket }

// GetConn implements ice.UDPMux.
func (m *socketMux) GetConn(string, net.Addr) (net.PacketConn, error) { return m.s, nil }

// RemoveConnByUfrag implements ice.UDPMux.
func (m *socketMux) RemoveConnByUfrag(string) { _ = m.s.Close() }

// GetListenAddresses implements ice.UDPMux.
func (m *socketMux) GetListenAddresses() []net.Addr { return []net.Addr{m.s.LocalAddr()} }

// Close implements ice.UDPMux.
func (m *socketMux) Close() error { return m.s.Close() }
