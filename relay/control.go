package relay

import (
	"crypto/rand"
	"net/netip"
	"time"

	"github.com/usher-rtc/usher/internal/forward"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/internal/udpbatch"
)

const (
	// housekeeping is the interval of everything that is not due at a packet:
	// greeting peers again, expiry on a quiet relay, log lines, the heartbeat.
	housekeeping = 250 * time.Millisecond
	// maxGreetings is how often the relay greets a peer that it has sent something to
	// and that has never answered, of itself: two seconds. After that a greeting only
	// goes with a packet to or from it. So what an address gets for a packet or two that
	// name it, by an old ufrag or a replay, has a bound, 36 bytes each.
	maxGreetings = 8
	// forgetAfter is how long a silent peer is remembered. Its sequence numbers
	// go with it, so it must be longer than any flow may be silent.
	forgetAfter = time.Hour
	// silentAfter is three keepalives of a Host that did not come.
	silentAfter = 3 * time.Second
	// maxStrangers is how many peers are remembered that have sent or been sent
	// something and have not proven an epoch. A datagram from before can be replayed
	// from any address, and a path between regions needs a tenth of a second for the
	// proof.
	maxStrangers = 4096
	// logEvery is the least time between two lines about one reason.
	logEvery = time.Minute
)

// peerKey names a peer. An address can be a Host's, and another relay's under
// other keys.
type peerKey struct {
	addr   netip.AddrPort
	remote bool
}

// peer is a Host or another relay as one worker sees it.
type peer struct {
	peerKey
	keys   trunk.Keys
	link   *trunk.Link
	head   trunk.Header
	bundle bundle
	used   time.Time
	// unanswered is when the first packet was sent to it since it was last heard
	// of; zero if none was.
	unanswered time.Time
	greeted    int                      // hellos since the last proof
	always     bool                     // configured
	told       bool                     // knows that this relay drains
	announced  map[uint32]*announcement // by token: not yet answered
	relay                               // of remote peers
}

func (p *peer) sender() forward.Peer { return forward.Peer{Addr: p.addr, Remote: p.remote} }

// silent reports whether a peer is gone, for all that can be seen: it was sent
// packets and not heard of for silentAfter, while a Host that lives answers
// checks and sends a keepalive a second. Until it answers a hello, there is no
// point in sending it more.
func (w *worker) silent(p *peer) bool {
	if p.unanswered.IsZero() {
		p.unanswered = w.now
	}
	return w.now.Sub(p.unanswered) >= silentAfter
}

// control is the state of a worker for control datagrams.
type control struct {
	hellos     trunk.Hello
	acks       trunk.HelloAck
	announces  trunk.Announce
	keepalives trunk.Keepalive
	goodbyes   trunk.Goodbye
	pieces     []byte // datagrams one after the other
	ends       []int
	dests      []netip.AddrPort
	messages   []udpbatch.Message
	bufs       [][]byte
	announced  int                 // flows that some peer has not confirmed
	strangers  [maxStrangers]*peer // the latest that were met, in a ring
	met        uint
}

// peer returns what the worker knows about a Host or another relay, and greets a
// new one.
func (w *worker) peer(addr netip.AddrPort, remote bool) *peer {
	if p := w.lastPeer; p != nil && p.addr == addr && p.remote == remote {
		return p
	}
	k := peerKey{addr, remote}
	p := w.peers[k]
	if p == nil {
		var secret [16]byte
		_, _ = rand.Read(secret[:]) // never fails, says its documentation
		p = w.newPeer(k, trunk.NewLink(w.srv.epoch, secret))
		w.peers[k] = p
		w.meet(p)
		w.hello(p)
	}
	w.lastPeer = p
	return p
}

