package transceiver

import (
	"net/netip"
	"testing"

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
	relay.deaf.Store(true)
	again()
	eventually(t, "the Host to give up", func() bool { return copies() > 1 && len(pending()) == 0 })
	if n := copies(); n != announceTries {
		t.Errorf("announced %d times, want %d", n, announceTries)
	}

	again()
	eventually(t, "a repetition", func() bool { return copies() == 2 })
	for _, token := range pending() {
		relay.send(func(l *trunk.Link, peer uint64) ([]byte, bool) {
			h := l.Header(trunk.TypeAnnounce)
			out, _, ok := (&trunk.Announce{To: peer, Token: token, Reply: true}).Append(nil, &h, relay.keys, 0)
			return out, ok
		})
	}
	eventually(t, "the answer to count", func() bool { return len(pending()) == 0 })
	if n := copies(); n == announceTries {
		t.Errorf("announced %d times in spite of an answer", n)
	}
}
