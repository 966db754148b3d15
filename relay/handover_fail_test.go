package relay

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/trunk"
)

// dialHandover connects to b's relay as a successor would.
func (b *bench) dialHandover() *actor {
	b.t.Helper()
	c, err := net.Dial(handoverNetwork, b.srv.cfg.Handover)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return &actor{line: newLine(c.(*net.UnixConn))}
}

// actor is a process that takes over as a test wants it to.
type actor struct {
	*line
	token *os.File
}

// hello gets as far as the sockets.
func (l *actor) greetAs(t *testing.T, s *Server) {
	t.Helper()
	if err := l.sendJSON(msgHello, shapeOf(&s.cfg, s.ingresses)); err != nil {
		t.Fatal(err)
	}
	got, _, files, err := l.receive()
	if err != nil || got != msgOffer || len(files) != 1 {
		t.Fatalf("got message %d with %d descriptors (%v), want an offer with a token", got, len(files), err)
	}
	t.Cleanup(func() { closeFiles(files) })
	l.token = files[0]
	for range s.workers {
		if err := l.expect(msgSockets, new(socketList)); err != nil {
			t.Fatal(err)
		}
	}
}

// toEnd takes the whole snapshot.
func (l *line) toEnd(t *testing.T) {
	t.Helper()
	if err := l.send(msgTake, nil); err != nil {
		t.Fatal(err)
	}
	for {
		got, _, _, err := l.receive()
		if err != nil {
			t.Fatal(err)
		}
		if got == msgEnd {
			return
		}
	}
}

// TestHandoverRollsBack lets successors fail at every step. The relay must go on
// with its flows, and forward what came while it did not read.
func TestHandoverRollsBack(t *testing.T) {
	b := handoverBench(t, func(c *Config) { c.Workers = workersForTest() })
	h := b.host(nil)
	c := b.client("127.0.1.5", 0)
	c.send(h.mint().check())
	h.reply(h.want(c.addr()), trunk.Validated, "hello")
	c.want("hello")

	for _, tt := range []struct {
		name string
		fail func(t *testing.T, l *actor)
	}{
		{"leaves at once", func(*testing.T, *actor) {}},
		{"garbage", func(_ *testing.T, l *actor) { _ = l.send(messageType(0x80), []byte("\x00\xff garbage")) }},
		{"a hello that is no JSON", func(_ *testing.T, l *actor) { _ = l.send(msgHello, []byte("{")) }},
		{"an empty message", func(_ *testing.T, l *actor) { _, _ = l.conn.Write(nil) }},
		{"a large message", func(_ *testing.T, l *actor) { _ = l.send(msgHello, make([]byte, maxPiece+100)) }},
		{"another version", func(t *testing.T, l *actor) {
			sh := shapeOf(&b.srv.cfg, b.srv.ingresses)
			sh.Version = 99
			_ = l.sendJSON(msgHello, sh)
			var r refusal
			if err := l.expect(msgRefuse, &r); err != nil || r.Field != "Handover" || !strings.Contains(r.Problem, fmt.Sprintf("version %d", handoverVersion)) {
				t.Errorf("answer %+v, %v", r, err)
			}
		}},
		{"leaves with the sockets", func(t *testing.T, l *actor) { l.greetAs(t, b.srv) }},
		{"says something else than take", func(t *testing.T, l *actor) {
			l.greetAs(t, b.srv)
			_ = l.send(msgReady, nil)
		}},
		{"leaves in the snapshot", func(t *testing.T, l *actor) {
			l.greetAs(t, b.srv)
			_ = l.send(msgTake, nil)
			_, _, _, _ = l.receive()
		}},
		{"does not like the snapshot", func(t *testing.T, l *actor) {
			l.greetAs(t, b.srv)
			l.toEnd(t)
			l.abort(errors.New("no"))
		}},
		{"leaves before it is ready", func(t *testing.T, l *actor) {
			l.greetAs(t, b.srv)
			l.toEnd(t)
		}},
		{"hangs before it is ready", func(t *testing.T, l *actor) {
			l.greetAs(t, b.srv)
			l.toEnd(t)
			if err := l.expect(msgReady, nil); err == nil || !strings.Contains(err.Error(), "gave up") {
				t.Errorf("the relay said %v", err)
			}
			// It is too late now.
			if err := l.send(msgReady, nil); err == nil {
				if _, _, _, err := l.receive(); err == nil {
					t.Error("the relay listens still")
				}
			}
		}},
		{"leaves after the commit", func(t *testing.T, l *actor) {
			l.greetAs(t, b.srv)
			l.toEnd(t)
			_ = l.send(msgReady, nil)
			if err := l.expect(msgCommit, nil); err != nil {
				t.Error(err)
			}
		}},
		{"gives up after the commit", func(t *testing.T, l *actor) {
			l.greetAs(t, b.srv)
			l.toEnd(t)
			_ = l.send(msgReady, nil)
			if err := l.expect(msgCommit, nil); err != nil {
				t.Error(err)
			}
			l.abort(errors.New("no"))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := b.dialHandover()
			sent := make(chan struct{})
			go func() { // it may come while nobody reads
				defer close(sent)
				_, _ = c.conn.WriteToUDPAddrPort(rtp(1, 50), c.to)
			}()
			tt.fail(t, l)
			_ = l.conn.Close()
			<-sent
			h.want(c.addr())
			c.send(rtp(1, 60))
			h.reply(h.want(c.addr()), trunk.Validated, "still here")
			c.want("still here")
			if n := b.srv.flows(); n != 1 {
				t.Errorf("%d flows, want 1", n)
			}
			if h.goodbyes() != 0 {
				t.Error("the Host was told goodbye")
			}
		})
	}
	b.eventually(func() error {
		if b.srv.handover.busy.Load() {
			return errors.New("busy")
		}
		return nil
	})
	b.upgrade(b.successor())
	c.send(rtp(1, 70))
	h.want(c.addr())
}

