package transceiver

import (
	"time"

	"github.com/usher-rtc/usher/internal/trunk"
)

const (
	// announceRetry is when an announcement that was not answered is repeated: some
	// round trips of a private network, and time for a relay that starts.
	announceRetry = 200 * time.Millisecond
	// announceTries bounds how often it is sent. Whoever has not answered by then
	// learns the flows from their own packets.
	announceTries = 4
)

// announcement is one datagram's flows that the relay has not yet confirmed.
type announcement struct {
	epoch uint64 // of the relay that it is for
	flows []trunk.Frame
	sent  time.Time
	tries int
}

// announce sends a list of flows in as many datagrams as it takes, and remembers
// each by its token until it is answered. The peer is acquired.
func (p *peer) announce(now time.Time, flows []trunk.Frame) {
	epoch, proven := p.link.Peer()
	if !proven {
		return
	}
	for len(flows) > 0 {
		p.token++
		n := p.sendAnnouncement(p.token, epoch, flows)
		if n == 0 {
			return
		}
		if p.announced == nil {
			p.announced = make(map[uint32]*announcement)
		}
		p.announced[p.token] = &announcement{epoch: epoch, flows: flows[:n], sent: now, tries: 1}
		flows = flows[n:]
	}
}

// sendAnnouncement sends one datagram and returns how many of the flows it deals with.
func (p *peer) sendAnnouncement(token uint32, epoch uint64, flows []trunk.Frame) int {
	out := p.link.Header(trunk.TypeAnnounce)
	m := trunk.Announce{To: epoch, Token: token, Flows: flows}
	b, n, ok := m.Append(nil, &out, p.keys, p.host.cfg.TrunkMTU)
	if !ok {
		return 0
	}
	p.send(b, ok)
	return n
}

// repeat sends again what was not answered, and reports whether something is
// still waited for.
func (p *peer) repeat(now time.Time) bool {
	p.acquire()
	defer p.release()
	epoch, proven := p.link.Peer()
	for token, a := range p.announced {
		switch {
		case !proven || a.epoch != epoch || a.tries == announceTries:
			delete(p.announced, token)
		case now.Sub(a.sent) >= announceRetry:
			a.tries++
			a.sent = now
			p.sendAnnouncement(token, epoch, a.flows)
		}
	}
	return len(p.announced) > 0
}

// repeatAnnouncements is called by the maintenance goroutine. It returns when to
// call it again, nil for not before the next announcement.
func (h *Host) repeatAnnouncements(now time.Time) <-chan time.Time {
	again := false
	for _, p := range *h.peers.m.Load() {
		again = p.repeat(now) || again
	}
	if !again {
		return nil
	}
	return time.After(announceRetry)
}
