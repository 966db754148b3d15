package transceiver

import "sync"

// slotSize holds any packet of a path with an Ethernet MTU, and DTLS records
// in a STUN attribute. Longer packets are dropped and counted.
const slotSize = 2048

// packet is a buffer between a socket and Pion, in either direction.
type packet struct {
	n   int
	buf [slotSize]byte
}

func (p *packet) bytes() []byte { return p.buf[:p.n] }

var packets = sync.Pool{New: func() any { return new(packet) }}

// newPacket copies b, which the caller has checked to fit.
func newPacket(b []byte) *packet {
	p, _ := packets.Get().(*packet)
	p.n = copy(p.buf[:], b)
	return p
}

func (p *packet) free() { packets.Put(p) }
