package transceiver

import (
	"context"
	"errors"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/race"
	"github.com/usher-rtc/usher/internal/stun"
)

// Sessions that end in every way there is, 50 at a time, leave nothing behind:
// no goroutine, no descriptor, no entry in a table, no memory. C110.
func TestChurnLeavesNothingBehind(t *testing.T) {
	total, atOnce := 300, 50
	switch {
	case race.Enabled:
		total, atOnce = 60, 10 // or the clients' own timers run out
	case os.Getenv("USHER_E2E") == "all":
		total = 10_000
	}
	host, relay := setup(t, func(c *Config) {
		c.OnSession = echoSession
		c.ConnectTimeout = 8 * time.Second
		c.DTLSTimeout = 3 * time.Second
	})
	// Sessions that have to connect get the time that a busy machine takes.
	calm, calmRelay := setup(t, func(c *Config) {
		c.OnSession = echoSession
		c.ConsentTimeout = 8 * time.Second // the Host's own checks, 5 s apart, renew it
	})
	ended := func(r Reason) int { return int(host.Stats().Ended[r] + calm.Stats().Ended[r]) }
	refuse := errors.New("no")
	connected := func(end func(c *client, s *Session)) func(testing.TB) {
		return func(t testing.TB) {
			c := newClient(t, nil)
			ch := c.channel()
			s := c.call(calm, AcceptOptions{})
			wait(t, "the data channel", ch.open) // now the client's DTLS is up too, and says when it closes
			end(c, s)
			wait(t, "the end", s.Done())
			_ = c.pc.GracefulClose()
		}
	}
	ways := []struct {
		name   string
		reason Reason
		run    func(testing.TB)
	}{
		{"before the answer", ReasonRejected, func(t testing.TB) {
			_, _, err := host.Accept(context.Background(), browserOffer(), AcceptOptions{Prepare: func(*Session) error { return refuse }})
			if !errors.Is(err, refuse) {
				t.Errorf("got %v", err)
			}
		}},
		{"during ICE", ReasonNeverConnected, func(t testing.TB) {
			s, _, err := host.Accept(context.Background(), browserOffer(), AcceptOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			wait(t, "the end", s.Done())
		}},
		{"during DTLS", ReasonDTLSTimeout, func(t testing.TB) {
			c := newRawClient(t, host, relay)
			c.keepChecking()
			_ = c.conn.Close()
		}},
		{"by the client", ReasonClientClosed, connected(func(c *client, _ *Session) { _ = c.pc.Close() })},
		{"by the server", ReasonServer, connected(func(_ *client, s *Session) { _ = s.Close() })},
		{"by silence", ReasonConsentLost, connected(func(c *client, _ *Session) { c.pc.SCTP().Transport().ICETransport().Stop() })},
	}
	run := func(n int) {
		places := make(chan struct{}, atOnce)
		var all sync.WaitGroup
		for i := range n {
			places <- struct{}{}
			all.Go(func() {
				defer func() { <-places }()
				one := &scope{TB: t}
				defer one.end()
				ways[i%len(ways)].run(one)
			})
		}
		all.Wait()
	}
	run(2 * atOnce) // pools, certificate, tables at their size
	before := census(t)
	endedBefore := make(map[Reason]int)
	for _, w := range ways {
		endedBefore[w.reason] = ended(w.reason)
	}
	run(total)
	for _, r := range []*stubRelay{relay, calmRelay} {
		r.framesMu.Lock()
		r.frames = nil // the stub's own record
		r.framesMu.Unlock()
	}
	var after population
	eventually(t, "goroutines and descriptors to be back", func() bool {
		after = census(t)
		return after.goroutines <= before.goroutines && after.descriptors <= before.descriptors
	})
	t.Logf("%d sessions: %+v, then %+v", total, before, after)
	if after.heap > before.heap+before.heap/10+1<<20 {
		t.Errorf("heap of %d bytes, %d before", after.heap, before.heap)
	}
	for _, h := range []*Host{host, calm} {
		ufrags, numbers := h.sessions.len()
		if n := h.paths.len(); ufrags+numbers+n+h.minter.Live()+len(h.Sessions()) != 0 {
			t.Errorf("left behind: %d ufrags, %d numbers, %d paths, %d minted", ufrags, numbers, n, h.minter.Live())
		}
	}
	all := 0
	for _, w := range ways {
		n := ended(w.reason) - endedBefore[w.reason]
		all += n
		// A datagram that says goodbye can be lost: then it is silence.
		if n < total/len(ways)*8/10 {
			t.Errorf("%d sessions ended %s, want %d", n, w.name, total/len(ways))
		}
	}
	if all != total {
		t.Errorf("%d sessions ended, of %d", all, total)
	}
}

// scope is a part of a test that lets go of its clients before the test does.
type scope struct {
	testing.TB
	cleanups []func()
}

// Cleanup implements testing.TB.
func (s *scope) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }

func (s *scope) end() {
	for _, f := range slices.Backward(s.cleanups) {
		f()
	}
}

// population is what a leak would add to.
type population struct {
	goroutines, descriptors int
	heap                    uint64
}

func census(t *testing.T) (p population) {
	t.Helper()
	runtime.GC()
	runtime.GC() // what finalizers and pools held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	p.heap, p.goroutines = m.HeapAlloc, runtime.NumGoroutine()
	if entries, err := os.ReadDir("/proc/self/fd"); err == nil { // nowhere but on Linux
		p.descriptors = len(entries)
	}
	return p
}

// keepChecking sends checks until the session has ended.
func (c *rawClient) keepChecking() {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for n := byte(2); ; n++ {
		select {
		case <-c.s.Done():
			return
		case <-tick.C:
			c.send(c.check(stun.TransactionID{n}))
		case <-time.After(patience):
			c.t.Error("the session does not end")
			return
		}
	}
}
