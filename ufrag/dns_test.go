package ufrag

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeDNS answers from a table and remembers what it was asked.
type fakeDNS struct {
	mu      sync.Mutex
	answers map[string][]netip.Addr // nil: the name does not exist
	fail    error                   // in place of any answer
	asked   map[string]int
	delay   time.Duration
	now     int // look-ups under way
	most    int
}

var errNotFound = &net.DNSError{Err: "no such host", IsNotFound: true}

func (f *fakeDNS) lookup(ctx context.Context, network, name string) ([]netip.Addr, error) {
	f.mu.Lock()
	f.asked[network+" "+name]++
	f.now++
	f.most = max(f.most, f.now)
	delay := f.delay
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.now--
		f.mu.Unlock()
	}()
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return nil, f.fail
	}
	if addrs := f.answers[name]; addrs != nil {
		return addrs, nil
	}
	return nil, fmt.Errorf("lookup %s: %w", name, errNotFound)
}

func (f *fakeDNS) set(name string, addrs ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = nil
	f.answers[name] = nil
	for _, a := range addrs {
		f.answers[name] = append(f.answers[name], netip.MustParseAddr(a))
	}
}

func (f *fakeDNS) failWith(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = err
}

func (f *fakeDNS) lookups() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.asked {
		n += c
	}
	return n
}

// dnsTest runs a resolver in simulated time.
func dnsTest(t *testing.T, cfg DNSConfig, test func(t *testing.T, f *fakeDNS, d *DNS)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fakeDNS{answers: make(map[string][]netip.Addr), asked: make(map[string]int)}
		cfg.Pattern, cfg.Port, cfg.Lookup = "host-%d.example", 3478, f.lookup
		cfg.Logger = slog.New(slog.DiscardHandler)
		d, err := NewDNS(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		test(t, f, d)
	})
}

func host(id uint64) Route { return Route{Kind: KindDirectory, Host: id} }

// expect asks for host 7, after everything that is under way has settled.
func expect(t *testing.T, d *DNS, want string) {
	t.Helper()
	synctest.Wait()
	ap, ok := d.Resolve(host(7))
	if ok != (want != "") || ok && ap != netip.MustParseAddrPort(want) {
		t.Fatalf("host 7: %s, %v; want %q", ap, ok, want)
	}
	synctest.Wait()
}

func TestDNSLooksUpInTheBackground(t *testing.T) {
	dnsTest(t, DNSConfig{Network: "ip4"}, func(t *testing.T, f *fakeDNS, d *DNS) {
		f.set("host-7.example.", "10.0.0.7")
		f.delay = time.Millisecond // of the simulated clock, which waits for this goroutine
		for range 100 {
			if ap, ok := d.Resolve(host(7)); ok {
				t.Fatalf("known at once: %s", ap)
			}
		}
		time.Sleep(f.delay)
		expect(t, d, "10.0.0.7:3478")
		if want := map[string]int{"ip4 host-7.example.": 1}; !maps.Equal(f.asked, want) {
			t.Errorf("asked %v, want %v", f.asked, want)
		}
		if ap, ok := d.Resolve(Route{Kind: KindIPv4, Host: 7}); ok || f.lookups() != 1 {
			t.Errorf("an address is taken for an id: %s", ap)
		}
		if s := d.Stats(); s != (DNSStats{Hosts: 1}) {
			t.Errorf("%+v", s)
		}
	})
}

// An id without address costs one look-up each NegativeTTL while it is asked for,
// and nothing after.
func TestDNSRemembersNegativeAnswers(t *testing.T) {
	dnsTest(t, DNSConfig{NegativeTTL: 10 * time.Second}, func(t *testing.T, f *fakeDNS, d *DNS) {
		for range 100 {
			expect(t, d, "")
			time.Sleep(99 * time.Millisecond)
		}
		if n := f.lookups(); n != 1 {
			t.Errorf("%d look-ups in 9.9 s", n)
		}
		f.set("host-7.example.", "10.0.0.7")
		time.Sleep(200 * time.Millisecond)
		expect(t, d, "10.0.0.7:3478")
	})
	dnsTest(t, DNSConfig{NegativeTTL: 10 * time.Second}, func(t *testing.T, f *fakeDNS, d *DNS) {
		d.Resolve(host(7))
		time.Sleep(9 * time.Second)
		if s := d.Stats(); s.Negative != 1 {
			t.Errorf("forgotten too early: %+v", s)
		}
		time.Sleep(time.Hour)
		if s, n := d.Stats(), f.lookups(); s.Negative != 0 || n != 1 {
			t.Errorf("an hour later: %+v, %d look-ups", s, n)
		}
	})
}

