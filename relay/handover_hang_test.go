package relay

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/trunk"
)

// logBook is a log that a test waits for lines in.
type logBook struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBook) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.buf.String(), text)
}

// TestSuccessorHangsAfterTheCommit stops a successor where it has everything and has
// said nothing. Whatever it does in the end, one of the two serves within handoverLast,
// never both, and what came is not lost.
func TestSuccessorHangsAfterTheCommit(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(t *testing.T, l *actor)
		back bool // the running relay goes on
	}{
		{"and dies", func(_ *testing.T, l *actor) { _ = l.conn.Close() }, true},
		{"and gives up", func(_ *testing.T, l *actor) { l.abort(errors.New("no")) }, true},
		{"and dies with the token", func(t *testing.T, l *actor) {
			l.takes(t)
			_ = l.conn.Close()
		}, true},
		{"and stays so", func(t *testing.T, l *actor) {
			if err := l.expect(msgServing, nil); err == nil || !strings.Contains(err.Error(), "took too long") {
				t.Errorf("the running relay said %v", err)
			}
			if takeToken(l.token) {
				t.Error("the successor may serve although the running relay does")
			}
		}, true},
		{"and serves", func(t *testing.T, l *actor) {
			l.takes(t)
			if err := l.send(msgServing, nil); err != nil {
				t.Error(err)
			}
		}, false},
		{"and hangs again before its word", func(t *testing.T, l *actor) { l.takes(t) }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := handoverBench(t, nil)
			h := b.host(nil)
			c := b.client("127.0.1.5", 0)
			c.send(h.mint().check())
			h.reply(h.want(c.addr()), trunk.Validated, "hello")
			c.want("hello")

			l := b.dialHandover()
			l.greetAs(t, b.srv)
			l.toEnd(t)
			if err := l.send(msgReady, nil); err != nil {
				t.Fatal(err)
			}
			if err := l.expect(msgCommit, nil); err != nil {
				t.Fatal(err)
			}
			c.send(rtp(1, 60))
			h.nothing() // the successor may begin at any time
			tt.end(t, l)
			if tt.back {
				h.want(c.addr())
				h.reply(received{Frame: trunk.Frame{Ingress: 7, Client: c.addr()}, from: b.trunk()}, trunk.Validated, "still here")
				c.want("still here")
				if n := b.srv.flows(); n != 1 {
					t.Errorf("%d flows, want 1", n)
				}
				b.upgrade(b.successor())
				b.alive()
				return
			}
			select {
			case err := <-b.done:
				if !errors.Is(err, ErrHandedOver) {
					t.Errorf("Serve returned %v", err)
				}
				b.done <- err
			case <-time.After(patience):
				t.Fatal("Serve does not return")
			}
			h.nothing() // it is the successor's to read
			if h.goodbyes() != 0 {
				t.Error("the Host was told goodbye")
			}
		})
	}
}

func (l *actor) takes(t *testing.T) {
	t.Helper()
	if !takeToken(l.token) {
		t.Error("the token is gone")
	}
}

// TestSuccessorWakesUpTooLate stops a real successor after the commit until the
// running relay has gone on, and then lets it run. It must leave sockets, path and
// Hosts alone.
func TestSuccessorWakesUpTooLate(t *testing.T) {
	book := new(logBook)
	b := handoverBench(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(book, nil)) })
	cfg := b.successor()
	cfg.Logger = slog.New(slog.DiscardHandler)
	heir, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := heir.heir.receive(&snapshotReader{srv: heir, now: time.Now()}); err != nil {
		t.Fatal(err)
	}
	b.eventually(func() error {
		if !book.has("hand-over failed at its end") {
			return errors.New("the running relay does not go on")
		}
		return nil
	})
	if err := heir.heir.begin(heir); !errors.Is(err, errTooLate) {
		t.Errorf("the successor begins: %v", err)
	}
	if err := heir.Close(); err != nil {
		t.Error(err)
	}
	b.alive()
	b.upgrade(b.successor())
	b.alive()
}

