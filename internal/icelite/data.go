package icelite

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"time"

	"github.com/usher-rtc/usher/internal/stun"
)

// DataVerdict says what to do with a packet that is not STUN.
type DataVerdict uint8

const (
	// Drop it: it came from where nothing is believed.
	Drop DataVerdict = iota
	// Deliver it.
	Deliver
	// DeliverSRTP means: deliver it only as SRTP, which authenticates itself.
	// It came from an address that is not proven.
	DeliverSRTP
)

// String returns the verdict in lower case.
func (v DataVerdict) String() string {
	switch v {
	case Deliver:
		return "deliver"
	case DeliverSRTP:
		return "deliver srtp"
	default:
		return "drop"
	}
}

// HandleData judges a packet of size bytes that is not STUN. knownSSRC says
// that its SSRC is one the session receives. DTLS and SRTP are delivered from
// proven paths, and from the first path as soon as an authenticated check has
// come from it. SRTP with a known SSRC from anywhere else is most likely the
// client behind a NAT that rebound: it is delivered as SRTP only, and starts a
// check of our own there as soon as as many bytes have come in as it takes.
func (a *Agent) HandleData(now time.Time, id Path, via netip.AddrPort, class stun.Class, knownSSRC bool, size int, out *Output) DataVerdict {
	t := a.tick(now)
	if a.state == StateClosed || class != stun.ClassDTLS && class != stun.ClassRTP {
		a.stats.DataDropped++
		return Drop
	}
	id = id.unmap()
	a.checkConsent(t, out)
	i := a.findPath(id)
	if i >= 0 && !a.paths[i].lost && (a.paths[i].first || a.proven(&a.paths[i], t)) {
		p := &a.paths[i]
		p.came(size)
		p.lastData, p.lastAny = t, t
		a.heard(t, out)
		a.relayData(i, via, t, out)
		a.consider(i, true, t, out)
		return Deliver
	}
	srtp := class == stun.ClassRTP && knownSSRC
	if a.current < 0 || i >= 0 && a.paths[i].lost || i < 0 && !srtp {
		a.stats.DataDropped++
		return Drop
	}
	if i < 0 {
		if i = a.addPath(id, via, false, t); i < 0 {
			a.stats.DataUnproven++
			return DeliverSRTP
		}
		a.paths[i].generation = a.paths[a.current].generation
	}
	p := &a.paths[i]
	a.lapse(p, t)
	p.came(size)
	if srtp {
		p.lastData = t
	}
	// DTLS from a path whose check went unanswered starts another one; an
	// address that never sent an authenticated check is asked only for SRTP.
	if !p.check.active && t-p.check.sentAt[0] >= retryAfter && (srtp || p.authenticated) && a.roomForCheck(p, t) {
		a.startCheck(i, netip.AddrPort{}, probeTries, t, out)
	}
	if !srtp {
		a.stats.DataDropped++
		return Drop
	}
	a.stats.DataUnproven++
	return DeliverSRTP
}

// Allow says where size outgoing bytes of DTLS or SRTP may go now, and counts
// them. It reports false if there is no current path or, before that is
// proven, if the limit of the first path has no room: the caller then drops the
// packet. validated is for the flag in the trunk's frame.
func (a *Agent) Allow(now time.Time, size int) (id Path, via netip.AddrPort, validated, ok bool) {
	t := a.tick(now)
	if a.current < 0 {
		return Path{}, netip.AddrPort{}, false, false
	}
	p := &a.paths[a.current]
	validated = a.proven(p, t)
	if !validated {
		// Consent that ran out and that Poll has not come to yet allows nothing.
		if p.answeredAt != 0 || size+firstPathReserve > p.room(t, false) {
			p.unsent++
			a.stats.Limited++
			return Path{}, netip.AddrPort{}, false, false
		}
	}
	p.left(size)
	return p.id, p.via, validated, true
}

// maxAcks is how many received datagrams an answer acknowledges.
const maxAcks = 4

// acks remembers the DTLS handshake datagrams that Chromium's trial of DTLS in
// STUN wants acknowledged: the newest four, by CRC-32.
type acks struct {
	on    bool // the client uses it
	n     int
	sums  [maxAcks]uint32
	value [4 * maxAcks]byte // room to encode them in
}

func (k *acks) note(datagram []byte) {
	sum := crc32.ChecksumIEEE(datagram)
	for _, s := range k.sums[:k.n] {
		if s == sum {
			return
		}
	}
	if k.n == maxAcks {
		copy(k.sums[:], k.sums[1:])
		k.n--
	}
	k.sums[k.n] = sum
	k.n++
}

// embedded takes the DTLS out of an authenticated check. Anything else that a
// client puts there is not let past what judges such packets: STUN above all,
// which would reach the agent behind this one.
func (a *Agent) embedded(m *stun.Message, out *Output) {
	if m.DTLS == nil && m.DTLSAck == nil {
		return
	}
	a.acks.on = true
	if stun.Classify(m.DTLS) == stun.ClassDTLS {
		a.acks.note(m.DTLS)
		out.EmbeddedDTLS = append(out.EmbeddedDTLS, m.DTLS)
	}
}

// NoteDTLS tells the agent of a DTLS datagram that was delivered and did not
// come inside a check, so that it is acknowledged as well. It does nothing for
// clients that do not put DTLS into STUN, and for application data.
func (a *Agent) NoteDTLS(datagram []byte) {
	const applicationData = 23
	if a.acks.on && len(datagram) > 0 && datagram[0] != applicationData {
		a.acks.note(datagram)
	}
}

// addAcks puts the acknowledgements into the answer to a check that has DTLS,
// even if there are none.
func (a *Agent) addAcks(m *stun.Message, out *Output) {
	if m.DTLS == nil && m.DTLSAck == nil {
		return
	}
	k := &a.acks
	for i, s := range k.sums[:k.n] {
		binary.BigEndian.PutUint32(k.value[4*i:], s)
	}
	out.build.AddRaw(stun.AttrDTLSInSTUNAck, k.value[:4*k.n])
}
