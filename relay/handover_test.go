package relay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/race"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/ufrag"
)

func needHandover(t *testing.T) {
	t.Helper()
	if !handoverSupported {
		t.Skip("a relay can be handed over on Linux only")
	}
}

// handoverBench is newBench with a path for successors.
func handoverBench(t *testing.T, change func(*Config)) *bench {
	t.Helper()
	return handoverBenchWith(t, change, func(*Server) {})
}

// handoverBenchWith is newBenchWith with a path for successors.
func handoverBenchWith(t *testing.T, change func(*Config), before func(*Server)) *bench {
	t.Helper()
	needHandover(t)
	path := filepath.Join(t.TempDir(), "relay.sock")
	return newBenchWith(t, func(c *Config) {
		c.Handover = path
		if change != nil {
			change(c)
		}
	}, before)
}

// successor is the configuration of a relay that fits b's.
func (b *bench) successor() Config {
	cfg := b.srv.cfg
	cfg.Ingresses = b.srv.Ingresses()
	for i := range cfg.Ingresses {
		cfg.Ingresses[i].Advertise = netip.AddrPort{}
	}
	return cfg
}

// upgrade replaces b's relay by a successor, and waits until the old one is gone.
func (b *bench) upgrade(cfg Config) {
	b.t.Helper()
	b.eventually(func() error { // the relay forwards a moment before it takes another successor
		if b.srv.handover.busy.Load() {
			return errors.New("a hand-over is under way")
		}
		return nil
	})
	next, err := New(cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- next.Serve() }()
	old := b.done
	b.done = done
	b.t.Cleanup(func() {
		if err := next.Close(); err != nil {
			b.t.Error(err)
		}
		done <- <-done // newBench's cleanup looks at the last one's
	})
	select {
	case err := <-old:
		if !errors.Is(err, ErrHandedOver) || !errors.Is(err, ErrServerClosed) || !errors.Is(err, net.ErrClosed) {
			b.t.Fatalf("Serve returned %v", err)
		}
		old <- err
	case err := <-done:
		done <- err // for the cleanup
		b.t.Fatalf("the successor ended: %v", err)
	case <-time.After(patience):
		b.t.Fatal("the relay does not end")
	}
	b.srv = next
	b.eventually(func() error {
		if !next.healthy() {
			return errors.New("the successor does not serve")
		}
		return nil
	})
}

// caller is a client of TestHandoverLosesNothing.
type caller struct {
	conn     *net.UDPConn
	sent     atomic.Uint32
	mu       sync.Mutex
	answered map[uint32]bool
}

func (c *caller) read() {
	buf := make([]byte, 2048)
	for {
		n, _, err := c.conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		if n == 100 {
			c.mu.Lock()
			c.answered[binary.BigEndian.Uint32(buf[12:])] = true
			c.mu.Unlock()
		}
	}
}

func (c *caller) lost() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int(c.sent.Load()) - len(c.answered)
}