// predecessor hands over what a test wants it to: the sockets are those of a real
// relay that is not served.
func predecessor(t *testing.T, talk func(t *testing.T, s *Server, l *line)) (Config, chan error) {
	t.Helper()
	needHandover(t)
	cfg := config4(keyring(t, "a"))
	cfg.Handover = filepath.Join(t.TempDir(), "relay.sock")
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	done := make(chan error, 1)
	go func() {
		conn, err := s.handover.listener.AcceptUnix()
		if err != nil {
			done <- err
			return
		}
		defer func() { _ = conn.Close() }()
		l := newLine(conn)
		token, err := newToken()
		if err != nil {
			done <- err
			return
		}
		defer func() { _ = token.Close() }()
		if err := s.handover.offer(l, token); err != nil {
			done <- err
			return
		}
		if err := l.expect(msgTake, nil); err != nil {
			done <- err
			return
		}
		talk(t, s, l)
		_, _, _, err = l.receive()
		done <- err
	}()
	cfg.Ingresses = s.Ingresses()
	return cfg, done
}

// TestBadSnapshotsAreRefused hands over nonsense. The successor must say so and
// leave the sockets and the Hosts alone.
func TestBadSnapshotsAreRefused(t *testing.T) {
	flow := flowtable.Flow{
		Key:      flowtable.Key{Client: netip.MustParseAddrPort("192.0.2.1:5000"), Ingress: 7},
		Upstream: netip.MustParseAddrPort("127.0.0.1:9"), State: flowtable.Confirmed,
	}
	record := flow.AppendRecord([]byte{0, 0})
	twice := flow.AppendRecord(record[:len(record):len(record)])
	bad := append([]byte(nil), record...)
	bad[2+68] = 9
	link := func(epoch uint64) []byte {
		p := &peer{peerKey: peerKey{addr: netip.MustParseAddrPort("127.0.0.1:9")}, link: trunk.NewLink(epoch, [16]byte{})}
		return p.appendRecord([]byte{0, 0}, time.Now())
	}
	packet := (&waiter{data: []byte("x")}).appendRecord([]byte{0, 0}, flowtable.Key{Client: flow.Key.Client, Ingress: 8})
	for _, tt := range []struct {
		name string
		kind messageType
		body []byte
	}{
		{"an unknown kind", 99, nil},
		{"no worker", msgFlows, []byte{0}},
		{"a worker that does not exist", msgFlows, append([]byte{0, 1}, record[2:]...)},
		{"half a flow", msgFlows, record[:50]},
		{"a flow that is none", msgFlows, bad},
		{"a flow twice", msgFlows, twice},
		{"half a peer", msgPeers, link(0)[:20]},
		{"a peer of another epoch", msgPeers, link(1)},
		{"a packet to no ingress", msgPackets, packet},
		{"half a packet", msgPackets, packet[:len(packet)-1]},
		{"wrong counts", msgEnd, []byte(`{"flows":1}`)},
		{"an end that is no JSON", msgEnd, []byte(`{`)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg, done := predecessor(t, func(t *testing.T, s *Server, l *line) {
				if err := l.send(tt.kind, tt.body); err != nil {
					t.Error(err)
				}
			})
			heir, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if err := heir.Serve(); err == nil || errors.Is(err, ErrServerClosed) || !strings.Contains(err.Error(), "hand-over failed") {
				t.Errorf("Serve: %v", err)
			}
			var aborted *abortedError
			if err := <-done; !errors.As(err, &aborted) {
				t.Errorf("the predecessor was told %v", err)
			}
			if err := heir.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPredecessorDies kills running relays at every step before they let go. Their
// sockets are the successor's, and nobody else reads them: it serves, with the flows
// that have come, and a new epoch, so that Hosts tell it the others.
func TestPredecessorDies(t *testing.T) {
	for _, tt := range []struct {
		name string
		die  func(l *line, flows []byte)
		flow bool // the successor knows the flow
	}{
		{"before anything", func(*line, []byte) {}, false},
		{"in the snapshot", func(l *line, flows []byte) { _ = l.send(msgFlows, flows) }, true},
		{"before the commit", func(l *line, flows []byte) {
			_ = l.send(msgFlows, flows)
			_ = l.sendJSON(msgEnd, totals{Flows: 1})
			_ = l.expect(msgReady, nil)
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := &bench{t: t, ring: keyring(t, "a"), done: make(chan error, 1)}
			h := b.host(nil)
			var flows []byte
			ready := make(chan struct{})
			cfg, done := predecessor(t, func(_ *testing.T, _ *Server, l *line) {
				<-ready
				tt.die(l, flows)
				_ = l.conn.Close()
			})
			heir, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			b.srv = heir
			before := heir.epoch
			c := b.client("127.0.1.5", 0)
			id := h.mint()
			flow := flowtable.Flow{
				Key: flowtable.Key{Client: c.addr(), Ingress: 7}, Route: id.route, Upstream: h.addr(),
				State: flowtable.Unconfirmed, LastUpstream: flowtable.Tick(time.Since(heir.start).Milliseconds()),
			}
			flows = flow.AppendRecord([]byte{0, 0})
			close(ready)
			go func() { b.done <- heir.Serve() }()
			defer func() {
				if err := heir.Close(); err != nil {
					t.Error(err)
				}
				if err := <-b.done; !errors.Is(err, ErrServerClosed) {
					t.Errorf("Serve: %v", err)
				}
			}()
			<-done
			b.eventually(func() error {
				if !heir.healthy() {
					return errors.New("the successor does not serve")
				}
				return nil
			})
			if !tt.flow {
				c.send(id.check())
				h.want(c.addr())
			}
			c.send(rtp(1, 50))
			h.want(c.addr())
			if heir.epoch == before {
				t.Error("the epoch is the dead relay's: Hosts would take new datagrams for replays")
			}
			if _, err := os.Lstat(cfg.Handover); err != nil || !heir.handover.mine() {
				t.Errorf("the path does not lead to the relay that serves (%v)", err)
			}
			b.alive()
		})
	}
}

// TestPredecessorGoesOn ends the conversation when the running relay has taken the
// token: it serves, so the successor must not.
func TestPredecessorGoesOn(t *testing.T) {
	var heir *Server
	ready := make(chan struct{})
	cfg, done := predecessor(t, func(_ *testing.T, _ *Server, l *line) {
		<-ready
		if !takeToken(heir.heir.token) {
			t.Error("the token is gone")
		}
		_ = l.conn.Close()
	})
	heir, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	close(ready)
	if err := heir.Serve(); !gone(err) {
		t.Errorf("Serve: %v", err)
	}
	<-done
}

// TestClosedRelayLeavesItsClients closes a running relay when a successor has its
// sockets and nothing else. The successor serves.
func TestClosedRelayLeavesItsClients(t *testing.T) {
	b := handoverBench(t, nil)
	heir, err := New(b.successor())
	if err != nil {
		t.Fatal(err)
	}
	if err := b.srv.Close(); err != nil {
		t.Error(err)
	}
	if err := <-b.done; errors.Is(err, ErrHandedOver) || !errors.Is(err, ErrServerClosed) {
		t.Errorf("Serve: %v", err)
	}
	b.srv = heir
	done := b.done
	go func() { done <- heir.Serve() }()
	t.Cleanup(func() {
		if err := heir.Close(); err != nil {
			t.Error(err)
		}
	})
	b.alive()
	b.upgrade(b.successor())
	b.alive()
}

// TestCloseEndsHandover closes both sides in the middle of it.
func TestCloseEndsHandover(t *testing.T) {
	stuck := make(chan struct{})
	cfg, done := predecessor(t, func(*testing.T, *Server, *line) { close(stuck) })
	heir, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- heir.Serve() }()
	<-stuck
	if err := heir.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err == nil {
		t.Error("Serve returned nil")
	}
	<-done

	b := handoverBench(t, nil)
	l := b.dialHandover()
	l.greetAs(t, b.srv)
	l.toEnd(t)
	if err := b.srv.Close(); err != nil { // nothing is committed: an ordinary end
		t.Error(err)
	}
}

// TestDrainingRelayIsNotTakenOver checks the two moments at which a drain may begin.
func TestDrainingRelayIsNotTakenOver(t *testing.T) {
	b := handoverBench(t, nil)
	heir, err := New(b.successor())
	if err != nil {
		t.Fatal(err)
	}
	b.srv.draining.Store(true)
	if err := heir.Serve(); err == nil || !strings.Contains(err.Error(), "drains") {
		t.Errorf("Serve: %v", err)
	}
	b.eventually(func() error {
		if b.srv.handover.busy.Load() {
			return errors.New("busy")
		}
		return nil
	})
	if _, err := New(b.successor()); err == nil || !strings.Contains(err.Error(), "drains") {
		t.Errorf("New: %v", err)
	}
}

// TestHandoverToAnotherConfiguration checks what may change: flows that are not
// allowed any more stay behind, and too small a table fails before anything is lost.
func TestHandoverToAnotherConfiguration(t *testing.T) {
	b := handoverBench(t, func(c *Config) { c.IdleTimeout, c.UnconfirmedTimeout = time.Hour, time.Hour })
	fill(t, b.srv, 1000)
	cfg := b.successor()
	cfg.MaxFlows = 100
	heir, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var ce *ConfigError
	if err := heir.Serve(); !errors.As(err, &ce) || ce.Field != "MaxFlows" {
		t.Errorf("Serve: %v, want an error about MaxFlows", err)
	}
	b.alive()
	if n := b.srv.flows(); n < 1000 {
		t.Errorf("%d flows are left of 1000", n)
	}
	forbidden := flowtable.Flow{
		Key:      flowtable.Key{Client: netip.MustParseAddrPort("192.0.2.1:5000"), Ingress: 7},
		Upstream: netip.MustParseAddrPort("127.0.0.9:9"), State: flowtable.Confirmed,
	}
	shard := b.srv.shards[0]
	shard.Lock()
	shard.Insert(&forbidden)
	shard.Unlock()
	cfg = b.successor()
	cfg.AllowUpstream = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	cfg.MaxFlows, cfg.MaxBatchDelay = 1<<11, time.Millisecond
	b.upgrade(cfg)
	all := flowMap(b.srv)
	if _, ok := all[forbidden.Key]; ok || len(all) < 1000 {
		t.Errorf("%d flows, among them one that is not allowed: %v", len(all), ok)
	}
	b.alive()
}

// TestWaitingPacketsAreHandedOver hands over while a packet waits for the flow
// store. It reaches its Host by way of the successor.
func TestWaitingPacketsAreHandedOver(t *testing.T) {
	silent, full := newTestStore(), newTestStore()
	silent.fail(hang)
	b := handoverBench(t, withStore(silent))
	h := b.host(nil)
	c := b.client("127.0.1.6", 0)
	value, err := flowtable.Value{Route: h.mint().route, Expires: time.Now().Add(time.Hour)}.Seal(nil, c.key(), b.ring)
	if err != nil {
		t.Fatal(err)
	}
	full.put(c.key(), value)
	c.send(rtp(1, 90))
	b.until("held", 1, func(st Stats) uint64 { return st.Held })
	cfg := b.successor()
	cfg.Store = full
	b.upgrade(cfg)
	if got := h.want(c.addr()); len(got.Payload) != 90 {
		t.Errorf("got %d bytes, want the 90 that waited", len(got.Payload))
	}
	b.until("restored", 1, func(st Stats) uint64 { return st.Restored })
}

// TestPauseIsNotTheHostsSilence checks that a Host does not count as gone because
// its answers were not read for a while.
func TestPauseIsNotTheHostsSilence(t *testing.T) {
	b := newBench(t, nil)
	h := b.host(nil)
	c := b.client("127.0.1.5", 0)
	c.send(h.mint().check())
	h.reply(h.want(c.addr()), trunk.Validated, "hello")
	c.want("hello")
	p := &pause{parked: make(chan struct{}, 1), resume: make(chan struct{})}
	b.srv.pausing.Store(p)
	b.srv.workers[0].group.Wake()
	<-p.parked
	for _, peer := range b.srv.workers[0].peers {
		peer.unanswered = time.Now().Add(-time.Hour)
	}
	b.srv.pausing.Store(nil)
	close(p.resume)
	c.send(rtp(1, 60))
	h.want(c.addr())
}

// TestForbiddenPeersAreLeftBehind hands over Hosts and relays that the successor's
// configuration does not allow: it must not greet them, nor say goodbye.
func TestForbiddenPeersAreLeftBehind(t *testing.T) {
	cfg := config4(keyring(t, "a"))
	cfg.AllowUpstream = prefix("10.1.0.0/16")
	cfg.AllowEdges, cfg.EdgeKeys = prefix("10.2.0.0/16"), keyring(t, "e")
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	in := &snapshotReader{srv: s, now: time.Now()}
	for _, k := range []peerKey{
		{netip.MustParseAddrPort("10.1.0.1:9"), false},
		{netip.MustParseAddrPort("10.2.0.1:9"), true},
		{netip.MustParseAddrPort("10.3.0.1:9"), false},
		{netip.MustParseAddrPort("10.2.0.2:9"), false},
		{netip.MustParseAddrPort("10.1.0.2:9"), true},
	} {
		p := &peer{peerKey: k, link: trunk.NewLink(s.epoch, [16]byte{})}
		if err := in.take(msgPeers, p.appendRecord([]byte{0, 0}, in.now)); err != nil {
			t.Fatal(err)
		}
	}
	if in.sum.Peers != 5 {
		t.Errorf("%d peers were counted, want 5", in.sum.Peers)
	}
	for k := range s.workers[0].peers {
		if k.addr.Addr() != netip.MustParseAddr("10.1.0.1") && k.addr.Addr() != netip.MustParseAddr("10.2.0.1") {
			t.Errorf("%v is a peer still", k)
		}
	}
	if n := len(s.workers[0].peers); n != 2 {
		t.Errorf("%d peers, want 2", n)
	}
}
