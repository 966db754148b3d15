package relay

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/ufrag"
)

func TestConfigErrorsNameTheField(t *testing.T) {
	ap := netip.MustParseAddrPort
	for _, tc := range []struct {
		field  string
		change func(*Config)
	}{
		{"Codec", func(c *Config) { c.Codec = nil }},
		{"TrunkKeys", func(c *Config) { c.TrunkKeys = nil }},
		{"TrunkKeys", func(c *Config) { c.TrunkKeys = new(ufrag.Keyring) }},
		{"Cluster", func(c *Config) { c.Cluster = 4096 }},
		{"Workers", func(c *Config) { c.Workers = -1 }},
		{"Trunk", func(c *Config) { c.Trunk, c.Workers = ap("127.0.0.1:65535"), 2 }},
		{"MaxFlows", func(c *Config) { c.MaxFlows = -1 }},
		{"IdleTimeout", func(c *Config) { c.IdleTimeout = -1 }},
		{"UnconfirmedTimeout", func(c *Config) { c.UnconfirmedTimeout = time.Microsecond }},
		{"TrunkMTU", func(c *Config) { c.TrunkMTU = 100 }},
		{"MaxBatchDelay", func(c *Config) { c.MaxBatchDelay = time.Second }},
		{"ReadBuffer", func(c *Config) { c.ReadBuffer = -1 }},
		{"StoreKeys", func(c *Config) { c.StoreKeys = new(ufrag.Keyring) }},
		{"StoreTTL", func(c *Config) { c.StoreTTL = time.Second }},
		{"StoreTTL", func(c *Config) { c.StoreTTL = 25 * time.Hour }},
		{"StoreTimeout", func(c *Config) { c.StoreTimeout = 2 * time.Second }},
		{"StoreLookups", func(c *Config) { c.StoreLookups = -1 }},
		{"AllowUpstream", func(c *Config) { c.AllowUpstream = nil }},
		{"AllowUpstream[0]", func(c *Config) { c.AllowUpstream[0] = netip.Prefix{} }},
		{"Peers[0]", func(c *Config) { c.Peers = []netip.AddrPort{ap("192.0.2.1:1")} }},
		{"Ingresses", func(c *Config) { c.Ingresses = nil }},
		{"Ingresses[0].ID", func(c *Config) { c.Ingresses[0].ID = 0 }},
		{"Ingresses[1].ID", func(c *Config) { c.Ingresses = append(c.Ingresses, Ingress{ID: 7, Listen: ap("127.0.0.1:0")}) }},
		{"Ingresses[0].Listen", func(c *Config) { c.Ingresses[0].Listen = netip.AddrPort{} }},
		{"Ingresses[0].Listen", func(c *Config) { c.Ingresses[0].Listen = ap("[fe80::1]:3478") }},
		{"Ingresses[1].Listen", func(c *Config) {
			c.Ingresses = []Ingress{{ID: 1, Listen: ap("127.0.0.1:3478")}, {ID: 2, Listen: ap("127.0.0.1:3478")}}
		}},
		{"Ingresses[0].Advertise", func(c *Config) { c.Ingresses[0].Advertise = ap("0.0.0.0:3478") }},
	} {
		cfg := config4(keyring(t, "a"))
		tc.change(&cfg)
		srv, err := New(cfg)
		var ce *ConfigError
		if !errors.As(err, &ce) || ce.Field != tc.field {
			t.Errorf("%v, want an error about %s", err, tc.field)
		}
		if srv != nil {
			_ = srv.Close()
		}
	}
}

func TestAddressInUseIsReported(t *testing.T) {
	for workers := 1; workers <= 2; workers++ {
		b := newBench(t, func(c *Config) { c.Workers = workers })
		cfg := config4(b.ring)
		cfg.Workers = workers
		cfg.Ingresses[0].Listen = b.ingress(0)
		srv, err := New(cfg)
		if err == nil {
			_ = srv.Close()
		}
		if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "Ingresses[0].Listen") {
			t.Errorf("two relays with %d workers at one address: %v", workers, err)
		}
	}
}

// C57 and C56: ports are free, goroutines gone, nothing is sent after Close.
func TestStartAndStopManyTimesUnderLoad(t *testing.T) {
	ring := keyring(t, "a")
	cfg := config4(ring)
	cfg.Workers = workersForTest()
	first, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Ingresses[0].Listen = first.Ingresses()[0].Listen
	_ = first.Close()

	stop := make(chan struct{})
	var clients sync.WaitGroup
	for range 2 {
		clients.Go(func() {
			conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(cfg.Ingresses[0].Listen))
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			for {
				select {
				case <-stop:
					return
				default:
					_, _ = conn.Write(rtp(1, 100)) // refused while there is no relay
				}
			}
		})
	}
	for i := range 100 {
		srv, err := New(cfg)
		if err != nil {
			t.Fatalf("start %d: %v", i, err)
		}
		done := make(chan error, 1)
		go func() { done <- srv.Serve() }()
		for i%2 == 0 && srv.Stats().FromClients == 0 {
			time.Sleep(100 * time.Microsecond)
		}
		if err := srv.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, ErrServerClosed) || !errors.Is(err, net.ErrClosed) {
			t.Fatal(err)
		}
	}
	close(stop)
	clients.Wait()
}