// TestHandoverLosesNothing upgrades a relay ten times in a row under traffic of 200
// flows in both directions: nothing is lost, no flow moves to another worker, and
// the Host has nothing to learn anew.
func TestHandoverLosesNothing(t *testing.T) {
	const flows, upgrades = 200, 10
	b := handoverBench(t, func(c *Config) { c.Workers = workersForTest() })
	var mu sync.Mutex
	workers := make(map[netip.AddrPort]netip.AddrPort) // by client: the worker's trunk address
	moved := 0
	h := b.host(func(h *host, r received) {
		mu.Lock()
		if w, ok := workers[r.Client]; ok && w != r.from {
			moved++
		}
		workers[r.Client] = r.from
		mu.Unlock()
		h.reply(r, trunk.Validated, string(r.Payload), 0xabc)
	})
	stop := make(chan struct{})
	end := sync.OnceFunc(func() { close(stop) })
	defer end()
	var work sync.WaitGroup
	work.Go(func() {
		for {
			select {
			case <-h.got: // so that its record does not fill up
			case <-stop:
				return
			}
		}
	})
	id := h.mint()
	var callers []*caller
	for i := range flows {
		conn := b.client(fmt.Sprintf("127.0.1.%d", 1+i%100), 0)
		conn.send(id.check())
		c := &caller{conn: conn.conn, answered: make(map[uint32]bool)}
		callers = append(callers, c)
		work.Go(c.read)
	}
	b.eventually(func() error {
		if st := b.srv.Stats(); st.Flows != flows || st.Unconfirmed != 0 {
			return fmt.Errorf("%d flows, %d unconfirmed", st.Flows, st.Unconfirmed)
		}
		return nil
	})
	before := b.srv.epoch
	to := b.ingress(0)
	for i, c := range callers {
		work.Go(func() {
			tick := time.NewTicker(40 * time.Millisecond)
			defer tick.Stop()
			p := rtp(uint32(i), 100)
			for {
				select {
				case <-stop:
					return
				case <-tick.C:
				}
				if c.lost() >= 2 {
					continue // what a busy machine does not read in time must fit the sockets' buffers
				}
				binary.BigEndian.PutUint32(p[12:], c.sent.Load())
				if _, err := c.conn.WriteToUDPAddrPort(p, to); err != nil {
					t.Error(err)
					return
				}
				c.sent.Add(1)
			}
		})
	}
	sent := func() (n int) {
		for _, c := range callers {
			n += int(c.sent.Load())
		}
		return n
	}
	// Traffic runs before the first upgrade, between them and after the last.
	run := func() {
		target := sent() + flows
		b.eventually(func() error {
			if n := sent(); n < target {
				return fmt.Errorf("the traffic has stopped at %d packets", n)
			}
			return nil
		})
	}
	run()
	for range upgrades {
		old := b.srv
		b.upgrade(b.successor())
		t.Logf("not read for %v", old.handover.took)
		b.eventually(func() error {
			if st := b.srv.Stats(); st.Inherited != flows || st.Created+st.Learned > 0 {
				return fmt.Errorf("%d flows inherited, %d created, %d learned; want all %d inherited", st.Inherited, st.Created, st.Learned, flows)
			}
			return nil
		})
		run()
	}
	end()
	deadline := time.Now().Add(patience)
	lost := 1
	for lost > 0 && time.Now().Before(deadline) {
		lost = 0
		for _, c := range callers {
			lost += c.lost()
		}
		time.Sleep(time.Millisecond)
	}
	for _, c := range callers {
		_ = c.conn.Close()
	}
	work.Wait()
	t.Logf("sent %d, lost %d in %d upgrades", sent(), lost, upgrades)
	if lost != 0 {
		t.Errorf("%d of %d packets did not come back; drops: %v", lost, sent(), b.allDrops())
	}
	mu.Lock()
	defer mu.Unlock()
	if moved > 0 {
		t.Errorf("%d packets came by another worker than the one before", moved)
	}
	if b.srv.epoch != before {
		t.Error("the epoch is another one")
	}
	if h.goodbyes() != 0 {
		t.Error("the Host was told goodbye")
	}
}

func (h *host) goodbyes() trunk.Reason {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.goodbye
}

// fill puts n flows of a Host into the shards.
func fill(t *testing.T, s *Server, n int) {
	t.Helper()
	now := flowtable.Tick(time.Since(s.start) / time.Millisecond)
	for i := range n {
		f := flowtable.Flow{
			Key:      flowtable.Key{Client: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 5000), Ingress: 7},
			Upstream: netip.MustParseAddrPort("127.0.0.1:9"),
			Route:    ufrag.Route{Kind: ufrag.KindIPv4, Host: 0x7f0000010009, Session: uint32(i)},
			State:    flowtable.Confirmed, LastUpstream: now, Since: now,
			NumSSRCs: 2, SSRCs: [4]uint32{uint32(i), 1},
		}
		if i%100 == 0 {
			f.State, f.NumSSRCs, f.SSRCs = flowtable.Unconfirmed, 0, [4]uint32{}
			f.LastUpstream = now + flowtable.Tick(i%3) // not in the order of the table
		}
		shard := s.shards[i%len(s.shards)]
		shard.Lock()
		_, ok := shard.Insert(&f)
		shard.Unlock()
		if !ok {
			t.Fatal("insert")
		}
	}
}

func flowMap(s *Server) map[flowtable.Key]flowtable.Flow {
	m := make(map[flowtable.Key]flowtable.Flow)
	for _, f := range s.Flows(1 << 20) {
		m[f.Key] = f
	}
	return m
}

// TestHandoverOfManyFlows hands 100,000 flows over and says how long nothing was
// read. Under the race detector, which makes that some ten times longer, they are
// fewer.
func TestHandoverOfManyFlows(t *testing.T) {
	flows := 100_000
	if race.Enabled {
		flows /= 10
	}
	b := handoverBench(t, func(c *Config) {
		c.Workers, c.MaxFlows = workersForTest(), 1<<18
		c.IdleTimeout, c.UnconfirmedTimeout = time.Hour, time.Hour
	})
	fill(t, b.srv, flows)
	old := b.srv
	want := flowMap(old)
	b.upgrade(b.successor())
	t.Logf("%d flows: not read for %v", flows, old.handover.took)
	got := flowMap(b.srv)
	if len(got) != flows || len(want) != flows {
		t.Fatalf("%d flows became %d, want %d", len(want), len(got), flows)
	}
	for k, f := range want {
		if got[k] != f {
			t.Fatalf("got %+v, want %+v", got[k], f)
		}
	}
	b.alive()
}

