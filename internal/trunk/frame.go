package trunk

import (
	"encoding/binary"
	"net/netip"

	"github.com/usher-rtc/usher/ufrag"
)

// Flags of a frame.
type Flags uint8

const (
	// ToClient is set on the way to the client, clear on the way from it.
	ToClient Flags = 1 << iota
	// IPv6 says that the client's address has 16 bytes.
	IPv6
	// TCP says that the client is connected by ICE-TCP.
	TCP
	// Unverified says that the relay guessed the owner of this packet.
	Unverified
	// Validated says that the Host has had an answer from this client, on this
	// ingress, to a check of its own, or a DTLS reply: proof that it is there.
	Validated
	// HasRoute says that the route follows.
	HasRoute
	// HasReturn says that the return address follows.
	HasReturn
	// HasSSRCs says that SSRCs follow.
	HasSSRCs

	// givenFlags are those that a caller sets; the others follow from the rest
	// of the Frame, so that no frame can be built that a reader refuses.
	givenFlags = ToClient | TCP | Unverified | Validated
)

// Frame is one client's packet. In a Frame that a Reader filled, Payload
// points into the datagram; everything else is a copy.
type Frame struct {
	// Flags are ToClient, TCP, Unverified and Validated as the sender set them.
	// Building ignores the other four and derives them from the fields below; a
	// reader sets all eight.
	Flags Flags
	// TOS is the TOS byte or traffic class of the client's packet: DSCP and ECN.
	TOS uint8
	// Ingress is the configured number of an advertised address.
	Ingress uint16
	// Client is the client's address and port, unmapped, without a zone.
	Client netip.AddrPort
	// Route goes along if it is valid.
	Route ufrag.Route
	// Return is where answers go, if it is valid.
	Return netip.AddrPort
	// SSRCs are the first NSSRC of these.
	SSRCs [MaxSSRCs]uint32
	NSSRC uint8
	// Payload is the client's packet, unchanged. It may be empty.
	Payload []byte
}

// wireFlags are the flags of f as they go over the wire.
func (f *Frame) wireFlags() Flags {
	flags := f.Flags & givenFlags
	if is6(f.Client.Addr()) {
		flags |= IPv6
	}
	if f.Route.IsValid() {
		flags |= HasRoute
	}
	if f.Return.IsValid() {
		flags |= HasReturn
	}
	if f.NSSRC > 0 {
		flags |= HasSSRCs
	}
	return flags
}

// headerLen is the size of the header of f.
func (f *Frame) headerLen() int {
	n := FrameLen
	if is6(f.Client.Addr()) {
		n += 12
	}
	if f.Route.IsValid() {
		n += ufrag.RouteLen
	}
	if f.Return.IsValid() {
		n += 7
		if is6(f.Return.Addr()) {
			n += 12
		}
	}
	if f.NSSRC > 0 {
		n += 1 + 4*int(min(f.NSSRC, MaxSSRCs))
	}
	return n
}

func is6(a netip.Addr) bool { return a.Is6() && !a.Is4In6() }

// AppendFrameHeader appends the header of f with its optional fields, in the
// order route, return address, SSRCs. The payload, of at most 65,535 bytes, is
// to follow it on the wire; only its length is looked at. It does not allocate
// if dst has room for MaxFrameHeaderLen.
func AppendFrameHeader(dst []byte, f *Frame) []byte {
	return appendFrameHeader(dst, f, f.wireFlags(), len(f.Payload))
}

func appendFrameHeader(dst []byte, f *Frame, flags Flags, payload int) []byte {
	if a := f.Client.Addr(); flags&^givenFlags == 0 && a.Is4() {
		// Most frames, in two pieces.
		b := a.As4()
		ip := uint64(binary.BigEndian.Uint32(b[:]))
		dst = binary.BigEndian.AppendUint64(dst,
			uint64(uint16(payload))<<48|uint64(flags)<<40|uint64(f.TOS)<<32|uint64(f.Ingress)<<16|ip>>16)
		return binary.BigEndian.AppendUint32(dst, uint32(ip)<<16|uint32(f.Client.Port()))
	}
	dst = binary.BigEndian.AppendUint16(dst, uint16(payload))
	dst = append(dst, byte(flags), f.TOS)
	dst = binary.BigEndian.AppendUint16(dst, f.Ingress)
	dst = appendAddrPort(dst, f.Client)
	if flags&HasRoute != 0 {
		dst = f.Route.AppendBinary(dst)
	}
	if flags&HasReturn != 0 {
		if is6(f.Return.Addr()) {
			dst = append(dst, 6)
		} else {
			dst = append(dst, 4)
		}
		dst = appendAddrPort(dst, f.Return)
	}
	if flags&HasSSRCs != 0 {
		n := min(f.NSSRC, MaxSSRCs)
		dst = append(dst, n)
		for _, ssrc := range f.SSRCs[:n] {
			dst = binary.BigEndian.AppendUint32(dst, ssrc)
		}
	}
	return dst
}

