package flowtable

import (
	"encoding/binary"
	"hash/maphash"
	"math/bits"
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

// The index grows with the flows, because a packet needs one entry of it: that of a
// few thousand flows stays in the processor's cache, where the same flows strewn over
// a large one do not. It grows in few steps, so that a packet waits for entering at
// most 3/4 of lastKeys flows anew.
const (
	firstKeys  = 1 << 12
	lastKeys   = 1 << 16 // the next step is the whole index
	keysFactor = 4
)

// setKeys makes an empty index.
func (t *Table) setKeys(n int) {
	t.keys, t.keyMask = make([]uint32, n), uint64(n-1)
	// A load of at most 3/4 keeps linear probing short.
	t.keyRoom = n / 4 * 3
	if n == t.keyMax {
		t.keyRoom = t.max
	}
}

// growKeys makes the index larger and enters all flows, also the one that did not
// fit.
func (t *Table) growKeys() {
	n := len(t.keys) * keysFactor
	if n > lastKeys {
		n = t.keyMax
	}
	t.setKeys(min(n, t.keyMax))
	for r := Ref(1); r <= t.high; r++ {
		if s := t.at(r); s.state != 0 {
			t.insertKey(s.key.words(), r)
		}
	}
}

// hash is a keyed hash of a key: each factor is a secret number, so that nobody can
// choose addresses that meet.
func (t *Table) hash(w words) uint64 {
	a := mix(w.hi^t.secret[0], w.lo^t.secret[1])
	return mix(a^t.secret[2], uint64(w.end)^t.secret[3])
}

func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

func (t *Table) find(w words) (Ref, uint64) {
	h := t.hash(w)
	tag := uint32(h>>56) << refBits
	for i := h & t.keyMask; ; i = (i + 1) & t.keyMask {
		e := t.keys[i]
		if e == 0 {
			return 0, 0
		}
		if e&^refMask == tag {
			if r := Ref(e & refMask); t.at(r).key.words() == w {
				return r, i
			}
		}
	}
}

func (t *Table) insertKey(w words, r Ref) {
	h := t.hash(w)
	i := h & t.keyMask
	for t.keys[i] != 0 {
		i = (i + 1) & t.keyMask
	}
	t.keys[i] = uint32(h>>56)<<refBits | uint32(r)
}

func (t *Table) removeKey(p *packedKey, r Ref) {
	found, hole := t.find(p.words())
	if found != r {
		panic("flowtable: key index is corrupt") // cannot happen; better than a table that lies
	}
	for i := (hole + 1) & t.keyMask; ; i = (i + 1) & t.keyMask {
		e := t.keys[i]
		if e == 0 {
			break
		}
		home := t.hash(t.at(Ref(e&refMask)).key.words()) & t.keyMask
		// The entry may move into the hole unless its home lies after it.
		if (i-home)&t.keyMask >= (i-hole)&t.keyMask {
			t.keys[hole] = e
			hole = i
		}
	}
	t.keys[hole] = 0
}

// The IP index: chains through the slots, those that were confirmed last in front and
// unconfirmed flows at the end, where no number of them hides a confirmed one. A
// bucket's chain may hold several addresses. The first flow's ipPrev is the last.

func (t *Table) ipBucket(p []byte) uint64 { return maphash.Bytes(t.seed, p[:16]) & t.ipMask }

func (t *Table) linkIP(s *slot, r Ref) {
	b := &t.ips[t.ipBucket(s.key[:])]
	head := Ref(b.Load())
	l := t.link(r)
	if head == 0 {
		l.ipNext, l.ipPrev = 0, r
		b.Store(uint32(r))
		return
	}
	first := t.link(head)
	l.ipPrev = first.ipPrev
	first.ipPrev = r
	if s.state == Unconfirmed {
		l.ipNext = 0
		t.link(l.ipPrev).ipNext = r
		return
	}
	l.ipNext = head
	b.Store(uint32(r))
}

func (t *Table) unlinkIP(s *slot, r Ref) {
	b := &t.ips[t.ipBucket(s.key[:])]
	head := Ref(b.Load())
	l := t.link(r)
	if r == head {
		b.Store(uint32(l.ipNext))
		head = l.ipNext
	} else {
		t.link(l.ipPrev).ipNext = l.ipNext
	}
	if l.ipNext != 0 {
		t.link(l.ipNext).ipPrev = l.ipPrev
	} else if head != 0 {
		t.link(head).ipPrev = l.ipPrev
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
// address, each once, that of the flow confirmed last first, until dst's capacity is
// used up. It looks at a bounded number of flows.
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
