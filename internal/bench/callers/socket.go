package callers

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"

	"github.com/pion/ice/v4"

	"github.com/usher-rtc/usher/internal/bench/hosts"
)

// socket is a client's UDP socket and the ice.UDPMux that hands it to Pion. It
// saves each client the goroutine, the maps and the copies of Pion's own mux.
type socket struct {
	*net.UDPConn
	server atomic.Pointer[netip.AddrPort] // where Pion sent to last
	raw    atomic.Bool                    // audio is counted here and not passed on
	got    atomic.Uint64                  // audio packets so counted
}

var (
	_ ice.UDPMux               = (*socketMux)(nil)
	_ ice.AddrPortReaderWriter = (*socket)(nil)
)

func newSocket() (*socket, error) {
	c, err := (&net.ListenConfig{}).ListenPacket(context.Background(), "udp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UDPConn)
	if !ok {
		return nil, errors.Join(errors.New("callers: no UDP socket"), c.Close())
	}
	return &socket{UDPConn: u}, nil
}

// ReadFromAddrPort implements ice.AddrPortReaderWriter.
func (s *socket) ReadFromAddrPort(b []byte) (int, netip.AddrPort, error) {
	for {
		n, from, err := s.ReadFromUDPAddrPort(b)
		if err != nil || !s.raw.Load() || !hosts.IsAudio(b[:n]) {
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
	return s.WriteToUDPAddrPort(b, to)
}

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
	_, err := s.WriteToUDPAddrPort(b[:], *to)
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