func workersForTest() int {
	if _, err := os.Stat("/proc/self"); err != nil {
		return 1 // more than one needs Linux
	}
	return 4
}

func TestServeOnlyOnceAndNotAfterClose(t *testing.T) {
	b := newBench(t, nil)
	b.alive()
	if err := b.srv.Serve(); err == nil || errors.Is(err, ErrServerClosed) {
		t.Fatalf("second Serve: %v", err)
	}
	srv, err := New(config4(b.ring))
	if err != nil {
		t.Fatal(err)
	}
	if err := srv.Close(); err != nil {
		t.Fatal(err)
	}
	if err := srv.Serve(); !errors.Is(err, ErrServerClosed) {
		t.Fatal(err)
	}
	if err := srv.Close(); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, h http.Handler, path string) (int, string) {
	t.Helper()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
	return rec.Code, rec.Body.String()
}

func TestShutdownDrains(t *testing.T) {
	b := newBench(t, func(c *Config) { c.IdleTimeout = 3 * time.Second }) // it must not end before the drain
	h := b.host(nil)
	c := b.client("127.0.1.1", 0)
	web := b.srv.Handler()
	c.send(h.mint().check())
	r := h.want(c.addr())
	h.reply(r, trunk.Validated, "x")
	c.want("x")
	if code, _ := get(t, web, "/readyz"); code != 200 {
		t.Fatalf("readyz %d", code)
	}
	done := make(chan error, 1)
	go func() { done <- b.srv.Shutdown(testContext(t, patience)) }()
	b.eventually(func() error {
		if code, _ := get(t, web, "/readyz"); code != 503 {
			return fmt.Errorf("readyz %d", code)
		}
		return nil
	})
	if code, _ := get(t, web, "/healthz"); code != 200 {
		t.Fatalf("healthz %d while draining", code)
	}
	c.send(rtp(1, 30)) // flows go on
	h.want(c.addr())
	h.reply(r, 0, "y")
	c.want("y")
	if err := <-done; err != nil { // the flow expires, then it closes
		t.Fatal(err)
	}
	if code, _ := get(t, web, "/healthz"); code != 503 {
		t.Fatalf("healthz %d after the end", code)
	}
}

func TestShutdownEndsWithItsContext(t *testing.T) {
	b := newBench(t, nil)
	b.alive() // leaves a flow
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := b.srv.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func TestDrainingRelaySaysGoodbye(t *testing.T) {
	b := newBench(t, nil)
	h := b.host(nil)
	c := b.client("127.0.1.1", 0)
	c.send(h.mint().check())
	h.want(c.addr())
	b.eventually(func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if _, ok := h.link.Peer(); !ok {
			return errors.New("no handshake")
		}
		return nil
	})
	go func() { _ = b.srv.Shutdown(testContext(t, 10*time.Second)) }()
	b.eventually(func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.goodbye != trunk.ReasonDraining {
			return errors.New("no goodbye")
		}
		return nil
	})
	_ = b.srv.Close()
	b.eventually(func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.goodbye != trunk.ReasonClosed {
			return errors.New("no last goodbye")
		}
		return nil
	})
}

func TestKeepaliveIsAnswered(t *testing.T) {
	b := newBench(t, nil)
	h := b.host(nil)
	c := b.client("127.0.1.1", 0)
	c.send(h.mint().check())
	r := h.want(c.addr())
	b.eventually(func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if epoch, ok := h.link.Peer(); ok {
			hdr := h.link.Header(trunk.TypeKeepalive)
			d, _ := (&trunk.Keepalive{To: epoch, Token: 99}).Append(nil, &hdr, h.ring)
			h.write(d, r.from)
		}
		if h.alive != 99 {
			return errors.New("no answer")
		}
		return nil
	})
}

func TestDebugFlows(t *testing.T) {
	b := newBench(t, nil)
	h := b.host(nil)
	for i := range 5 {
		c := b.client(fmt.Sprintf("127.0.1.%d", i+1), 0)
		c.send(h.mint().check())
		h.reply(h.want(c.addr()), trunk.Validated, "x", 3)
		c.want("x")
	}
	web := b.srv.Handler()
	code, body := get(t, web, "/debug/flows?limit=3")
	var page struct {
		Total int
		Flows []struct {
			Client, Upstream, State, Route string
			SSRCs                          []uint32
		}
	}
	if err := json.Unmarshal([]byte(body), &page); code != 200 || err != nil {
		t.Fatal(code, err)
	}
	if page.Total != 5 || len(page.Flows) != 3 || page.Flows[0].State != "confirmed" || page.Flows[0].Upstream != h.addr().String() {
		t.Fatalf("%+v", page)
	}
	for _, q := range []string{"0", "-1", "x", "10001"} {
		if code, _ := get(t, web, "/debug/flows?limit="+q); code != 400 {
			t.Errorf("limit=%s: %d", q, code)
		}
	}
}

