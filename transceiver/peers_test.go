package transceiver

import (
	"net/netip"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/trunk"
)

func (s *Session) isFlow(f trunk.Frame) bool {
	return f.Route == s.Route() && f.Client == s.ClientAddr() && f.Ingress == 1 && f.Flags&trunk.Validated != 0
}

func TestRestartedRelayHearsItsFlows(t *testing.T) {
	host, relay := setup(t, withEcho)
	c := newClient(t, nil)
	ch := c.channel()
	s := c.call(host, AcceptOptions{})
	ch.echo(t, "hello")
	eventually(t, "a proven path", func() bool { return s.Stats().Validated })
	eventually(t, "the Host to know the relay", relay.proven)
	relay.restart()
	relay.framesMu.Lock()
	relay.announced = nil
	relay.framesMu.Unlock()
	relay.hello()
	eventually(t, "the announcement", func() bool { return relay.has(s.isFlow) })
}

// A relay that restarts and says nothing is noticed by its data's new epoch.
func TestNewEpochMakesTheHostAnnounce(t *testing.T) {
	host, relay := setup(t, withEcho)
	c := newClient(t, nil)
	ch := c.channel()
	s := c.call(host, AcceptOptions{})
	ch.echo(t, "hello")
	eventually(t, "a proven path", func() bool { return s.Stats().Validated })
	eventually(t, "the Host to know the relay", relay.proven)
	relay.restart()
	eventually(t, "the announcement", func() bool {
		ch.echo(t, "hello") // data of the new epoch
		return relay.has(s.isFlow)
	})
}

func TestDrainingRelayHandsItsFlowsToTheOthers(t *testing.T) {
	host, relay := setup(t, withEcho)
	other := newStubRelay(t, relay.keys, 1)
	other.host.Store(host.Addr())
	elsewhere := newStubRelay(t, relay.keys, 2)
	elsewhere.host.Store(host.Addr())
	c := newClient(t, nil)
	ch := c.channel()
	s := c.call(host, AcceptOptions{})
	ch.echo(t, "hello")
	eventually(t, "a proven path", func() bool { return s.Stats().Validated })
	other.hello()
	elsewhere.hello()
	for _, r := range []*stubRelay{relay, other, elsewhere} {
		eventually(t, "the Host and a relay to know each other", func() bool {
			p := host.peers.get(r.trunk.LocalAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort())
			if p == nil || !r.proven() {
				return false
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			_, ok := p.link.Peer()
			return ok
		})
	}
	relay.send(func(l *trunk.Link, peer uint64) ([]byte, bool) {
		h := l.Header(trunk.TypeGoodbye)
		return (&trunk.Goodbye{To: peer, Token: 77, Reason: trunk.ReasonDraining}).Append(nil, &h, relay.keys)
	})
	eventually(t, "the answer", func() bool { return relay.answered(77) })
	eventually(t, "the announcement", func() bool { return other.has(s.isFlow) })
	if elsewhere.has(s.isFlow) {
		t.Error("a relay of another ingress was told")
	}
	ch.echo(t, "after")
}

func TestKeepalives(t *testing.T) {
	host, relay := setup(t, nil)
	relay.hello()
	eventually(t, "the Host to know the relay", relay.proven)
	addr := relay.trunk.LocalAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort()
	p := host.peers.get(addr)
	eventually(t, "the relay to be proven", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		_, ok := p.link.Peer()
		return ok
	})
	ask := func(token uint32, wrong uint64) {
		relay.send(func(l *trunk.Link, peer uint64) ([]byte, bool) {
			h := l.Header(trunk.TypeKeepalive)
			return (&trunk.Keepalive{To: peer + wrong, Token: token}).Append(nil, &h, relay.keys)
		})
	}
	ask(1, 1) // for an epoch that the Host never had
	ask(2, 0)
	eventually(t, "the answer", func() bool { return relay.answered(2) })
	if relay.answered(1) {
		t.Error("a keepalive for another epoch was answered")
	}
	// Without answers the relay's epoch is in doubt.
	relay.close()
	p.mu.Lock()
	p.lastSeen, p.missed = time.Now(), 0
	p.mu.Unlock()
	for range keepaliveMisses + 1 {
		p.keepalive(time.Now())
	}
	p.mu.Lock()
	_, proven := p.link.Peer()
	p.mu.Unlock()
	if proven {
		t.Error("a silent relay is still taken for the same process")
	}
}

func TestPeersAreBounded(t *testing.T) {
	host, _ := setup(t, nil)
	table := &host.peers
	full := map[netip.AddrPort]*peer{}
	for i := range maxPeers {
		// On loopback, and complete: the Host may come by with a keepalive.
		a := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)}), 1)
		full[a] = &peer{host: host, addr: a, lastSeen: time.Now(), keys: host.cfg.TrunkKeys, link: trunk.NewLink(host.epoch, [16]byte{1})}
	}
	table.m.Store(&full)
	a := netip.MustParseAddrPort("127.9.9.9:9")
	if table.add(a, false) != nil {
		t.Error("there is no bound")
	}
	for _, p := range full {
		p.mu.Lock()
		p.lastSeen = time.Now().Add(-2 * peerIdle)
		p.mu.Unlock()
	}
	if p := table.add(a, false); p == nil || table.get(a) != p || len(*table.m.Load()) != 1 {
		t.Error("idle ones did not make room")
	}
}