// TestHandoverNeedsAFit checks that a successor that does not fit is told so, and
// that the running relay notices nothing.
func TestHandoverNeedsAFit(t *testing.T) {
	b := handoverBench(t, nil)
	ap := netip.MustParseAddrPort
	for _, tt := range []struct {
		field  string
		change func(*Config)
	}{
		{"Cluster", func(c *Config) { c.Cluster = 9 }},
		{"Workers", func(c *Config) { c.Workers = 2 }},
		{"Trunk", func(c *Config) { c.Trunk = ap("127.0.0.2:0") }},
		{"Trunk", func(c *Config) { c.Trunk = ap("127.0.0.1:4000") }},
		{"Ingresses", func(c *Config) { c.Ingresses = append(c.Ingresses, Ingress{ID: 8, Listen: ap("127.0.0.1:0")}) }},
		{"Ingresses[0].ID", func(c *Config) { c.Ingresses[0].ID = 8 }},
		{"Ingresses[0].Listen", func(c *Config) { c.Ingresses[0].Listen = ap("127.0.0.2:0") }},
		{"Ingresses[0].Listen", func(c *Config) { c.Ingresses[0].Listen = ap("127.0.0.1:1") }},
	} {
		cfg := b.successor()
		tt.change(&cfg)
		srv, err := New(cfg)
		var ce *ConfigError
		if !errors.As(err, &ce) || ce.Field != tt.field || !strings.Contains(ce.Problem, "take over from") {
			t.Errorf("%v, want an error about %s", err, tt.field)
		}
		if srv != nil {
			_ = srv.Close()
		}
	}
	b.alive()
	// Port 0 takes what is there.
	cfg := b.successor()
	cfg.Ingresses[0].Listen = ap("127.0.0.1:0")
	want := b.ingress(0)
	b.upgrade(cfg)
	if got := b.ingress(0); got != want {
		t.Errorf("the successor listens at %v, want %v", got, want)
	}
	b.alive()
}

// TestHandoverRefusesWhileBusy checks that one successor at a time gets the sockets,
// and that one which is closed instead of served does no harm.
func TestHandoverRefusesWhileBusy(t *testing.T) {
	b := handoverBench(t, nil)
	first, err := New(b.successor())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(b.successor()); err == nil || !strings.Contains(err.Error(), "under way") {
		t.Errorf("a second successor: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if err := first.Serve(); !errors.Is(err, ErrServerClosed) {
		t.Errorf("Serve after Close: %v", err)
	}
	b.alive()
	b.eventually(func() error {
		if b.srv.handover.busy.Load() {
			return errors.New("the closed successor is still waited for")
		}
		return nil
	})
	b.upgrade(b.successor())
	b.alive()
}

// TestHandoverPath checks what may be at the path before, and who may use it.
func TestHandoverPath(t *testing.T) {
	needHandover(t)
	dir := t.TempDir()
	start := func(path string) error {
		cfg := config4(keyring(t, "a"))
		cfg.Handover = path
		srv, err := New(cfg)
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil || info.Mode() != fs.ModeSocket|0o600 {
			t.Errorf("at the path is %v (%v), want a socket with permissions 0600", info.Mode(), err)
		}
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("after Close: %v", err)
		}
		return nil
	}
	dead := filepath.Join(dir, "dead")
	l, err := net.ListenUnix(handoverNetwork, &net.UnixAddr{Name: dead, Net: handoverNetwork})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, path, want string }{
		{"nothing", filepath.Join(dir, "new"), ""},
		{"a dead process's socket", dead, ""},
		{"a file", file, "not a socket"},
		{"no directory", filepath.Join(dir, "none", "x"), "none"},
		{"abstract", "@usher", "abstract"},
		{"too long", filepath.Join(dir, strings.Repeat("x", 100)), "bytes"},
	} {
		err := start(tt.path)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "Handover")) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	if content, _ := os.ReadFile(file); string(content) != "precious" {
		t.Error("the file was touched")
	}
	left, _ := os.ReadDir(dir)
	if len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}
