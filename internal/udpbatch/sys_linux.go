package udpbatch

import (
	"encoding/binary"
	"net/netip"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mmsghdr is struct mmsghdr. Go pads it at the end as C does.
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32 // bytes received or sent
}

// recvmmsg and sendmmsg do not tell the scheduler (RawSyscall6): MSG_DONTWAIT
// keeps them short, and a call that could block would stall a stop-the-world.
func recvmmsg(fd int, hdrs []mmsghdr) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd),
		uintptr(unsafe.Pointer(&hdrs[0])), uintptr(len(hdrs)), unix.MSG_DONTWAIT, 0, 0)
	return int(n), errno
}

func sendmmsg(fd int, hdrs []mmsghdr) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd),
		uintptr(unsafe.Pointer(&hdrs[0])), uintptr(len(hdrs)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	return int(n), errno
}

func getsockopt(fd, level, name int, value []uint32) error {
	size := uint32(len(value) * 4)
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name),
		uintptr(unsafe.Pointer(&value[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// sockaddr has room for both families, as the kernel lays them out.
type sockaddr = unix.RawSockaddrInet6

// putSockaddr writes the destination in the form the socket's family takes.
func putSockaddr(sa *sockaddr, family int, to netip.AddrPort) (size uint32, errno unix.Errno) {
	if !to.IsValid() {
		return 0, unix.EDESTADDRREQ
	}
	addr := to.Addr()
	if family == unix.AF_INET {
		addr = addr.Unmap()
		if !addr.Is4() {
			return 0, unix.EAFNOSUPPORT
		}
		sa4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(sa))
		sa4.Family = unix.AF_INET
		putPort(&sa4.Port, to.Port())
		sa4.Addr = addr.As4()
		return unix.SizeofSockaddrInet4, 0
	}
	sa.Family = unix.AF_INET6
	putPort(&sa.Port, to.Port())
	sa.Flowinfo = 0
	sa.Addr = addr.As16() // maps IPv4
	sa.Scope_id = 0
	if zone := addr.Zone(); zone != "" {
		n, ok := parseZone(zone)
		if !ok {
			return 0, unix.EINVAL
		}
		sa.Scope_id = n
	}
	return unix.SizeofSockaddrInet6, 0
}

func putPort(field *uint16, port uint16) {
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(field))[:], port)
}

func getPort(field *uint16) uint16 {
	return binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(field))[:])
}

// parseZone reads a decimal interface index. strconv would allocate its error.
func parseZone(zone string) (uint32, bool) {
	if len(zone) > 9 { // an index is a positive int32; 9 digits cannot overflow
		return 0, false
	}
	n := uint32(0)
	for _, d := range []byte(zone) {
		if d < '0' || d > '9' {
			return 0, false
		}
		n = n*10 + uint32(d-'0')
	}
	return n, true
}

// zoneTable remembers the decimal form of interface indexes. Interfaces are few and a
// stranger cannot add one; beyond maxZones an address costs an allocation.
type zoneTable struct {
	zones []zone
}

type zone struct {
	index uint32
	name  string
	// pin keeps the runtime's canonical copy of the name alive, without which
	// WithZone would allocate it anew after each collection.
	pin netip.Addr
}

const maxZones = 64

func (t *zoneTable) with(addr netip.Addr, index uint32) netip.Addr {
	for i := range t.zones {
		if t.zones[i].index == index {
			return addr.WithZone(t.zones[i].name)
		}
	}
	name := strconv.FormatUint(uint64(index), 10)
	addr = addr.WithZone(name)
	if len(t.zones) < maxZones {
		t.zones = append(t.zones, zone{index, name, addr})
	}
	return addr
}

// getSockaddr reads a sender's address into its canonical form.
func getSockaddr(sa *sockaddr, zones *zoneTable) netip.AddrPort {
	switch sa.Family {
	case unix.AF_INET:
		sa4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(sa))
		return netip.AddrPortFrom(netip.AddrFrom4(sa4.Addr), getPort(&sa4.Port))
	case unix.AF_INET6:
		addr := netip.AddrFrom16(sa.Addr).Unmap()
		if sa.Scope_id != 0 && addr.Is6() {
			addr = zones.with(addr, sa.Scope_id)
		}
		return netip.AddrPortFrom(addr, getPort(&sa.Port))
	default:
		return netip.AddrPort{}
	}
}

