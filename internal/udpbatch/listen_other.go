//go:build !linux

package udpbatch

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/usher-rtc/usher/internal/config"
)

func listen(cfg SocketConfig) (*Conn, error) {
	if cfg.ReusePort {
		return nil, config.Errorf("ReusePort", "needs Linux")
	}
	network := "udp"
	switch a := cfg.Addr.Addr(); {
	case cfg.V6Only:
		network = "udp6"
	case a.Is4():
		network = "udp4"
	}
	addr := cfg.Addr
	if !addr.IsValid() {
		addr = netip.AddrPortFrom(netip.IPv6Unspecified(), addr.Port())
	}
	pc, err := net.ListenUDP(network, net.UDPAddrFromAddrPort(addr))
	if err != nil {
		return nil, fmt.Errorf("udpbatch: %w", err)
	}
	c, err := newPortable(pc, cfg)
	if err != nil {
		return nil, joinClose(err, pc)
	}
	return c, nil
}

func takeOver(pc net.PacketConn, cfg SocketConfig) (*Conn, error) { return newPortable(pc, cfg) }

func fromFile(f *os.File, cfg SocketConfig) (*Conn, error) {
	pc, err := net.FilePacketConn(f)
	if err != nil {
		return nil, fmt.Errorf("udpbatch: %w", err)
	}
	c, err := newPortable(pc, cfg)
	if err != nil {
		return nil, joinClose(err, pc)
	}
	return c, nil
}

// joinClose closes a socket that cannot be used and adds what that says.
func joinClose(err error, pc net.PacketConn) error {
	if cerr := pc.Close(); cerr != nil {
		return fmt.Errorf("%w (and closing: %w)", err, cerr)
	}
	return err
}

func newServer(conns []*Conn, _ GroupConfig) (server, error) { return newPortableServer(conns) }