// meet notes a new peer, and forgets the one that was met maxStrangers peers ago if
// that has never proven to be one. Only those who hold keys can make the rest grow.
func (w *worker) meet(p *peer) {
	at := &w.strangers[w.met%maxStrangers]
	w.met++
	old := *at
	*at = p
	if old == nil || old.always || old.listed || old.bundle.Builder != nil || w.peers[old.peerKey] != old {
		return
	}
	if epoch, proven := old.link.Peer(); epoch == 0 && !proven {
		w.forget(old)
	}
}

// forget drops what is known about a peer.
func (w *worker) forget(p *peer) {
	for token := range p.announced {
		w.settle(p, token)
	}
	delete(w.peers, p.peerKey)
	if w.lastPeer == p {
		w.lastPeer = nil
	}
}

func (w *worker) newPeer(k peerKey, link *trunk.Link) *peer {
	p := &peer{peerKey: k, keys: w.srv.cfg.TrunkKeys, link: link, used: w.now}
	if k.remote {
		p.keys, p.heard = w.srv.cfg.EdgeKeys, w.now
	}
	return p
}

// hello greets a peer whose epoch is not proven, not too often.
func (w *worker) hello(p *peer) {
	nonce, ok := p.link.Hello(w.now)
	if !ok {
		return
	}
	p.greeted++
	h := p.link.Header(trunk.TypeHello)
	// Without the ids of the ingresses: those who have proven to be peers get them with
	// the answer to their nonce.
	m := trunk.Hello{Nonce: nonce, Role: trunk.RoleRelay}
	out, ok := m.Append(w.pieces, &h, p.keys)
	w.post(p, out, ok)
}

// post queues a control datagram that was appended to w.pieces.
func (w *worker) post(p *peer, out []byte, ok bool) {
	if !ok {
		return
	}
	w.pieces = out
	w.ends = append(w.ends, len(out))
	w.dests = append(w.dests, p.addr)
}

// writeControl sends the queued control datagrams.
func (w *worker) writeControl() {
	if len(w.dests) == 0 {
		return
	}
	at := 0
	for i, end := range w.ends {
		w.bufs = append(w.bufs, w.pieces[at:end])
		w.messages = append(w.messages, udpbatch.Message{To: w.dests[i]})
		at = end
	}
	for i := range w.messages {
		w.messages[i].Buffers = w.bufs[i : i+1]
	}
	w.trunkConn().WriteBatch(w.messages) // a lost one is asked for again
	w.pieces, w.ends, w.dests = w.pieces[:0], w.ends[:0], w.dests[:0]
	w.messages, w.bufs = w.messages[:0], w.bufs[:0]
}

// onControl handles the control datagram in w.reader. The link has observed it.
func (w *worker) onControl(p *peer) {
	body := w.reader.Body()
	problem := trunk.OK
	switch w.header.Type {
	case trunk.TypeHello:
		if problem = w.hellos.Parse(body); problem == trunk.OK {
			ack := p.link.OnHello(&w.header, &w.hellos)
			w.ack(p, &ack)
		}
	case trunk.TypeHelloAck:
		if problem = w.acks.Parse(body); problem == trunk.OK {
			ack, reply, proven := p.link.OnHelloAck(&w.header, &w.acks)
			if reply {
				w.ack(p, &ack)
			}
			if proven {
				p.told, p.greeted = false, 0
			}
			if proven && p.remote {
				w.onRelayUp(p)
			}
		}
	case trunk.TypeAnnounce:
		if problem = w.announces.Parse(body); problem == trunk.OK {
			w.onAnnounce(p)
		}
	case trunk.TypeKeepalive:
		if problem = w.keepalives.Parse(body); problem == trunk.OK {
			if m := &w.keepalives; w.fresh(p, m.To) && !m.Reply {
				h := p.link.Header(trunk.TypeKeepalive)
				out, ok := (&trunk.Keepalive{To: w.header.Epoch, Token: m.Token, Reply: true}).Append(w.pieces, &h, p.keys)
				w.post(p, out, ok)
			}
		}
	case trunk.TypeGoodbye:
		if problem = w.goodbyes.Parse(body); problem == trunk.OK {
			w.onGoodbye(p)
		}
	}
	if problem != trunk.OK {
		w.drop(forward.TrunkMalformed, p.addr, 0)
	}
}

