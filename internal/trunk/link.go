package trunk

import (
	"encoding/binary"
	"time"
)

// HelloInterval is the shortest time between two hellos to one peer. A lost one
// costs this much recovery time; a peer that is not there costs four small
// datagrams a second.
const HelloInterval = 250 * time.Millisecond

// Link is one side's knowledge about one peer: whether its epoch is proven, how
// many datagrams were lost, and which control datagrams are fresh. It does no
// I/O and no timing of its own. One goroutine at a time.
//
// Data may be replayed inside the private network; control may not, because it
// moves flows. So nothing acts on an epoch before a nonce came back from it:
//
//	A  hello      nonce a
//	B  hello-ack  echo a, nonce b     A now knows B's epoch
//	A  hello-ack  echo b              B now knows A's epoch
//
// Announce, keepalive and goodbye name the receiver's epoch, come from a proven
// epoch, were sent after its proof, and act once: Accept remembers which of the
// last 64 sequences it has seen and takes none that is older.
type Link struct {
	local  uint64
	secret [16]byte
	next   uint32 // sequence of our next datagram

	peer       uint64 // proven epoch, if proven
	proven     bool
	generation uint64 // counts proofs, so that a recorded proof is void after the next
	control    uint32 // highest sequence of a control datagram from the proven epoch
	used       uint64 // bit i: control-i was accepted, or is from before the proof

	newest uint32 // highest sequence of any datagram from the proven epoch
	fresh  bool   // the one that was observed last is newer than all before

	nonce     uint64 // of our outstanding hello, 0 if there is none
	nextHello time.Time

	seen  uint64 // epoch of the last datagram, for losses
	last  uint32 // its highest sequence
	begun bool
	// Received and Lost count datagrams from the peer. A late one is taken off
	// Lost again, a duplicate counts like a late one.
	Received, Lost uint64
}

// NewLink returns a Link for one peer. The epoch is our own, random at each
// boot and the same for all peers. The secret is random bytes that nobody else
// knows; different Links of a process can share it only if they are for
// different peers in different processes, so draw one for each.
func NewLink(epoch uint64, secret [16]byte) *Link {
	return &Link{local: epoch, secret: secret}
}

// Header returns the header of the next datagram to the peer.
func (l *Link) Header(t Type) Header {
	h := Header{Type: t, Hops: DefaultHops, Epoch: l.local, Seq: l.next}
	l.next++
	return h
}

// Peer returns the peer's epoch, and false if none is proven yet.
func (l *Link) Peer() (epoch uint64, proven bool) { return l.peer, l.proven }

// Observe takes the header of every datagram of the peer that Open accepted,
// before anything else is done with it. It counts losses and reports whether
// the epoch is the proven one; if not, the peer is new or was restarted: send
// what Hello returns.
func (l *Link) Observe(h *Header) bool {
	l.Received++
	if !l.begun || h.Epoch != l.seen {
		l.begun, l.seen, l.last = true, h.Epoch, h.Seq
	} else if ahead := int32(h.Seq - l.last); ahead > 0 {
		l.Lost += uint64(ahead - 1)
		l.last = h.Seq
	} else if l.Lost > 0 {
		l.Lost--
	}
	known := l.proven && h.Epoch == l.peer
	l.fresh = known && int32(h.Seq-l.newest) > 0
	if l.fresh {
		l.newest = h.Seq
	}
	return known
}

// Fresh reports whether the datagram that was observed last is from the proven
// epoch and was sent after all others of it that were: no replay, and so a sign of
// life.
func (l *Link) Fresh() bool { return l.fresh }

// Forget makes the peer's epoch unproven, after it missed keepalives or refused
// packets, so that Hello asks again.
func (l *Link) Forget() { l.proven = false }

// Hello returns the nonce of a hello to send now, and false if the last one was
// sent less than HelloInterval ago. It does not ask whether one is needed: call
// it when Observe reports false, and by timer while Peer is not proven.
func (l *Link) Hello(now time.Time) (nonce uint64, ok bool) {
	if now.Before(l.nextHello) {
		return 0, false
	}
	l.nextHello = now.Add(HelloInterval)
	if l.nonce == 0 {
		l.nonce = l.challenge(0x68, uint64(now.UnixNano()), uint64(l.next))
	}
	return l.nonce, true
}

// OnHello returns the answer to a hello, without Role and Ingresses.
func (l *Link) OnHello(h *Header, m *Hello) HelloAck {
	return HelloAck{Echo: m.Nonce, Nonce: l.challenge(0x63, h.Epoch, l.generation)}
}

// OnHelloAck takes an answer. It reports proven if the epoch of the sender is
// proven by it and was not before: now is the time to announce flows. It
// reports reply if ack, without Role and Ingresses, is to be sent back.
func (l *Link) OnHelloAck(h *Header, m *HelloAck) (ack HelloAck, reply, proven bool) {
	asked := l.nonce != 0 && m.Echo == l.nonce
	if !asked && m.Echo != l.challenge(0x63, h.Epoch, l.generation) {
		return HelloAck{}, false, false
	}
	// An answer that is still on the way is as old as the hello it answers, and
	// the peer may have been restarted since: one proof voids all other nonces.
	l.nonce = 0
	if !l.proven || l.peer != h.Epoch {
		l.peer, l.proven, l.control, l.used = h.Epoch, true, h.Seq, ^uint64(0)
		l.newest = h.Seq
		l.generation++
		proven = true
	}
	if m.Nonce == 0 {
		return HelloAck{}, false, proven
	}
	return HelloAck{Echo: m.Nonce}, true, proven
}

// Accept reports whether an announcement, keepalive or goodbye addressed to
// epoch to is fresh and may act. One that is refused because the sender's epoch
// is not proven, or because the sender knows another epoch of ours, calls for a
// Hello. Sequences wrap: a peer must send a control datagram at least once in
// 2^31 datagrams, which keepalives see to.
func (l *Link) Accept(h *Header, to uint64) bool {
	if !l.proven || h.Epoch != l.peer || to != l.local {
		return false
	}
	if ahead := int32(h.Seq - l.control); ahead > 0 {
		l.used = l.used<<ahead | 1 // a shift by 64 or more leaves only the 1
		l.control = h.Seq
		return true
	}
	behind := l.control - h.Seq
	if behind >= 64 || l.used>>behind&1 == 1 {
		return false
	}
	l.used |= 1 << behind
	return true
}

// challenge is a number that only this Link can know for these values. It is
// never 0.
func (l *Link) challenge(use byte, a, b uint64) uint64 {
	var in [17]byte
	in[0] = use
	binary.BigEndian.PutUint64(in[1:], a)
	binary.BigEndian.PutUint64(in[9:], b)
	return max(sum(&l.secret, in[:]), 1)
}
