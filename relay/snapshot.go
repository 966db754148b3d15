package relay

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/config"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/internal/udpbatch"
)

// What workers know, in pieces. Each piece begins with the worker's number, two
// bytes, and goes on with records of one kind:
//
//	flows    flowtable.RecordLen bytes each
//	peers    the trunk.Link of a peer and what the worker knows beyond it
//	packets  packets that wait for the flow store
//
// Limits of rates, claims to flows, the memory of what the flow store does not
// have, and counters are left behind: they come again, or cost one check.

// snapshotWriter fills pieces and sends them.
type snapshotWriter struct {
	line  *line
	step  func() // sets the deadline of the next piece
	kind  messageType
	piece []byte
	sum   totals
	err   error
}

// begin starts the records of one kind.
func (o *snapshotWriter) begin(kind messageType, w *worker) {
	o.kind = kind
	o.piece = binary.BigEndian.AppendUint16(o.piece[:0], uint16(w.index))
}

// added is called after each record was appended to o.piece. The longest record is
// longestRecord.
func (o *snapshotWriter) added() {
	if len(o.piece)+longestRecord >= maxPiece {
		o.flush()
	}
}

func (o *snapshotWriter) flush() {
	if o.err == nil && len(o.piece) > 2 {
		o.step()
		o.err = o.line.send(o.kind, o.piece)
	}
	o.piece = o.piece[:2]
}

const (
	peerFlagRemote = 1 << iota
	peerFlagTold
	peerFlagLeaving
	peerFlagUnanswered
	peerFlags = 1<<iota - 1
)

// peerLen is the size of a peer's record without its ingresses: flags 1, address
// 18, age of used in milliseconds 4, greeted 4, token 4, link, number of ingresses 2.
const peerLen = 1 + 18 + 8 + 4 + trunk.LinkStateLen + 2

// packetLen is the size of a packet's record without its payload: client 18,
// ingress 2, local address 16 or zero, TOS 1, payload length 2.
const packetLen = 18 + 2 + 16 + 1 + 2

const longestRecord = max(peerLen+2*trunk.MaxIngresses, packetLen+maxWaitingSize, flowtable.RecordLen)

// writeSnapshot sends all that the worker knows. The worker does not run.
func (w *worker) writeSnapshot(o *snapshotWriter) {
	now := time.Now()
	w.writeFlows(o)
	o.begin(msgPeers, w)
	for _, p := range w.peers {
		o.piece = p.appendRecord(o.piece, now)
		o.sum.Peers++
		o.added()
	}
	o.flush()
	if w.memory == nil {
		return
	}
	o.begin(msgPackets, w)
	room := w.memory.room
	for q := room.oldest; q != nil; q = q.next {
		for _, i := range q.packets[:q.n] {
			o.piece = room.slots[i].appendRecord(o.piece, q.key)
			o.sum.Packets++
			o.added()
		}
	}
	o.flush()
}

func (w *worker) writeFlows(o *snapshotWriter) {
	o.begin(msgFlows, w)
	t := w.shard()
	for cursor, more := uint32(0), true; more && o.err == nil; more = cursor != 0 {
		t.Lock() // the debug page looks at it too
		cursor = t.Walk(cursor, 512, func(f flowtable.Flow) {
			o.piece = f.AppendRecord(o.piece)
			o.sum.Flows++
			o.added()
		})
		t.Unlock()
	}
	o.flush()
}

func appendAddrPort(b []byte, ap netip.AddrPort) []byte {
	a := ap.Addr().As16()
	return binary.BigEndian.AppendUint16(append(b, a[:]...), ap.Port())
}

func readAddrPort(b []byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b)).Unmap(), binary.BigEndian.Uint16(b[16:]))
}

// millisSince is an age for a record.
func millisSince(t, now time.Time) uint32 {
	return uint32(min(max(now.Sub(t).Milliseconds(), 0), 1<<31))
}

