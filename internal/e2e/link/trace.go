package link

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/usher-rtc/usher/internal/stun"
)

// Packet is a line of the trace: a packet that was delivered.
type Packet struct {
	At        time.Time // of its delivery
	Direction Direction
	Client    netip.AddrPort
	Outer     netip.AddrPort // the client's port at the NAT
	Size      int
	Kind      Kind
	SSRC      uint32 // of RTP and RTCP
	Seq       uint16 // of RTP
	// Data is the packet itself, of STUN requests only.
	Data []byte
}

// Kind is what a packet is, as its first bytes say.
type Kind uint8

// The kinds.
const (
	Other     Kind = iota
	Request        // a STUN request: a check
	STUN           // any other STUN message
	Handshake      // DTLS with a handshake record in front (RFC 6347 section 4.1)
	DTLS           // any other DTLS: application data, alerts
	RTP
	RTCP
)

// kindOf reads the first bytes of a packet.
func kindOf(b []byte) Kind {
	const handshake = 22
	switch stun.Classify(b) {
	case stun.ClassSTUN:
		if b[0]&1 == 0 && b[1]&0x10 == 0 { // RFC 8489 section 5: class 00
			return Request
		}
		return STUN
	case stun.ClassDTLS:
		if b[0] == handshake {
			return Handshake
		}
		return DTLS
	case stun.ClassRTP:
		if stun.IsRTCP(b) {
			return RTCP
		}
		return RTP
	default:
		return Other
	}
}

func (l *Link) recordLocked(d Direction, p parcel) {
	line := Packet{
		At: time.Now(), Direction: d, Client: p.m.client, Outer: p.m.outer, Size: len(p.data), Kind: kindOf(p.data),
	}
	if line.Kind == Request {
		line.Data = p.data
	}
	line.SSRC, _ = stun.SSRC(p.data)
	if line.Kind == RTP && len(p.data) >= 4 {
		line.Seq = binary.BigEndian.Uint16(p.data[2:])
	}
	l.trace = append(l.trace, line)
}

// Find returns the packets of a client that were delivered in one direction since
// a time, of one of the kinds, in order. The zero client stands for all.
func (l *Link) Find(client netip.AddrPort, d Direction, since time.Time, kinds ...Kind) (found []Packet) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.trace {
		if p.Direction != d || p.At.Before(since) || client.IsValid() && p.Client != client {
			continue
		}
		for _, k := range kinds {
			if p.Kind == k {
				found = append(found, p)
				break
			}
		}
	}
	return found
}

// Late returns how many packets arrived for a port that a rebinding had closed.
func (l *Link) Late() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.late
}
