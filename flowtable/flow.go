package flowtable

import (
	"encoding/binary"
	"net/netip"

	"github.com/usher-rtc/usher/ufrag"
)

// Tick is a point in time in milliseconds from an origin that the caller
// chooses and keeps. It wraps after 49 days, which is harmless: differences are of
// at most an idle timeout, and a table keeps those that could grow beyond a week at it.
type Tick uint32

// since is how many milliseconds before now the tick lies. A tick slightly
// ahead of now counts as now: workers read their clocks one after the other.
func (t Tick) since(now Tick) uint32 {
	d := int32(now - t)
	if d < 0 {
		return 0
	}
	return uint32(d)
}

// Age is how many milliseconds ago t was at now, 0 if t lies ahead.
func (t Tick) Age(now Tick) uint32 { return t.since(now) }

// Key identifies a flow: a client's transport address as seen on an ingress.
// An IPv4 address and its IPv4-mapped IPv6 form are the same client. Zones are
// not part of the key.
type Key struct {
	Client  netip.AddrPort
	Ingress uint16
}

// State says how much is known about a flow's client.
type State uint8

const (
	// Unconfirmed flows were made by a client's check; nothing shows yet that
	// the client receives at this address.
	Unconfirmed State = iota + 1
	// Confirmed flows had an answer from the client, says their owner.
	Confirmed
)

// String returns "unconfirmed", "confirmed" or "none".
func (s State) String() string {
	switch s {
	case Unconfirmed:
		return "unconfirmed"
	case Confirmed:
		return "confirmed"
	default:
		return "none"
	}
}

// MaxSSRCs is how many synchronisation sources a flow remembers.
const MaxSSRCs = 4

// Flow is a copy of what the table knows about a flow.
type Flow struct {
	Key   Key
	Route ufrag.Route // Kind 0 while unknown: the flow was learned from its upstream
	// Upstream is the next hop towards the owner, unmapped and without zone.
	Upstream netip.AddrPort
	// Local is the address the client sent to, on a wildcard listener; else invalid.
	Local netip.Addr
	State State
	TCP   bool // the client's transport is TCP
	// SSRCs[:NumSSRCs] are the client's synchronisation sources (RFC 3550).
	SSRCs    [MaxSSRCs]uint32
	NumSSRCs uint8
	// LastUpstream is when the upstream last sent to this client, or the flow's creation.
	LastUpstream Tick
	// Since is when the present owner got the flow, at most about a week ago.
	Since Tick
}

type packedKey [20]byte      // IPv6 or mapped IPv4 address, port, ingress
type packedAddrPort [18]byte // IPv6 or mapped IPv4 address, port

// pack fills p in place: a result would be copied, and the copy would have to wait
// for the parts that were written last.
func (p *packedKey) pack(k Key) {
	*(*[16]byte)(p[:]) = k.Client.Addr().As16()
	binary.BigEndian.PutUint32(p[16:], uint32(k.Client.Port())<<16|uint32(k.Ingress))
}

func packKey(k Key) (p packedKey) {
	p.pack(k)
	return p
}

// words is a key in registers, the way a packet's is compared: bytes that were written
// in other pieces than they are read in have to be waited for.
type words struct {
	hi, lo uint64 // IPv6 or mapped IPv4 address
	end    uint32 // port, ingress
}

func wordsOf(k Key) words {
	w := words{end: uint32(k.Client.Port())<<16 | uint32(k.Ingress)}
	w.hi, w.lo = addrWords(k.Client.Addr())
	return w
}

func addrWords(a netip.Addr) (hi, lo uint64) {
	if a.Is4() {
		b := a.As4()
		return 0, 0xffff<<32 | uint64(binary.BigEndian.Uint32(b[:]))
	}
	b := a.As16()
	return binary.BigEndian.Uint64(b[:]), binary.BigEndian.Uint64(b[8:])
}

func (p *packedKey) words() words {
	return words{
		hi: binary.BigEndian.Uint64(p[:]), lo: binary.BigEndian.Uint64(p[8:]), end: binary.BigEndian.Uint32(p[16:]),
	}
}

func (p *packedKey) unpack() Key {
	a := netip.AddrFrom16([16]byte(p[:16])).Unmap()
	return Key{
		Client:  netip.AddrPortFrom(a, binary.BigEndian.Uint16(p[16:])),
		Ingress: binary.BigEndian.Uint16(p[18:]),
	}
}

func packAddrPort(ap netip.AddrPort) (p packedAddrPort) {
	a := ap.Addr().As16()
	copy(p[:16], a[:])
	binary.BigEndian.PutUint16(p[16:], ap.Port())
	return p
}

func (p *packedAddrPort) unpack() netip.AddrPort {
	a := netip.AddrFrom16([16]byte(p[:16])).Unmap()
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(p[16:]))
}

// slot is the part of a flow that a packet touches: one cache line, no pointer.
type slot struct {
	key     packedKey
	up      packedAddrPort
	local   uint16 // index into Table.locals, 0: none
	kindCl  uint16 // kind 4 bits, cluster 12 bits
	hostHi  uint16
	hostLo  uint32
	session uint32
	last    Tick
	owned   Tick
	state   State // 0: the slot is free
	flags   uint8
	nssrc   uint8
	_       uint8
}

const (
	flagTCP uint8 = 1 << iota
	flagContended
)

// links is the part of a flow that only indexes touch.
type links struct {
	// ssrc holds the SSRCs of a confirmed flow. Unconfirmed flows have none
	// and use the first two for their list: previous and next Ref.
	ssrc [MaxSSRCs]uint32
	// The chain of flows in one bucket of the IP index. A free slot uses
	// ipNext for the free list.
	ipNext, ipPrev Ref
}

func (s *slot) setRoute(r ufrag.Route) {
	s.kindCl = uint16(r.Kind)<<12 | r.Cluster&0x0fff
	s.hostHi = uint16(r.Host >> 32)
	s.hostLo = uint32(r.Host)
	s.session = r.Session
}

func (s *slot) route() ufrag.Route {
	return ufrag.Route{
		Kind:    ufrag.Kind(s.kindCl >> 12),
		Cluster: s.kindCl & 0x0fff,
		Host:    uint64(s.hostHi)<<32 | uint64(s.hostLo),
		Session: s.session,
	}
}
