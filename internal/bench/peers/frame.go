package peers

import (
	"encoding/binary"
	"net/netip"
)

// The plain forwarders (naive, c) do the relay's job with a frame of the
// same size and no key: 24 bytes of datagram header and 12 of frame header
// before every payload, one packet a datagram.
const (
	plainHeader = 24
	plainFrame  = 12
	plainLen    = plainHeader + plainFrame
)

// putPlain writes the header of a frame for one client.
func putPlain(b []byte, client netip.AddrPort, payload int) {
	clear(b[:plainLen])
	b[0], b[1] = 1, 1
	f := b[plainHeader:]
	binary.BigEndian.PutUint16(f, uint16(payload))
	ip := client.Addr().As4()
	copy(f[6:], ip[:])
	binary.BigEndian.PutUint16(f[10:], client.Port())
}

// parsePlain returns the client and the payload of a frame.
func parsePlain(b []byte) (client netip.AddrPort, payload []byte, ok bool) {
	if len(b) < plainLen || b[0] != 1 || b[1] != 1 {
		return netip.AddrPort{}, nil, false
	}
	f := b[plainHeader:]
	if int(binary.BigEndian.Uint16(f)) != len(b)-plainLen {
		return netip.AddrPort{}, nil, false
	}
	ip := netip.AddrFrom4([4]byte(f[6:10]))
	return netip.AddrPortFrom(ip, binary.BigEndian.Uint16(f[10:])), b[plainLen:], true
}
