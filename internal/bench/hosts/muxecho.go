package hosts

import (
	"errors"
	"net"
	"net/netip"
	"reflect"
	"sync/atomic"
	"unsafe"

	"github.com/pion/ice/v4"
	"github.com/pion/webrtc/v4"
)

// muxEcho stands between a mux and Pion to measure the mux alone: audio goes
// back where it came from as soon as the mux gives it out, before Pion sees it
// and without SRTP. Everything else passes, so sessions connect as usual.
type muxEcho struct {
	ice.UDPMux
	echoed *atomic.Uint64
}

// GetConn implements ice.UDPMux.
func (m *muxEcho) GetConn(ufrag string, addr net.Addr) (net.PacketConn, error) {
	conn, err := m.UDPMux.GetConn(ufrag, addr)
	if err != nil {
		return nil, err
	}
	fast, ok := conn.(ice.AddrPortReaderWriter)
	if !ok {
		return nil, errors.New("the mux has lost its allocation-free reads")
	}
	return &echoConn{PacketConn: conn, fast: fast, echoed: m.echoed}, nil
}

type echoConn struct {
	net.PacketConn
	fast   ice.AddrPortReaderWriter
	echoed *atomic.Uint64
}

// ReadFromAddrPort implements ice.AddrPortReaderWriter.
func (c *echoConn) ReadFromAddrPort(b []byte) (int, netip.AddrPort, error) {
	for {
		n, from, err := c.fast.ReadFromAddrPort(b)
		if err != nil || !IsAudio(b[:n]) {
			return n, from, err
		}
		if _, err := c.fast.WriteToAddrPort(b[:n], from); err == nil {
			c.echoed.Add(1)
		}
	}
}

// WriteToAddrPort implements ice.AddrPortReaderWriter.
func (c *echoConn) WriteToAddrPort(b []byte, to netip.AddrPort) (int, error) {
	return c.fast.WriteToAddrPort(b, to)
}

// IsAudio tells RTP from RTCP, DTLS and STUN (RFC 7983, RFC 5761).
func IsAudio(b []byte) bool {
	return len(b) > 12 && b[0]>>6 == 2 && (b[1]&0x7f < 64 || b[1]&0x7f > 95)
}

// muxOf returns the mux in a SettingEngine. Pion has no accessor for it, and the
// Host sets its own one for each session, so this reads the field.
func muxOf(se *webrtc.SettingEngine) (ice.UDPMux, error) {
	f := reflect.ValueOf(se).Elem().FieldByName("iceUDPMux")
	if !f.IsValid() || f.Type() != reflect.TypeFor[ice.UDPMux]() {
		return nil, errors.New("this version of Pion keeps the mux elsewhere")
	}
	m := *(*ice.UDPMux)(unsafe.Pointer(f.UnsafeAddr()))
	if m == nil {
		return nil, errors.New("the session has no mux")
	}
	return m, nil
}
