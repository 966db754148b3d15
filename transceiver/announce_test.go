package transceiver

import (
	"math"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/trunk"
)

// TestAnnouncementsAreRepeated loses announcements: each is sent again until the
// relay answers with its token, and not for ever.
func TestAnnouncementsAreRepeated(t *testing.T) {
	host, relay := setup(t, withEcho)
	c := newClient(t, nil)
	ch := c.channel()
	s := c.call(host, AcceptOptions{})
	ch.echo(t, "hello")
	eventually(t, "a proven path", func() bool { return s.Stats().Validated })
	eventually(t, "the Host to know the relay", relay.proven)
	p := host.peers.get(relay.trunk.LocalAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort())
	pending := func() (tokens []uint32) {
		p.mu.Lock()
		defer p.mu.Unlock()
		for token := range p.announced {
			tokens = append(tokens, token)
		}
		return tokens
	}
	copies := func() (n int) {
		relay.framesMu.Lock()
		defer relay.framesMu.Unlock()
		for _, f := range relay.announced {
			if s.isFlow(f) {
				n++
			}
		}
		return n
	}
	again := func() {
		eventually(t, "the last one to be over", func() bool { return len(pending()) == 0 })
		relay.restart()
		relay.framesMu.Lock()
		relay.announced = nil
		relay.framesMu.Unlock()
		relay.hello()
	}
	relay.deaf.Store(math.MaxInt32)
	again()
	eventually(t, "the Host to give up", func() bool { return copies() > 1 && len(pending()) == 0 })
	if n := copies(); n != announceTries {
		t.Errorf("announced %d times, want %d", n, announceTries)
	}

	// An answer to the second ends it, unless a busy Host reads it after the last.
	eventually(t, "an answer to count", func() bool {
		relay.deaf.Store(1)
		again()
		eventually(t, "a repetition", func() bool { return copies() >= 2 && len(pending()) == 0 })
		return copies() < announceTries
	})
}

// settled waits until the Host has announced all that it had to, and was answered.
func settled(t *testing.T, host *Host, peers ...*peer) {
	t.Helper()
	done := make(chan struct{})
	host.later(func() { close(done) })
	wait(t, "the announcements before", done)
	for _, p := range peers {
		eventually(t, "the answers", func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.announced) == 0
		})
	}
}

// provenPeer waits until the Host and a relay have proof of each other.
func provenPeer(t *testing.T, host *Host, r *stubRelay) *peer {
	t.Helper()
	var p *peer
	eventually(t, "the Host and a relay to know each other", func() bool {
		if p = host.peers.get(r.trunk.LocalAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort()); p == nil || !r.proven() {
			return false
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		_, ok := p.link.Peer()
		return ok
	})
	return p
}

// count is how often a flow was announced to a relay.
func (r *stubRelay) count(flow func(trunk.Frame) bool) (n int) {
	r.framesMu.Lock()
	defer r.framesMu.Unlock()
	for _, f := range r.announced {
		if flow(f) {
			n++
		}
	}
	return n
}

// TestFlowsOfASilentRelayAreAnnouncedElsewhere lets a relay fall silent, without a
// goodbye. The Host tells the other relays of its ingress about its flows, those alone,
// again if that is lost; and not before the relay has missed several keepalives.
func TestFlowsOfASilentRelayAreAnnouncedElsewhere(t *testing.T) {
	host, relay := setup(t, withEcho)
	other, elsewhere, draining := newStubRelay(t, relay.keys, 1), newStubRelay(t, relay.keys, 2), newStubRelay(t, relay.keys, 1)
	for _, r := range []*stubRelay{other, elsewhere, draining} {
		r.host.Store(host.Addr())
	}
	calls := func(r *stubRelay) *Session {
		host.cfg.Ingresses = []Ingress{{ID: r.id, Advertise: r.addr()}}
		c := newClient(t, nil)
		ch := c.channel()
		s := c.call(host, AcceptOptions{})
		ch.echo(t, "hello")
		eventually(t, "a proven path", func() bool { return s.Stats().Validated })
		return s
	}
	s, stays := calls(relay), calls(other)
	for _, r := range []*stubRelay{other, elsewhere, draining} {
		r.hello()
	}
	p := provenPeer(t, host, relay)
	peers := []*peer{p, provenPeer(t, host, other), provenPeer(t, host, elsewhere), provenPeer(t, host, draining)}
	draining.send(func(l *trunk.Link, peer uint64) ([]byte, bool) {
		h := l.Header(trunk.TypeGoodbye)
		return (&trunk.Goodbye{To: peer, Token: 78, Reason: trunk.ReasonDraining}).Append(nil, &h, relay.keys)
	})
	eventually(t, "the answer", func() bool { return draining.answered(78) })
	settled(t, host, peers...)
	for _, r := range []*stubRelay{other, elsewhere, draining} { // what they were told when they came
		r.linkMu.Lock() // what is being answered is in it
		r.framesMu.Lock()
		r.announced = nil
		r.framesMu.Unlock()
		r.linkMu.Unlock()
	}
	other.deaf.Store(math.MaxInt32)

	relay.close() // it is killed
	// The Host's own keepalives, which would count among these, wait.
	held, hold := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	defer release()
	host.later(func() { close(held); <-hold })
	wait(t, "the Host's keepalives to wait", held)
	now := time.Now()
	p.mu.Lock()
	p.missed, p.lastSeen = 0, now
	p.mu.Unlock()
	for range keepaliveMisses {
		p.keepalive(now)
	}
	p.mu.Lock()
	_, proven := p.link.Peer()
	p.mu.Unlock()
	if !proven || other.has(s.isFlow) {
		t.Fatal("the relay is taken for gone too early")
	}
	p.keepalive(now)
	release()
	eventually(t, "the last announcement", func() bool { return other.count(s.isFlow) == announceTries })
	if other.has(stays.isFlow) {
		t.Error("a flow was announced to the relay that it runs through")
	}
	if elsewhere.has(s.isFlow) {
		t.Error("a relay of another ingress was told")
	}
	if draining.has(s.isFlow) {
		t.Error("a relay that drains was told")
	}
}
