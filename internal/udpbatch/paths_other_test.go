//go:build !linux

package udpbatch

import (
	"net"
	"net/netip"
)

var paths = []path{
	{"Listen", false, func(addr netip.AddrPort) (*Conn, error) {
		return Listen(SocketConfig{Addr: addr, ReadBuffer: bigBuffer})
	}},
	{"NewConn", false, wrapped(func(u *net.UDPConn) net.PacketConn { return u })},
	{"PacketConn", false, wrapped(func(u *net.UDPConn) net.PacketConn { return onlyPacketConn{u} })},
}
