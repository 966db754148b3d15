package trunk

import (
	"encoding/binary"
	"time"
)

// LinkStateLen is the size of what AppendState appends.
const LinkStateLen = 98

// AppendState appends all that the Link knows, for another process that takes
// its place under the same epoch: the peer notices nothing. The Link must not be
// used any more if that one is.
func (l *Link) AppendState(dst []byte, now time.Time) []byte {
	var flags byte
	if l.proven {
		flags |= 1
	}
	if l.begun {
		flags |= 2
	}
	dst = append(dst, flags, 0)
	for _, n := range [...]uint64{
		l.local, binary.BigEndian.Uint64(l.secret[:]), binary.BigEndian.Uint64(l.secret[8:]),
		l.peer, l.generation, l.used, l.nonce, l.seen, l.Received, l.Lost,
	} {
		dst = binary.BigEndian.AppendUint64(dst, n)
	}
	dst = binary.BigEndian.AppendUint32(dst, l.next)
	dst = binary.BigEndian.AppendUint32(dst, l.control)
	dst = binary.BigEndian.AppendUint32(dst, l.last)
	wait := min(max(l.nextHello.Sub(now), 0), HelloInterval)
	return binary.BigEndian.AppendUint32(dst, uint32(wait/time.Microsecond))
}

// RestoreLink makes a Link of what AppendState appended. It reports false if that
// is malformed or is about another epoch of ours.
func RestoreLink(epoch uint64, state []byte, now time.Time) (*Link, bool) {
	if len(state) != LinkStateLen || state[0]&^3 != 0 || state[1] != 0 {
		return nil, false
	}
	at := 2
	next64 := func() uint64 { at += 8; return binary.BigEndian.Uint64(state[at-8:]) }
	next32 := func() uint32 { at += 4; return binary.BigEndian.Uint32(state[at-4:]) }
	l := &Link{proven: state[0]&1 != 0, begun: state[0]&2 != 0, local: next64()}
	binary.BigEndian.PutUint64(l.secret[:], next64())
	binary.BigEndian.PutUint64(l.secret[8:], next64())
	l.peer, l.generation, l.used, l.nonce = next64(), next64(), next64(), next64()
	l.seen, l.Received, l.Lost = next64(), next64(), next64()
	l.next, l.control, l.last = next32(), next32(), next32()
	l.newest = l.control
	if l.seen == l.peer {
		l.newest = l.last
	}
	wait := time.Duration(next32()) * time.Microsecond
	l.nextHello = now.Add(wait)
	return l, l.local == epoch && wait <= HelloInterval
}
