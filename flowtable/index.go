package flowtable

import (
	"encoding/binary"
	"hash/maphash"
	"net/netip"
	"slices"

	"github.com/usher-rtc/usher/ufrag"
)

const (
	refBits = 24
	refMask = 1<<refBits - 1
)

// The key index: linear probing; deletion shifts later entries back, so there
// are no tombstones to clean up.

func (t *Table) find(p *packedKey) (Ref, uint64) {
	h := maphash.Bytes(t.seed, p[:])
	tag := uint32(h>>56) << refBits
	for i := h & t.keyMask; ; i = (i + 1) & t.keyMask {
		e := t.keys[i]
		if e == 0 {
			return 0, 0
		}
		if e&^refMask == tag {
			if r := Ref(e & refMask); t.at(r).key == *p {
				return r, i
			}
		}
	}
}

func (t *Table) insertKey(p *packedKey, r Ref) {
	h := maphash.Bytes(t.seed, p[:])
	i := h & t.keyMask
	for t.keys[i] != 0 {
		i = (i + 1) & t.keyMask
	}
	t.keys[i] = uint32(h>>56)<<refBits | uint32(r)
}

func (t *Table) removeKey(p *packedKey, r Ref) {
	found, hole := t.find(p)
	if found != r {
		panic("flowtable: key index is corrupt") // cannot happen; better than a table that lies
	}
	for i := (hole + 1) & t.keyMask; ; i = (i + 1) & t.keyMask {
		e := t.keys[i]
		if e == 0 {
			break
		}
		home := maphash.Bytes(t.seed, t.at(Ref(e & refMask)).key[:]) & t.keyMask
		// The entry may move into the hole unless its home lies after it.
		if (i-home)&t.keyMask >= (i-hole)&t.keyMask {
			t.keys[hole] = e
			hole = i
		}
	}
	t.keys[hole] = 0
}

// The IP index: chains through the slots, newest first. A bucket's chain may
// hold several addresses.

func (t *Table) ipBucket(p []byte) uint64 { return maphash.Bytes(t.seed, p[:16]) & t.ipMask }

func (t *Table) linkIP(p *packedKey, r Ref) {
	b := &t.ips[t.ipBucket(p[:])]
	head := Ref(b.Load())
	l := t.link(r)
	l.ipNext, l.ipPrev = head, 0
	if head != 0 {
		t.link(head).ipPrev = r
	}
	b.Store(uint32(r))
}

func (t *Table) unlinkIP(p *packedKey, r Ref) {
	l := t.link(r)
	if l.ipNext != 0 {
		t.link(l.ipNext).ipPrev = l.ipPrev
	}
	if l.ipPrev != 0 {
		t.link(l.ipPrev).ipNext = l.ipNext
	} else {
		t.ips[t.ipBucket(p[:])].Store(uint32(l.ipNext))
	}
}

// MayHave reports whether there may be a flow with this client IP address; if
// it returns false there was none. It needs no lock, so that a flood of
// unknown sources at one worker does not disturb the others.
func (t *Table) MayHave(ip netip.Addr) bool {
	a := ip.As16()
	return t.ips[t.ipBucket(a[:])].Load() != 0
}

// maxChain bounds the search among the flows of one IP address: behind a
// carrier's NAT there may be thousands.
const maxChain = 64

// Owner is who has flows of an IP address.
type Owner struct {
	// Upstream is where packets for it go.
	Upstream netip.AddrPort
	// Route is that of one of the flows. Behind one Upstream there may be several
	// Hosts if it is a relay; then the route tells them apart.
	Route ufrag.Route
}

func appendOwner(dst []Owner, o Owner) []Owner {
	for i := range dst {
		known := &dst[i]
		if known.Upstream == o.Upstream && (known.Route.Kind == 0 || o.Route.Kind == 0 || known.Route.SameHost(o.Route)) {
			return dst
		}
	}
	return append(dst, o)
}

