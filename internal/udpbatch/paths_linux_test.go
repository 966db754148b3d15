package udpbatch

import (
	"net"
	"net/netip"
)

var paths = []path{
	{"batched", true, func(addr netip.AddrPort) (*Conn, error) {
		return Listen(SocketConfig{Addr: addr, ReadBuffer: bigBuffer})
	}},
	{"taken over", true, wrapped(func(u *net.UDPConn) net.PacketConn { return u })},
	{"portable", false, wrapped(func(u *net.UDPConn) net.PacketConn { return onlyPacketConn{u} })},
	{"portable with UDP methods", false, wrapped(func(u *net.UDPConn) net.PacketConn { return udpMethods{u} })},
}