func (p *peer) appendRecord(b []byte, now time.Time) []byte {
	var flags byte
	for flag, set := range map[byte]bool{
		peerFlagRemote: p.remote, peerFlagTold: p.told,
		peerFlagLeaving: p.leaving, peerFlagUnanswered: !p.unanswered.IsZero(),
	} {
		if set {
			flags |= flag
		}
	}
	b = appendAddrPort(append(b, flags), p.addr)
	b = binary.BigEndian.AppendUint32(b, millisSince(p.used, now))
	b = binary.BigEndian.AppendUint32(b, uint32(p.greeted))
	b = binary.BigEndian.AppendUint32(b, p.token)
	b = p.link.AppendState(b, now)
	b = binary.BigEndian.AppendUint16(b, uint16(len(p.ingresses)))
	for _, id := range p.ingresses {
		b = binary.BigEndian.AppendUint16(b, id)
	}
	return b
}

func (s *waiter) appendRecord(b []byte, k flowtable.Key) []byte {
	b = appendAddrPort(b, k.Client)
	b = binary.BigEndian.AppendUint16(b, k.Ingress)
	var local [16]byte
	if s.local.IsValid() {
		local = s.local.As16()
	}
	b = append(append(b, local[:]...), s.tos)
	b = binary.BigEndian.AppendUint16(b, uint16(len(s.data)))
	return append(b, s.data...)
}

// snapshotReader puts the pieces of another process's snapshot into the workers,
// which do not run yet.
type snapshotReader struct {
	srv       *Server
	now       time.Time
	sum       totals
	forbidden int // flows that this configuration does not allow
}

// take handles a piece.
func (in *snapshotReader) take(kind messageType, piece []byte) error {
	if len(piece) < 2 || int(binary.BigEndian.Uint16(piece)) >= len(in.srv.workers) {
		return errMalformed
	}
	w := in.srv.workers[binary.BigEndian.Uint16(piece)]
	var read func(*worker, []byte) ([]byte, error)
	switch kind {
	case msgFlows:
		read = in.flow
	case msgPeers:
		read = in.peer
	case msgPackets:
		read = in.packet
	default:
		return fmt.Errorf("%w %d in a snapshot", errUnexpected, kind)
	}
	w.now = in.now
	t := w.shard()
	t.Lock()
	defer t.Unlock()
	var err error
	for b := piece[2:]; len(b) > 0 && err == nil; {
		b, err = read(w, b)
	}
	return err
}

// flow reads a flow. Unconfirmed ones wait for finish: their table wants the one
// that was idle longest first.
func (in *snapshotReader) flow(w *worker, b []byte) ([]byte, error) {
	if len(b) < flowtable.RecordLen {
		return nil, errMalformed
	}
	f, err := flowtable.ReadRecord(b[:flowtable.RecordLen])
	if err != nil {
		return nil, err
	}
	in.sum.Flows++
	switch {
	case !w.core.Admits(&f):
		in.forbidden++
	case f.State == flowtable.Unconfirmed:
		w.inherited.unconfirmed = append(w.inherited.unconfirmed, f)
	default:
		err = w.inherit(&f)
	}
	return b[flowtable.RecordLen:], err
}

// inherit adds a flow of the predecessor's.
func (w *worker) inherit(f *flowtable.Flow) error {
	t := w.shard()
	switch {
	case t.Lookup(f.Key) != 0:
		return fmt.Errorf("%w: a flow is there twice", errMalformed)
	case t.Full():
		return config.Errorf("MaxFlows", "too few for the flows of the relay to take over from")
	}
	t.Insert(f)
	w.counts.now[cInherited]++
	return nil
}