// C64: one address with many ports, over several workers; C72: counters balance.
func TestWorkersShareTheLoad(t *testing.T) {
	workers := workersForTest()
	b := newBench(t, func(c *Config) { c.Workers, c.IdleTimeout, c.UnconfirmedTimeout = workers, time.Second, time.Second })
	h := b.host(func(h *host, r received) { h.reply(r, trunk.Validated, "ok") })
	const n = 200
	for range n {
		c := b.client("127.0.1.1", 0)
		c.send(h.mint().check())
		c.want("ok")
	}
	if addrs := b.srv.TrunkAddrs(); len(addrs) != workers {
		t.Fatalf("%d trunk addresses", len(addrs))
	}
	b.eventually(func() error {
		st := b.srv.Stats()
		if st.Created != n || st.Created != st.Expired || st.Flows != 0 || st.FromClients != n {
			return fmt.Errorf("created %d, expired %d, live %d, packets %d", st.Created, st.Expired, st.Flows, st.FromClients)
		}
		for i, w := range st.Workers {
			if w.FromClients > 2*n/uint64(workers) {
				return fmt.Errorf("worker %d got %d of %d packets", i, w.FromClients, n)
			}
		}
		return nil
	})
	b.alive()
}

// Nothing that a socket reports ends a worker: Hosts and clients that are gone.
//
// C47, C50: an ICMP error ends no flow and costs no other datagram.
func TestDeadDestinationsDoNoHarm(t *testing.T) {
	b := newBench(t, nil)
	live := b.host(nil)
	dead := b.host(nil)
	id, gone := live.mint(), dead.mint()
	dead.conn.Close()
	c := b.client("127.0.1.1", 0)
	for range 300 {
		c.send(gone.check())
		c.send(id.check())
		r := live.want(c.addr())
		r.Client = netip.AddrPortFrom(c.addr().Addr(), 9) // nobody is there
		live.reply(r, 0, "to nobody")
	}
	if n := b.totalDrops(); n != 0 {
		t.Fatalf("drops: %v", b.allDrops())
	}
	b.alive()
}

func TestTrace(t *testing.T) {
	var created, expired, drops atomic.Int32
	b := newBench(t, func(c *Config) {
		c.UnconfirmedTimeout = 100 * time.Millisecond
		c.Trace = &Trace{
			FlowCreated: func(flowtable.Flow) { created.Add(1) },
			FlowExpired: func(_ flowtable.Flow, why flowtable.Removal) {
				if why == flowtable.Expired {
					expired.Add(1)
				}
			},
			Drop: func(reason string, _ netip.AddrPort, ingress uint16) {
				if reason == "no flow" && ingress == 7 {
					drops.Add(1)
				}
			},
		}
	})
	h := b.host(nil)
	c := b.client("127.0.1.1", 0)
	for range 200 {
		c.send(rtp(1, 20))
	}
	b.drops("no flow", 200)
	c.send(h.mint().check())
	h.want(c.addr())
	b.eventually(func() error {
		if created.Load() != 1 || expired.Load() != 1 {
			return fmt.Errorf("%d created, %d expired", created.Load(), expired.Load())
		}
		return nil
	})
	if n := drops.Load(); n < 1 || n > 50 {
		t.Fatalf("%d drops traced", n)
	}
}

// C26 and C112: refused packets fill no log, and no secret is in one.
func TestLogsAreFewAndHoldNoSecrets(t *testing.T) {
	var log syncBuffer
	b := newBench(t, func(c *Config) {
		c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		c.ReadBuffer = 1 << 29
	})
	h := b.host(nil)
	id := h.mint()
	c := b.client("127.0.1.1", 0)
	c.send(id.check())
	h.want(c.addr())
	for i := range 2000 {
		c.send([]byte{})
		b.client("127.0.1.2", 0).send(rtp(1, 20))
		if i%100 == 0 {
			c.send(id.checkFrom("x", "wrong"))
		}
	}
	b.eventually(func() error {
		if !strings.Contains(log.String(), "no flow") {
			return errors.New("drops are not logged")
		}
		return nil
	})
	out := log.String()
	if n := strings.Count(out, "\n"); n > 20 {
		t.Errorf("%d lines:\n%s", n, out)
	}
	if strings.Contains(out, id.ufrag) || strings.Contains(out, id.password) {
		t.Error("a ufrag or password is in the log")
	}
	if !strings.Contains(out, "receive buffer is smaller") && b.srv.Stats().Sockets[0].ReadBuffer < 1<<29 {
		t.Error("no warning about the receive buffer")
	}
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// Importers of the relay must not get WebRTC, Redis or Prometheus.
func TestImports(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".", "../flowtable", "../ufrag").Output()
	if err != nil {
		t.Fatal(err)
	}
	for dep := range strings.FieldsSeq(string(out)) {
		for _, bad := range []string{"/pion/", "redis", "prometheus"} {
			if strings.Contains(dep, bad) {
				t.Errorf("imports %s", dep)
			}
		}
	}
}