// Control messages. Their buffers are made of uint64 so that headers are aligned.

// ctrlSize is the room for control messages: enough for all that setOptions
// turns on (TOS, traffic class, packet info, drops, GRO) and some that the
// former owner of a socket may have turned on.
const ctrlSize = 256

type ctrlBuf [ctrlSize / 8]uint64

func (b *ctrlBuf) bytes() []byte { return unsafe.Slice((*byte)(unsafe.Pointer(b)), ctrlSize) }

// control is what the control messages of a received datagram say.
type control struct {
	tos     uint8
	local   netip.Addr
	segment int // GRO: the size of the datagrams in the buffer, 0 if it is one
	drops   uint32
	hasDrop bool
}

func parseControl(b []byte, c *control) {
	*c = control{}
	for len(b) >= unix.SizeofCmsghdr {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
		size := int(h.Len)
		if size < unix.CmsgLen(0) || size > len(b) {
			return
		}
		data := b[unix.CmsgLen(0):size]
		switch {
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TOS && len(data) >= 1:
			c.tos = data[0]
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_TCLASS && len(data) >= 4:
			c.tos = uint8(binary.NativeEndian.Uint32(data))
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			// Spec_dst is the address to answer from, Addr the one in the
			// header. They differ for broadcast and multicast only.
			c.local = netip.AddrFrom4((*unix.Inet4Pktinfo)(unsafe.Pointer(&data[0])).Spec_dst)
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			c.local = netip.AddrFrom16((*unix.Inet6Pktinfo)(unsafe.Pointer(&data[0])).Addr).Unmap()
		case h.Level == unix.IPPROTO_UDP && h.Type == unix.UDP_GRO && len(data) >= 4:
			c.segment = int(binary.NativeEndian.Uint32(data))
		case h.Level == unix.SOL_SOCKET && h.Type == unix.SO_RXQ_OVFL && len(data) >= 4:
			c.drops, c.hasDrop = binary.NativeEndian.Uint32(data), true
		}
		b = b[min(unix.CmsgSpace(len(data)), len(b)):]
	}
}

// controlWriter appends control messages to a buffer that has room for them.
type controlWriter struct {
	b []byte
	n int
}

// add appends a header and returns the place for size bytes of data.
func (w *controlWriter) add(level, typ int32, size int) []byte {
	h := (*unix.Cmsghdr)(unsafe.Pointer(&w.b[w.n]))
	h.Level, h.Type = level, typ
	h.SetLen(unix.CmsgLen(size))
	data := w.b[w.n+unix.CmsgLen(0):][:size]
	w.n += unix.CmsgSpace(size)
	return data
}

func (w *controlWriter) addTOS(tos uint8, v4 bool) {
	level, typ := int32(unix.IPPROTO_IPV6), int32(unix.IPV6_TCLASS)
	if v4 {
		level, typ = unix.IPPROTO_IP, unix.IP_TOS
	}
	binary.NativeEndian.PutUint32(w.add(level, typ, 4), uint32(tos))
}

func (w *controlWriter) addSegment(size uint16) {
	binary.NativeEndian.PutUint16(w.add(unix.IPPROTO_UDP, unix.UDP_SEGMENT, 2), size)
}

// addLocal sets the source address. Both addresses are unmapped and of one family.
func (w *controlWriter) addLocal(local netip.Addr) {
	if local.Is4() {
		data := w.add(unix.IPPROTO_IP, unix.IP_PKTINFO, unix.SizeofInet4Pktinfo)
		*(*unix.Inet4Pktinfo)(unsafe.Pointer(&data[0])) = unix.Inet4Pktinfo{Spec_dst: local.As4()}
		return
	}
	data := w.add(unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, unix.SizeofInet6Pktinfo)
	*(*unix.Inet6Pktinfo)(unsafe.Pointer(&data[0])) = unix.Inet6Pktinfo{Addr: local.As16()}
}