func (in *snapshotReader) peer(w *worker, b []byte) ([]byte, error) {
	if len(b) < peerLen || b[0]&^peerFlags != 0 {
		return nil, errMalformed
	}
	flags, key := b[0], peerKey{readAddrPort(b[1:]), b[0]&peerFlagRemote != 0}
	n := int(binary.BigEndian.Uint16(b[peerLen-2:]))
	link, ok := trunk.RestoreLink(in.srv.epoch, b[31:31+trunk.LinkStateLen], in.now)
	if !ok || n > trunk.MaxIngresses || len(b) < peerLen+2*n || w.peers[key] != nil || key.addr.Port() == 0 {
		return nil, errMalformed
	}
	p := w.newPeer(key, link)
	p.used = in.now.Add(-time.Duration(binary.BigEndian.Uint32(b[19:])) * time.Millisecond)
	p.greeted = int(min(binary.BigEndian.Uint32(b[23:]), maxGreetings))
	if flags&peerFlagUnanswered != 0 {
		p.unanswered = in.now // its answers may be in the queue
	}
	p.told, p.leaving = flags&peerFlagTold != 0, flags&peerFlagLeaving != 0
	p.token = binary.BigEndian.Uint32(b[27:])
	for i := range n {
		p.ingresses = append(p.ingresses, binary.BigEndian.Uint16(b[peerLen+2*i:]))
	}
	// Those of another configuration need not be this one's.
	if key.remote && w.core.RelayAllowed(key.addr) || !key.remote && w.core.PeerAllowed(key.addr) {
		w.peers[key] = p
	}
	in.sum.Peers++
	return b[peerLen+2*n:], nil
}

// packet reads a packet that the predecessor held. Its worker gets it again as if
// it had just come.
func (in *snapshotReader) packet(w *worker, b []byte) ([]byte, error) {
	if len(b) < packetLen {
		return nil, errMalformed
	}
	n := int(binary.BigEndian.Uint16(b[37:]))
	ingress := binary.BigEndian.Uint16(b[18:])
	if len(b) < packetLen+n || int(ingress) >= len(in.srv.byID) || in.srv.byID[ingress] < 0 {
		return nil, errMalformed
	}
	if len(w.inherited.packets) >= maxWaiting {
		return nil, fmt.Errorf("%w: more than %d packets", errMalformed, maxWaiting)
	}
	p := udpbatch.Packet{From: readAddrPort(b), TOS: b[36], Data: slices.Clone(b[packetLen : packetLen+n])}
	if local := [16]byte(b[20:36]); local != ([16]byte{}) {
		p.Local = netip.AddrFrom16(local).Unmap()
	}
	w.inherited.packets = append(w.inherited.packets, inheritedPacket{int(in.srv.byID[ingress]), p})
	in.sum.Packets++
	return b[packetLen+n:], nil
}

// finish compares the counts with the predecessor's, and adds what had to wait.
func (in *snapshotReader) finish(want totals) error {
	if in.sum != want {
		return fmt.Errorf("%w: got %+v, want %+v", errMalformed, in.sum, want)
	}
	return in.addUnconfirmed()
}

// alone makes what came of the snapshot of a relay that has ended meanwhile the state
// of one that was restarted: the flows are true as far as they came, and how far its
// conversations went, nobody knows.
func (in *snapshotReader) alone() {
	_ = in.addUnconfirmed() // those that do not fit come again
	in.srv.epoch = newEpoch()
	for _, w := range in.srv.workers {
		clear(w.peers)
	}
}

func (in *snapshotReader) addUnconfirmed() error {
	for _, w := range in.srv.workers {
		late := w.inherited.unconfirmed
		w.inherited.unconfirmed = nil
		now := flowtable.Tick(in.now.Sub(in.srv.start) / time.Millisecond)
		slices.SortStableFunc(late, func(a, b flowtable.Flow) int {
			return int(int64(b.LastUpstream.Age(now)) - int64(a.LastUpstream.Age(now)))
		})
		t := w.shard()
		t.Lock()
		for i := range late {
			if err := w.inherit(&late[i]); err != nil {
				t.Unlock()
				return err
			}
		}
		t.Unlock()
	}
	return nil
}

// inheritance is what a worker got from its predecessor and has not yet used.
type inheritance struct {
	unconfirmed []flowtable.Flow
	packets     []inheritedPacket
}

// inheritedPacket is a packet that waited for the flow store.
type inheritedPacket struct {
	ingress int // its index
	packet  udpbatch.Packet
}

// forwardInherited handles the predecessor's packets before any that wait in the
// kernel. The worker's goroutine calls it once.
func (w *worker) forwardInherited() {
	w.now = time.Now()
	for i := range w.inherited.packets {
		p := &w.inherited.packets[i]
		w.fromClients(p.ingress, []udpbatch.Packet{p.packet})
	}
	w.inherited.packets = nil
}