// Owners appends to dst the owners of confirmed flows with this client IP
// address, each once, newest flow first, until dst's capacity is used up. It
// looks at a bounded number of flows.
func (t *Table) Owners(ip netip.Addr, dst []Owner) []Owner {
	a := ip.As16()
	r := Ref(t.ips[t.ipBucket(a[:])].Load())
	for n := 0; r != 0 && n < maxChain && len(dst) < cap(dst); n++ {
		s := t.at(r)
		if s.state == Confirmed && [16]byte(s.key[:16]) == a {
			dst = appendOwner(dst, Owner{s.up.unpack(), s.route()})
		}
		r = t.link(r).ipNext
	}
	return dst
}

// The SSRC index: linear probing over (IP address, SSRC). Several flows may
// have the same pair, for instance after a NAT rebinding.

const (
	whichBits = 2 // log2 of MaxSSRCs
	tagShift  = refBits + whichBits
)

func (t *Table) ssrcHash(ip []byte, ssrc uint32) uint64 {
	var b [20]byte
	copy(b[:16], ip)
	binary.BigEndian.PutUint32(b[16:], ssrc)
	return maphash.Bytes(t.seed, b[:])
}

// BySSRC finds the confirmed flow with this client IP address and SSRC that
// its upstream used last, or returns 0.
func (t *Table) BySSRC(ip netip.Addr, ssrc uint32, now Tick) Ref {
	a := ip.As16()
	h := t.ssrcHash(a[:], ssrc)
	tag := uint32(h >> (64 - (32 - tagShift)))
	var best Ref
	for i, n := h&t.ssrcMask, 0; n < maxChain; i, n = (i+1)&t.ssrcMask, n+1 {
		e := t.ssrcs[i]
		if e == 0 {
			break
		}
		if e>>tagShift != tag {
			continue
		}
		r := Ref(e & refMask)
		s := t.at(r)
		if [16]byte(s.key[:16]) != a || t.link(r).ssrc[e>>refBits&(MaxSSRCs-1)] != ssrc {
			continue
		}
		if best == 0 || s.last.since(now) < t.at(best).last.since(now) {
			best = r
		}
	}
	return best
}

func (t *Table) setSSRCs(r Ref, ssrcs []uint32) {
	s, l := t.at(r), t.link(r)
	if int(s.nssrc) == len(ssrcs) && slices.Equal(l.ssrc[:s.nssrc], ssrcs) {
		return
	}
	t.clearSSRCs(r)
	for i, ssrc := range ssrcs {
		l.ssrc[i] = ssrc
		if t.ssrcLen >= t.ssrcMax || slices.Contains(ssrcs[:i], ssrc) {
			continue
		}
		h := t.ssrcHash(s.key[:16], ssrc)
		at := h & t.ssrcMask
		for t.ssrcs[at] != 0 {
			at = (at + 1) & t.ssrcMask
		}
		t.ssrcs[at] = uint32(h>>(64-(32-tagShift)))<<tagShift | uint32(i)<<refBits | uint32(r)
		t.ssrcLen++
	}
	s.nssrc = uint8(len(ssrcs))
}

func (t *Table) clearSSRCs(r Ref) {
	s, l := t.at(r), t.link(r)
	for i := range l.ssrc[:s.nssrc] {
		t.removeSSRC(s.key[:16], l.ssrc[i], uint32(i)<<refBits|uint32(r))
	}
	s.nssrc = 0
	l.ssrc = [MaxSSRCs]uint32{}
}

// removeSSRC deletes the entry for one SSRC of one flow; it may be missing,
// because the index was full when the SSRC was set.
func (t *Table) removeSSRC(ip []byte, ssrc, id uint32) {
	const idMask = 1<<tagShift - 1
	hole := t.ssrcHash(ip, ssrc) & t.ssrcMask
	for t.ssrcs[hole]&idMask != id {
		if t.ssrcs[hole] == 0 {
			return
		}
		hole = (hole + 1) & t.ssrcMask
	}
	for i := (hole + 1) & t.ssrcMask; ; i = (i + 1) & t.ssrcMask {
		e := t.ssrcs[i]
		if e == 0 {
			break
		}
		r := Ref(e & refMask)
		home := t.ssrcHash(t.at(r).key[:16], t.link(r).ssrc[e>>refBits&(MaxSSRCs-1)]) & t.ssrcMask
		if (i-home)&t.ssrcMask >= (i-hole)&t.ssrcMask {
			t.ssrcs[hole] = e
			hole = i
		}
	}
	t.ssrcs[hole] = 0
	t.ssrcLen--
}