// TestPathLeadsBackAfterAFailedSuccessor lets a real successor die when it has put
// its own socket at the path. The next one has to find the running relay: one that
// finds nobody opens sockets of its own beside it.
func TestPathLeadsBackAfterAFailedSuccessor(t *testing.T) {
	b := handoverBench(t, func(c *Config) { c.Workers = workersForTest() })
	path := b.srv.cfg.Handover
	for range 2 {
		heir, err := New(b.successor())
		if err != nil {
			t.Fatal(err)
		}
		// As far as the rename, and no word that it serves.
		if err := heir.heir.receive(&snapshotReader{srv: heir, now: time.Now()}); err != nil {
			t.Fatal(err)
		}
		if !takeToken(heir.heir.token) {
			t.Error("the token is gone")
		}
		if err := heir.handover.publish(); err != nil {
			t.Fatal(err)
		}
		heir.heir.close()
		// A dead process removes nothing.
		heir.handover.path = "/nonexistent"
		_ = heir.handover.listener.Close()
		if err := heir.Close(); err != nil {
			t.Error(err)
		}
		b.eventually(func() error {
			info, err := os.Lstat(path)
			if err != nil {
				return err
			}
			b.srv.handover.mu.Lock()
			defer b.srv.handover.mu.Unlock()
			if b.srv.handover.busy.Load() || !os.SameFile(info, b.srv.handover.info) {
				return errors.New("the path does not lead to the running relay")
			}
			return nil
		})
		b.alive()
	}
	b.upgrade(b.successor())
	b.alive()
}

// TestSuccessorIsClosedAtAnyTime closes successors while they take over. Either the
// running relay goes on, or it has let go and the successor tells the Hosts goodbye:
// never both, never neither.
func TestSuccessorIsClosedAtAnyTime(t *testing.T) {
	var went, stayed int
	for i := range 40 {
		b := handoverBench(t, nil)
		heir, err := New(b.successor())
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- heir.Serve() }()
		time.Sleep(time.Duration(i) * 25 * time.Microsecond)
		if err := heir.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err == nil || errors.Is(err, ErrHandedOver) {
			t.Fatalf("the successor's Serve returned %v", err)
		}
		if heir.owner.Load() {
			went++
			select {
			case err := <-b.done:
				if !errors.Is(err, ErrHandedOver) {
					t.Errorf("Serve returned %v", err)
				}
				b.done <- err
			case <-time.After(patience):
				t.Fatal("the successor had the sockets, and the running relay does not end")
			}
			continue
		}
		stayed++
		b.eventually(func() error {
			if b.srv.handover.busy.Load() || !b.srv.healthy() {
				return fmt.Errorf("the running relay does not go on")
			}
			return nil
		})
		b.alive()
		if err := b.srv.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d took over and were closed, %d did not get to", went, stayed)
}

// TestNobodyTakesOverTwice checks that a relay that has handed over and has not yet
// ended offers its sockets to nobody.
func TestNobodyTakesOverTwice(t *testing.T) {
	b := handoverBench(t, nil)
	b.srv.owner.Store(false)
	defer b.srv.owner.Store(true)
	if _, err := New(b.successor()); err == nil || !strings.Contains(err.Error(), "handed over already") {
		t.Errorf("New: %v", err)
	}
}

// TestSuccessorIsTooSlow takes a snapshot piece by piece, each within the time for a
// step. All of it together has a bound too: nobody reads meanwhile.
func TestSuccessorIsTooSlow(t *testing.T) {
	b := handoverBenchWith(t, func(c *Config) { c.MaxFlows = 1 << 18; c.IdleTimeout = time.Hour }, func(s *Server) {
		s.handover.most = 200 * time.Millisecond
	})
	fill(t, b.srv, 1<<16)
	l := b.dialHandover()
	l.greetAs(t, b.srv)
	if err := l.send(msgTake, nil); err != nil {
		t.Fatal(err)
	}
	var err error
	for range 1000 {
		var got messageType
		if got, _, _, err = l.receive(); err != nil || got == msgEnd {
			break
		}
		time.Sleep(10 * time.Millisecond) // the wait is the fault
	}
	var aborted *abortedError
	if !errors.As(err, &aborted) {
		t.Errorf("the running relay said %v, want that it gives up", err)
	}
	b.alive()
}

// TestDrainBeginsInTheMiddle drains a relay when its successor has everything but the
// word to go on. Hosts and the balancer are told that this relay goes; it must not live
// on in another process.
func TestDrainBeginsInTheMiddle(t *testing.T) {
	b := handoverBench(t, nil)
	l := b.dialHandover()
	l.greetAs(t, b.srv)
	l.toEnd(t)
	b.srv.draining.Store(true)
	if err := l.send(msgReady, nil); err != nil {
		t.Fatal(err)
	}
	if err := l.expect(msgCommit, nil); err == nil || !strings.Contains(err.Error(), "drains") {
		t.Errorf("the running relay said %v, want that it drains", err)
	}
	b.alive()
}