// appendAddrPort appends 4 or 16 bytes of address and the port. An invalid
// address is sent as 0.0.0.0, which no receiver has a flow for.
func appendAddrPort(dst []byte, ap netip.AddrPort) []byte {
	switch a := ap.Addr().Unmap(); {
	case a.Is4():
		b := a.As4()
		dst = append(dst, b[:]...)
	case a.Is6():
		b := a.As16()
		dst = append(dst, b[:]...)
	default:
		dst = append(dst, 0, 0, 0, 0)
	}
	return binary.BigEndian.AppendUint16(dst, ap.Port())
}

func isMapped(b []byte) bool {
	return binary.BigEndian.Uint64(b) == 0 && binary.BigEndian.Uint32(b[8:]) == 0xffff
}

// checkFrame says how long the frame at the start of b is: its header, and its
// payload. It reads nothing beyond b.
func checkFrame(b []byte) (header, payload int, p Problem) {
	if len(b) < FrameLen {
		return 0, 0, ProblemFrame
	}
	payload = int(binary.BigEndian.Uint16(b))
	flags := Flags(b[2])
	n := FrameLen
	if flags&IPv6 != 0 {
		n += 12
		if len(b) < n {
			return 0, 0, ProblemFrame
		}
		if isMapped(b[6:]) {
			return 0, 0, ProblemAddress
		}
	}
	if flags&HasRoute != 0 {
		if len(b) < n+ufrag.RouteLen {
			return 0, 0, ProblemFrame
		}
		if _, err := ufrag.ParseRoute(b[n : n+ufrag.RouteLen]); err != nil {
			return 0, 0, ProblemRoute
		}
		n += ufrag.RouteLen
	}
	if flags&HasReturn != 0 {
		if len(b) <= n {
			return 0, 0, ProblemFrame
		}
		at := n + 1
		switch b[n] {
		case 4:
			n += 7
		case 6:
			n += 19
		default:
			return 0, 0, ProblemAddress
		}
		if len(b) < n {
			return 0, 0, ProblemFrame
		}
		if n-at == 18 && isMapped(b[at:]) {
			return 0, 0, ProblemAddress
		}
	}
	if flags&HasSSRCs != 0 {
		if len(b) <= n {
			return 0, 0, ProblemFrame
		}
		if b[n] == 0 || b[n] > MaxSSRCs {
			return 0, 0, ProblemSSRCs
		}
		n += 1 + 4*int(b[n])
		if len(b) < n {
			return 0, 0, ProblemFrame
		}
	}
	if len(b)-n < payload {
		return 0, 0, ProblemFrame
	}
	return n, payload, OK
}

// readFrame fills f from a frame that checkFrame found right and returns what
// comes after it.
func readFrame(b []byte, f *Frame) []byte {
	payload := int(binary.BigEndian.Uint16(b))
	*f = Frame{
		Flags:   Flags(b[2]),
		TOS:     b[3],
		Ingress: binary.BigEndian.Uint16(b[4:]),
	}
	f.Client, b = readAddrPort(b[6:], f.Flags&IPv6 != 0)
	if f.Flags&HasRoute != 0 {
		f.Route, _ = ufrag.ParseRoute(b[:ufrag.RouteLen])
		b = b[ufrag.RouteLen:]
	}
	if f.Flags&HasReturn != 0 {
		f.Return, b = readAddrPort(b[1:], b[0] == 6)
	}
	if f.Flags&HasSSRCs != 0 {
		f.NSSRC = b[0]
		b = b[1:]
		for i := range int(f.NSSRC) {
			f.SSRCs[i] = binary.BigEndian.Uint32(b)
			b = b[4:]
		}
	}
	f.Payload = b[:payload:payload]
	return b[payload:]
}

func readAddrPort(b []byte, v6 bool) (netip.AddrPort, []byte) {
	if v6 {
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b)), binary.BigEndian.Uint16(b[16:])), b[18:]
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b)), binary.BigEndian.Uint16(b[4:])), b[6:]
}