func TestDNSRefresh(t *testing.T) {
	cfg := DNSConfig{Refresh: 30 * time.Second, NegativeTTL: 10 * time.Second}
	dnsTest(t, cfg, func(t *testing.T, f *fakeDNS, d *DNS) {
		const name = "host-7.example."
		f.set(name, "10.0.0.9", "10.0.0.7", "::ffff:10.0.0.8", "2001:db8::1", "0.0.0.0")
		expect(t, d, "")
		expect(t, d, "10.0.0.7:3478") // the smallest of a host
		f.set(name, "10.0.0.1", "::ffff:10.0.0.7")
		time.Sleep(30 * time.Second)
		expect(t, d, "10.0.0.7:3478") // the present one stays
		f.set(name, "10.0.0.1")
		time.Sleep(29 * time.Second)
		expect(t, d, "10.0.0.7:3478")
		time.Sleep(time.Second)
		expect(t, d, "10.0.0.1:3478") // moved

		f.failWith(errors.New("server failure"))
		n := f.lookups()
		for range 60 {
			time.Sleep(time.Minute)
			expect(t, d, "10.0.0.1:3478") // DNS down: the last good one
		}
		if f.lookups() == n {
			t.Error("no look-up in an hour")
		}
		f.set(name, "10.0.0.2")
		time.Sleep(10 * time.Second) // tried again soon
		expect(t, d, "10.0.0.2:3478")

		f.set(name, "224.0.0.1", "::")
		time.Sleep(30 * time.Second)
		expect(t, d, "") // nothing that can be sent to
		f.set(name, "10.0.0.3")
		time.Sleep(10 * time.Second)
		expect(t, d, "10.0.0.3:3478")

		f.set(name)
		time.Sleep(30 * time.Second)
		expect(t, d, "") // gone
		if s := d.Stats(); s != (DNSStats{Negative: 1}) {
			t.Errorf("%+v", s)
		}
	})
}

func TestDNSForgetsHostsNobodyAsksFor(t *testing.T) {
	cfg := DNSConfig{Refresh: 30 * time.Second, Forget: 10 * time.Minute}
	dnsTest(t, cfg, func(t *testing.T, f *fakeDNS, d *DNS) {
		f.set("host-7.example.", "10.0.0.7")
		expect(t, d, "")
		for range 5 {
			time.Sleep(9 * time.Minute)
			expect(t, d, "10.0.0.7:3478")
		}
		time.Sleep(11 * time.Minute)
		n := f.lookups()
		time.Sleep(time.Hour)
		if s := d.Stats(); s != (DNSStats{}) || f.lookups() != n {
			t.Errorf("%+v, %d look-ups more", s, f.lookups()-n)
		}
	})
}

