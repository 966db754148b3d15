package relay

import (
	"net/netip"
	"slices"
	"time"

	"github.com/usher-rtc/usher/internal/forward"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/ufrag"
)

// Announcements that a cluster relay sends: questions to Hosts about the flows of
// an edge, and what the Hosts announce for it, passed on. Each is repeated until it
// is answered, or a few times.

const (
	// announceTries bounds how often an announcement is sent, at first and then with
	// housekeeping: about a second. Flows that are not told by then come with their
	// own packets.
	announceTries = 4
	// maxAnnounced flows of a worker may wait for an answer; more are announced once.
	// It is what an edge's flows may cost for a second, some 3 MiB, and the one thing
	// that a cluster relay remembers about them.
	maxAnnounced = 1 << 14
)

// announcement is one datagram's flows that the peer has not confirmed yet.
type announcement struct {
	epoch uint64 // of the peer
	flows []trunk.Frame
	sent  time.Time
	tries int
}

// announce sends a list of flows in as many datagrams as it takes, and remembers
// each by its token until it is answered.
func (w *worker) announce(p *peer, flows []trunk.Frame) {
	epoch, proven := p.link.Peer()
	for proven && len(flows) > 0 {
		p.token++
		n := w.sendAnnouncement(p, p.token, epoch, flows)
		if n == 0 {
			return
		}
		if w.announced+n <= maxAnnounced {
			if p.announced == nil {
				p.announced = make(map[uint32]*announcement)
			}
			p.announced[p.token] = &announcement{epoch: epoch, flows: flows[:n], sent: w.now, tries: 1}
			w.announced += n
		}
		flows = flows[n:]
	}
}

// sendAnnouncement sends one datagram and returns how many of the flows it deals
// with.
func (w *worker) sendAnnouncement(p *peer, token uint32, epoch uint64, flows []trunk.Frame) int {
	h := p.link.Header(trunk.TypeAnnounce)
	out, n, ok := (&trunk.Announce{To: epoch, Token: token, Flows: flows}).Append(w.pieces, &h, p.keys, w.srv.cfg.TrunkMTU)
	if !ok {
		return 0
	}
	w.post(p, out, ok)
	return n
}

// repeatAnnouncements sends again what a peer has not answered.
func (w *worker) repeatAnnouncements(p *peer) {
	epoch, proven := p.link.Peer()
	for token, a := range p.announced {
		switch {
		case !proven || a.epoch != epoch || a.tries == announceTries:
			w.settle(p, token)
		case w.now.Sub(a.sent) >= housekeeping/2: // else the answer may be on its way
			a.tries++
			a.sent = w.now
			w.sendAnnouncement(p, token, epoch, a.flows)
		}
	}
}

// settle forgets an announcement.
func (w *worker) settle(p *peer, token uint32) {
	if a := p.announced[token]; a != nil {
		w.announced -= len(a.flows)
		delete(p.announced, token)
	}
}

// onAnnounce learns the flows that a Host says are here.
func (w *worker) onAnnounce(p *peer) {
	m := &w.announces
	if !w.fresh(p, m.To) {
		return
	}
	if m.Reply {
		w.settle(p, m.Token)
		return
	}
	if !p.remote {
		w.announceToEdges(p)
	}
	for i := range m.Flows {
		if m.Flows[i].Return.IsValid() {
			continue // not ours
		}
		w.core.Announced(&m.Flows[i], p.sender(), &w.delivery)
		if w.delivery.Event != forward.EventNone {
			w.peerEvent(&w.delivery)
		}
	}
	h := p.link.Header(trunk.TypeAnnounce)
	out, _, ok := (&trunk.Announce{To: w.header.Epoch, Token: m.Token, Reply: true}).Append(w.pieces, &h, p.keys, 0)
	w.post(p, out, ok)
}

// nobody is the route of a question for flows, which is about no session.
var nobody = ufrag.Route{Kind: ufrag.KindDirectory}

// askHosts asks all Hosts for the flows that run through an edge. What they
// announce goes to it, or to those that take its place.
func (w *worker) askHosts(edge *peer) {
	if !w.core.EdgeAllowed(edge.addr) {
		return
	}
	question := []trunk.Frame{{Return: edge.addr, Route: nobody}}
	if !edge.leaving {
		// It may have taken an address over.
		for _, id := range edge.ingresses {
			question = append(question, trunk.Frame{Return: edge.addr, Route: nobody, Ingress: id})
		}
	}
	for _, p := range w.peers {
		if !p.remote {
			w.announce(p, question) // a Host that becomes proven later announces everything
		}
	}
}

// announceToEdges passes a Host's announcement, in w.announces, on to the edges
// that it is for.
func (w *worker) announceToEdges(host *peer) {
	var groups map[*peer][]trunk.Frame
	var others map[uint16][]*peer // by ingress
	for _, f := range w.announces.Flows {
		if !f.Return.IsValid() || !w.core.Vouched(&f, host.addr) {
			continue
		}
		if groups == nil {
			groups, others = make(map[*peer][]trunk.Frame), make(map[uint16][]*peer)
		}
		edge := w.peers[peerKey{f.Return, true}]
		f.Return, f.Payload = netip.AddrPort{}, nil // it outlives the datagram
		if edge != nil && !edge.leaving {
			groups[edge] = append(groups[edge], f)
			continue
		}
		list, ok := others[f.Ingress]
		if !ok {
			list = w.successors(f.Ingress)
			others[f.Ingress] = list
		}
		for _, p := range list {
			groups[p] = append(groups[p], f)
		}
	}
	for p, flows := range groups {
		w.announce(p, flows)
	}
}

// successors are the edges that clients of an ingress may be led to when one of
// its edges leaves: a worker of each.
func (w *worker) successors(ingress uint16) (list []*peer) {
	for _, p := range w.peers {
		epoch, proven := p.link.Peer()
		if !proven || !p.remote || p.leaving || !slices.Contains(p.ingresses, ingress) || !w.core.EdgeAllowed(p.addr) {
			continue
		}
		if !slices.ContainsFunc(list, func(o *peer) bool { e, _ := o.link.Peer(); return e == epoch }) {
			list = append(list, p)
		}
	}
	return list
}
