package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/trunk"
)

// Down, hung, slow, lying: live flows lose nothing, health is good, memory bounded,
// and one line is logged.
//
// C80: a store that is slow, hangs or fails.
func TestStoreFaultsCostOnlyRecovery(t *testing.T) {
	for name, fault := range map[string]func(context.Context) error{
		"down": func(context.Context) error { return errors.New("connection refused") },
		"hung": hang,
		"slow": func(ctx context.Context) error {
			select {
			case <-time.After(time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var log syncBuffer
			store := newTestStore()
			b := newBench(t, func(c *Config) {
				c.Store, c.StoreTimeout = store, 200*time.Millisecond // a good store makes it on a busy machine
				c.Logger = slog.New(slog.NewTextHandler(&log, nil))
			})
			h := b.host(nil)
			live, lost := b.client("127.0.1.1", 0), b.client("127.0.1.2", 0)
			b.call(h, live)
			store.fail(fault)
			// Many unknown clients ask, and new flows want to be written.
			for i := range 300 {
				lost = b.client(fmt.Sprintf("127.0.2.%d", 1+i%200), 0)
				lost.send(rtp(1, 50))
				live.send(rtp(2, 60))
				h.want(live.addr())
			}
			b.until("packets accounted for", 300, func(st Stats) uint64 { return b.totalDrops() })
			b.eventually(func() error {
				b.client("127.0.3.1", 0).send(rtp(1, 50))
				if st := b.srv.Stats().Store; st.LookupBreakerOpened == 0 || st.Failed == 0 {
					return fmt.Errorf("%+v", st)
				}
				return nil
			})
			if code, _ := get(t, b.srv.Handler(), "/healthz"); code != 200 {
				t.Errorf("health %d", code)
			}
			if code, _ := get(t, b.srv.Handler(), "/readyz"); code != 200 {
				t.Errorf("ready %d", code)
			}
			if n := strings.Count(log.String(), "flow store"); n != 1 {
				t.Errorf("%d lines about the store:\n%s", n, log.String())
			}
			// It works again: the next probe finds out.
			store.fail(nil)
			v, err := flowtable.Value{Route: h.mint().route, Expires: time.Now().Add(time.Hour)}.Seal(nil, lost.key(), b.ring)
			if err != nil {
				t.Fatal(err)
			}
			store.put(lost.key(), v)
			b.eventually(func() error {
				lost.send(rtp(1, 50))
				if n := b.srv.Stats().Restored; n != 1 {
					return fmt.Errorf("%d restored; %+v", n, b.srv.Stats().Store)
				}
				return nil
			})
		})
	}
}

func TestStoreThatAnswersTooFewIsAFault(t *testing.T) {
	store := newTestStore()
	store.short = true
	b := newBench(t, withStore(store))
	b.client("127.0.1.1", 0).send(rtp(1, 50))
	b.until("failed", 1, func(st Stats) uint64 { return st.Store.Failed })
	b.drops("no flow", 1)
}

// A client is asked about once, however many packets it sends, and "nothing" is
// remembered.
func TestOneQuestionAClient(t *testing.T) {
	store := newTestStore()
	release := make(chan struct{})
	store.fail(func(ctx context.Context) error {
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	b := newBench(t, withStore(store))
	c := b.client("127.0.1.1", 0)
	for range 20 {
		c.send(rtp(1, 50))
	}
	b.until("packets", 20, func(st Stats) uint64 { return st.FromClients })
	b.eventually(func() error {
		if st := b.srv.Stats(); st.Held != maxWaitingEach || b.totalDrops() != 20-maxWaitingEach {
			return fmt.Errorf("%d wait, %d dropped", st.Held, b.totalDrops())
		}
		return nil
	})
	close(release)
	b.drops("no flow", 20)
	c.send(rtp(1, 50))
	b.drops("no flow", 21)
	if n := store.questions(c.key()); n != 1 {
		t.Errorf("%d questions", n)
	}
	if st := b.srv.Stats(); st.LookupsLimited != 1 || st.Store.Misses != 1 {
		t.Errorf("limited %d, misses %d", st.LookupsLimited, st.Store.Misses)
	}
}

// A question whose answer comes late still makes the flow; its packets are gone.
func TestLateAnswerStillCounts(t *testing.T) {
	store := newTestStore()
	b := newBench(t, withStore(store))
	h := b.host(nil)
	c := b.client("127.0.1.1", 0)
	b.call(h, c)
	// A store that keeps no deadline.
	release := make(chan struct{})
	var once sync.Once
	defer once.Do(func() { close(release) })
	store.fail(func(context.Context) error { <-release; return nil })
	b = b.restart(func(c *Config) { c.Store, c.StoreTimeout = store, 5*time.Millisecond })
	b.moved(h, c)
	c.send(rtp(1, 50))
	b.until("too long", 1, func(st Stats) uint64 { return st.HeldTooLong })
	c.send(rtp(1, 51))
	b.drops("no flow", 2)
	once.Do(func() { close(release) })
	b.until("restored", 1, func(st Stats) uint64 { return st.Restored })
	c.send(rtp(1, 52))
	if r := h.want(c.addr()); len(r.Payload) != 52 {
		t.Errorf("%d bytes", len(r.Payload))
	}
	if n := store.questions(c.key()); n != 1 {
		t.Errorf("%d questions", n)
	}
}

// C81 with real sockets: a flood that looks like media is asked about at a fixed
// rate, and a real client is still found.
func TestFloodOfUnknownSources(t *testing.T) {
	const perSecond = 100
	store := newTestStore()
	b := newBench(t, withStore(store))
	h := b.host(nil)
	c := b.client("127.0.1.1", 0)
	b.call(h, c)
	b = b.restart(func(c *Config) {
		withStore(store)(c)
		c.StoreLookups = perSecond
	})
	b.moved(h, c)
	start := time.Now()
	var sources []*client
	for i := range 400 {
		sources = append(sources, b.client(fmt.Sprintf("127.0.2.%d", 1+i%250), 0))
	}
	stop := make(chan struct{})
	var flood sync.WaitGroup
	flood.Go(func() {
		junk := rtp(7, 60)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				_, _ = sources[i%len(sources)].conn.WriteToUDPAddrPort(junk, b.ingress(0))
			}
		}
	})
	b.eventually(func() error {
		if n := b.srv.Stats().LookupsLimited; n < 20_000 {
			return fmt.Errorf("limited %d", n)
		}
		return nil
	})
	b.eventually(func() error {
		c.send(rtp(1, 50))
		if n := b.srv.Stats().Restored; n != 1 {
			return fmt.Errorf("restored %d", n)
		}
		return nil
	})
	close(stop)
	flood.Wait()
	seconds := time.Since(start).Seconds()
	store.mu.Lock()
	asked := store.asked
	store.mu.Unlock()
	if most := perSecond*seconds + 2*perSecond; float64(asked) > most {
		t.Errorf("%d questions in %.1f s, want at most %.0f", asked, seconds, most)
	}
	b.eventually(func() error {
		if st := b.srv.Stats(); st.FromClients != b.totalDrops()+st.ToUpstream {
			return fmt.Errorf("%d packets, %d dropped, %d forwarded", st.FromClients, b.totalDrops(), st.ToUpstream)
		}
		return nil
	})
}

// Close writes what is left, and does not wait for a store that hangs.
func TestCloseWritesTheRest(t *testing.T) {
	store := newTestStore()
	gate := make(chan struct{})
	store.fail(func(ctx context.Context) error {
		select {
		case <-gate:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	b := newBench(t, withStore(store))
	h := b.host(nil)
	var clients []*client
	for range 20 {
		c := b.client("127.0.1.1", 0)
		c.send(h.mint().check())
		h.reply(h.want(c.addr()), trunk.Validated, "x")
		c.want("x")
		clients = append(clients, c)
	}
	store.fail(nil) // the call that is out still hangs
	if err := b.srv.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range clients {
		if store.get(c.key()) == nil {
			t.Errorf("%v is not in the store", c.addr())
		}
	}

	store.fail(hang)
	b = newBench(t, withStore(store))
	b.moved(h)
	c := b.client("127.0.1.1", 0)
	c.send(h.mint().check())
	h.reply(h.want(c.addr()), trunk.Validated, "x")
	c.want("x")
	if err := b.srv.Close(); err != nil { // the test's timeout is the limit
		t.Fatal(err)
	}
	b.until("dropped or failed", 1, func(st Stats) uint64 { return st.Store.WriteDropped + st.Store.WriteErrors })
}