// Ids that do not exist fill neither memory nor DNS.
func TestDNSIsBounded(t *testing.T) {
	cfg := DNSConfig{MaxHosts: 8, Concurrency: 3, NegativeTTL: 10 * time.Second, Timeout: time.Second}
	dnsTest(t, cfg, func(t *testing.T, f *fakeDNS, d *DNS) {
		f.delay = time.Hour
		for id := range uint64(1000) {
			d.Resolve(host(id))
		}
		synctest.Wait()
		if n := f.lookups(); n != 3 {
			t.Errorf("%d look-ups at a time", n)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if n := f.lookups(); n != 8 || f.most != 3 {
			t.Errorf("%d look-ups, %d at a time", n, f.most)
		}
		if s := d.Stats(); s.Hosts != 0 || s.Negative != 8 || s.Refused != 992 {
			t.Errorf("%+v", s)
		}
		// The table was full; now it is not.
		time.Sleep(time.Minute)
		f.set("host-7.example.", "10.0.0.7")
		f.mu.Lock()
		f.delay = 0
		f.mu.Unlock()
		expect(t, d, "")
		expect(t, d, "10.0.0.7:3478")
	})
}

// Close ends the look-ups and waits for them.
func TestDNSCloseEndsLookups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started := make(chan struct{})
		d, err := NewDNS(DNSConfig{
			Pattern: "host-%d.example.", Port: 1, Timeout: time.Hour,
			Lookup: func(ctx context.Context, _, _ string) ([]netip.Addr, error) {
				close(started)
				<-ctx.Done()
				time.Sleep(3 * time.Second) // slow to notice
				return nil, ctx.Err()
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		d.Resolve(host(7))
		<-started
		before := time.Now()
		if err := errors.Join(d.Close(), d.Close()); err != nil || time.Since(before) != 3*time.Second {
			t.Errorf("Close took %v: %v", time.Since(before), err)
		}
		for range 2 * askQueue { // nobody listens any more
			d.Resolve(host(9))
		}
		if s := d.Stats(); s.Refused != askQueue {
			t.Errorf("%+v", s)
		}
	})
}

// A question that was queued before the answer to the first was published must not
// start the host over: it would have two look-ups then.
func TestDNSAddsAHostOnce(t *testing.T) {
	d := &DNS{cfg: DNSConfig{MaxHosts: 8}, hosts: make(map[uint64]*dnsState)}
	d.publish()
	if !d.add(7) {
		t.Fatal("not added")
	}
	s := d.hosts[7]
	if d.add(7) || d.hosts[7] != s || d.Stats().Refused != 0 {
		t.Error("added again")
	}
}

func TestDNSConfig(t *testing.T) {
	good := DNSConfig{Pattern: "host-%d.example", Port: 1}
	for field, change := range map[string]func(*DNSConfig){
		"Pattern":     func(c *DNSConfig) { c.Pattern = "host.example" },
		"Pattern ":    func(c *DNSConfig) { c.Pattern = "host-%d.%d.example" },
		"Pattern  ":   func(c *DNSConfig) { c.Pattern = "%s-%d.example" },
		"Pattern   ":  func(c *DNSConfig) { c.Pattern = "" },
		"Port":        func(c *DNSConfig) { c.Port = 0 },
		"Network":     func(c *DNSConfig) { c.Network = "udp" },
		"Refresh":     func(c *DNSConfig) { c.Refresh = -1 },
		"NegativeTTL": func(c *DNSConfig) { c.NegativeTTL = -1 },
		"Forget":      func(c *DNSConfig) { c.Forget = -1 },
		"Timeout":     func(c *DNSConfig) { c.Timeout = -1 },
		"MaxHosts":    func(c *DNSConfig) { c.MaxHosts = -1 },
		"Concurrency": func(c *DNSConfig) { c.Concurrency = -1 },
	} {
		cfg := good
		change(&cfg)
		var ce *ConfigError
		d, err := NewDNS(cfg)
		if d != nil || !errors.As(err, &ce) || ce.Field != strings.TrimSpace(field) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	if err := good.setDefaults(); err != nil {
		t.Fatal(err)
	}
	if good.Network != "ip" || good.Refresh != 30*time.Second || good.NegativeTTL != 10*time.Second ||
		good.Forget != 10*time.Minute || good.Timeout != 5*time.Second || good.MaxHosts != 4096 ||
		good.Concurrency != 4 || good.Lookup == nil || good.Logger == nil {
		t.Errorf("not the documented defaults: %+v", good)
	}
}

func TestDNSResolveDoesNotAllocate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, err := NewDNS(DNSConfig{
			Pattern: "host-%d.example", Port: 3478,
			Lookup: func(context.Context, string, string) ([]netip.Addr, error) {
				return []netip.Addr{netip.MustParseAddr("10.0.0.7")}, nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		d.Resolve(host(1000))
		synctest.Wait()
		if err := d.Close(); err != nil { // so that only Resolve is counted
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(1000, func() {
			if _, ok := d.Resolve(host(1000)); !ok {
				t.Error("not resolved")
			}
			if _, ok := d.Resolve(host(1001)); ok {
				t.Error("resolved")
			}
		}); n != 0 {
			t.Errorf("%v allocations", n)
		}
	})
}