func (w *worker) ack(p *peer, m *trunk.HelloAck) {
	m.Role, m.Ingresses = trunk.RoleRelay, w.srv.ids
	h := p.link.Header(trunk.TypeHelloAck)
	out, ok := m.Append(w.pieces, &h, p.keys)
	w.post(p, out, ok)
}

// fresh reports whether a control datagram may act; if not, the peers have to
// get to know each other again.
func (w *worker) fresh(p *peer, to uint64) bool {
	if p.link.Accept(&w.header, to) {
		return true
	}
	w.hello(p)
	return false
}

// onGoodbye answers. Flows of a Host that leaves end by their idle limit: it may
// be draining, and its clients may come back to it.
func (w *worker) onGoodbye(p *peer) {
	m := &w.goodbyes
	if !w.fresh(p, m.To) {
		return
	}
	if m.Reply {
		p.told = m.Reason == trunk.ReasonDraining
		return
	}
	h := p.link.Header(trunk.TypeGoodbye)
	out, ok := (&trunk.Goodbye{To: w.header.Epoch, Token: m.Token, Reply: true, Reason: m.Reason}).Append(w.pieces, &h, p.keys)
	w.post(p, out, ok)
	if p.remote {
		w.onRelayLeaving(p)
	}
	if m.Reason == trunk.ReasonClosed {
		p.link.Forget()
	}
}

// goodbye tells all known Hosts that have not confirmed it that this relay
// leaves.
func (w *worker) goodbye(reason trunk.Reason) {
	for _, p := range w.peers {
		epoch, proven := p.link.Peer()
		if !proven || p.told && reason == trunk.ReasonDraining {
			continue
		}
		h := p.link.Header(trunk.TypeGoodbye)
		out, ok := (&trunk.Goodbye{To: epoch, Reason: reason}).Append(w.pieces, &h, p.keys)
		w.post(p, out, ok)
	}
	w.writeControl()
}

// housekeep is called a few times a second, whatever the traffic.
func (w *worker) housekeep() {
	w.dropsTraced = 0
	for _, addr := range w.srv.cfg.Peers {
		w.peer(addr, false).always = true
	}
	if w.clusters != nil {
		w.clusters.housekeep()
	}
	for _, p := range w.peers {
		w.repeatAnnouncements(p)
		w.lookAfter(p)
		_, proven := p.link.Peer()
		switch {
		case p.bundle.Builder == nil && !p.always && w.now.Sub(p.used) > forgetAfter:
			w.forget(p)
		case !proven && (p.always || p.greeted < maxGreetings):
			w.hello(p)
		}
	}
	w.writeControl()
	if w.srv.draining.Load() {
		w.goodbye(trunk.ReasonDraining)
	}
	if w.memory != nil {
		w.refreshStore()
	}
	if w.index == 0 {
		w.logDrops()
	}
}

// logged is what was last said about a reason to drop packets.
type logged struct {
	at    time.Time
	count uint64
}

// logDrops writes a line for each reason that has new drops at any worker, at
// most one a minute: a stranger must not be able to fill the disk.
func (w *worker) logDrops() {
	var sum [numCounters]uint64
	for _, o := range w.srv.workers {
		o.counts.add(&sum)
	}
	for r := forward.None + 1; r < forward.NumReasons; r++ {
		l, count := &w.logged[r], sum[cDrops+int(r)]
		if count == l.count || !l.at.IsZero() && w.now.Sub(l.at) < logEvery {
			continue
		}
		args := []any{"reason", r.String(), "count", count - l.count}
		if hint := hints[r]; hint != "" {
			args = append(args, "hint", hint)
		}
		w.srv.log.Warn("dropped packets", args...)
		l.at, l.count = w.now, count
	}
}
