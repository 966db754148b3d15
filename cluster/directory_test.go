package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/usher-rtc/usher/cluster"
	"github.com/usher-rtc/usher/ufrag"
)

func addrs(list ...string) (out []netip.AddrPort) {
	for _, s := range list {
		out = append(out, netip.MustParseAddrPort(s))
	}
	return out
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestStatic(t *testing.T) {
	var empty cluster.Static
	if empty.Addresses(1) != nil || empty.Clusters() != nil {
		t.Error("the zero Static is not empty")
	}
	table := cluster.Table{
		7: addrs("10.0.0.2:4000", "10.0.0.1:4000", "[::ffff:10.0.0.1]:4000"), 0: addrs("[2001:db8::1]:4000"), 9: nil,
	}
	s, err := cluster.NewStatic(table)
	if err != nil {
		t.Fatal(err)
	}
	table[7][0] = netip.AddrPort{} // the caller's own
	want := addrs("10.0.0.1:4000", "10.0.0.2:4000")
	first := s.Addresses(7)
	if !slices.Equal(first, want) {
		t.Errorf("cluster 7: %v, want %v", first, want)
	}
	if got := s.Clusters(); !slices.Equal(got, []uint16{0, 7}) {
		t.Errorf("clusters %v", got)
	}
	if s.Addresses(9) != nil || s.Addresses(65535) != nil {
		t.Error("addresses out of nothing")
	}
	// What stays the same is the same slice: users notice changes by that.
	if err := s.Replace(cluster.Table{7: want, 1: addrs("10.0.1.1:1")}); err != nil {
		t.Fatal(err)
	}
	if again := s.Addresses(7); &again[0] != &first[0] {
		t.Error("an unchanged list is another one")
	}
	for field, bad := range map[string]cluster.Table{
		"Table[4096]": {4096: addrs("10.0.0.1:1")},
		"Table[1][0]": {1: addrs("0.0.0.0:1")},
		"Table[2][1]": {2: addrs("10.0.0.1:1", "10.0.0.1:0")},
		"Table[3][0]": {3: addrs("[fe80::1%eth0]:1")},
		"Table[4][0]": {4: addrs("255.255.255.255:1")},
		"Table[5]":    {5: many(cluster.MaxAddresses + 1)},
	} {
		var ce *cluster.ConfigError
		if err := s.Replace(bad); !errors.As(err, &ce) || ce.Field != field {
			t.Errorf("%v, want an error about %s", err, field)
		}
	}
	if !slices.Equal(s.Addresses(7), want) {
		t.Error("a refused table has changed something")
	}
}

func many(n int) (out []netip.AddrPort) {
	for i := range n {
		out = append(out, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 1}), uint16(i+1)))
	}
	return out
}

func TestParseFile(t *testing.T) {
	got, err := cluster.ParseFile([]byte("# relays\n\n1 10.1.0.5:4000-4002 10.1.0.6:4000 # two\n4095 [2001:db8::5]:65535\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := cluster.Table{
		1: addrs("10.1.0.5:4000", "10.1.0.5:4001", "10.1.0.5:4002", "10.1.0.6:4000"), 4095: addrs("[2001:db8::5]:65535"),
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
	for _, bad := range []string{
		"x 10.0.0.1:1", "4096 10.0.0.1:1", "-1 10.0.0.1:1", "1", "1 relay.example:1", "1 10.0.0.1", "1 10.0.0.1:0",
		"1 10.0.0.1:5-4", "1 10.0.0.1:5-", "1 10.0.0.1:5-70000", "1 10.0.0.1:1-1025", "1 [fe80::1%lo]:1", "1 224.0.0.1:1",
	} {
		var fe *ufrag.FileError
		if _, err := cluster.ParseFile([]byte("2 10.0.0.1:1\n" + bad)); !errors.As(err, &fe) || fe.Line != 2 {
			t.Errorf("%q: %v, want an error in line 2", bad, err)
		}
	}
	if _, err := cluster.ParseFile([]byte("1 10.0.0.1:1\n1 10.0.0.1:2")); err == nil {
		t.Error("a cluster twice is accepted")
	}
}

// FuzzParseFile: what is accepted is a valid table, whatever it is.
func FuzzParseFile(f *testing.F) {
	f.Add("1 10.1.0.5:4000-4002 10.1.0.6:4000 # two\n4095 [2001:db8::5]:65535\n")
	f.Add("1 [::ffff:1.2.3.4]:1-1")
	f.Fuzz(func(t *testing.T, text string) {
		table, err := cluster.ParseFile([]byte(text))
		if err != nil {
			return
		}
		if _, err := cluster.NewStatic(table); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		for id, list := range table {
			if !strings.Contains(text, fmt.Sprint(id)) || len(list) == 0 {
				t.Fatalf("%q: cluster %d with %d addresses", text, id, len(list))
			}
		}
	})
}

func TestFileIsReloaded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "clusters")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("1 10.0.0.1:1")
	f, err := cluster.NewFile(ufrag.WatchConfig{Path: path, Interval: time.Hour, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	write("1 10.0.0.2:1")
	if err := f.Reload(); err != nil || !slices.Equal(f.Addresses(1), addrs("10.0.0.2:1")) {
		t.Errorf("after a change: %v, %v", f.Addresses(1), err)
	}
	write("1 nonsense")
	var fe *ufrag.FileError
	if err := f.Reload(); !errors.As(err, &fe) || fe.Path != path || !slices.Equal(f.Addresses(1), addrs("10.0.0.2:1")) {
		t.Errorf("after a bad change: %v, %v", f.Addresses(1), err)
	}
	if _, err := cluster.NewFile(ufrag.WatchConfig{Path: path}); !errors.As(err, &fe) {
		t.Errorf("a bad file at the start: %v", err)
	}
}

// zone is DNS in memory.
type zone struct {
	mu    sync.Mutex
	names map[string][]netip.Addr
	err   error
	asked map[string]int
}

func (z *zone) set(name string, list ...string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.names[name] = nil
	for _, a := range list {
		z.names[name] = append(z.names[name], netip.MustParseAddr(a))
	}
}

func (z *zone) fail(err error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.err = err
}

func (z *zone) count(name string) int {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.asked[name]
}

func (z *zone) lookup(_ context.Context, _, name string) ([]netip.Addr, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.asked[name]++
	if z.err != nil {
		return nil, z.err
	}
	if list := z.names[name]; len(list) > 0 {
		return list, nil
	}
	return nil, &net.DNSError{Name: name, IsNotFound: true}
}

func TestDNS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := &zone{names: map[string][]netip.Addr{}, asked: map[string]int{}}
		z.set("r-1.example.", "10.0.0.2", "10.0.0.1", "0.0.0.0")
		z.set("r-2.example.", "2001:db8::1")
		d, err := cluster.NewDNS(cluster.DNSConfig{Pattern: "r-%d.example", Port: 4000, Workers: 2, Clusters: []uint16{1}, Lookup: z.lookup, Logger: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		want := func(id uint16, list ...string) {
			t.Helper()
			if got := d.Addresses(id); !slices.Equal(got, addrs(list...)) {
				t.Errorf("cluster %d: %v, want %v", id, got, list)
			}
		}
		synctest.Wait()
		want(1, "10.0.0.1:4000", "10.0.0.1:4001", "10.0.0.2:4000", "10.0.0.2:4001")
		first := d.Addresses(1)
		// One that was not named is looked up when it is asked about, once.
		want(2)
		for range 10 {
			d.Addresses(2) // may have been found meanwhile
			want(3)
		}
		want(65535)
		synctest.Wait()
		want(2, "[2001:db8::1]:4000", "[2001:db8::1]:4001")
		if got := d.Clusters(); !slices.Equal(got, []uint16{1, 2}) {
			t.Errorf("clusters %v", got)
		}
		if n := z.count("r-3.example."); n != 1 {
			t.Errorf("a cluster that is not there was looked up %d times", n)
		}
		// Nothing changes: the same slice. A failure changes nothing.
		time.Sleep(31 * time.Second)
		synctest.Wait()
		if again := d.Addresses(1); &again[0] != &first[0] {
			t.Error("an unchanged list is another one")
		}
		z.fail(errors.New("no server"))
		time.Sleep(time.Minute)
		synctest.Wait()
		want(2, "[2001:db8::1]:4000", "[2001:db8::1]:4001")
		// Changes are seen, also that there is nothing any more, and the reverse.
		z.fail(nil)
		z.set("r-1.example.", "10.0.0.3")
		z.set("r-2.example.")
		z.set("r-3.example.", "10.0.0.9")
		time.Sleep(31 * time.Second)
		synctest.Wait()
		want(1, "10.0.0.3:4000", "10.0.0.3:4001")
		want(2)
		want(3, "10.0.0.9:4000", "10.0.0.9:4001")
	})
}

func TestDNSConfig(t *testing.T) {
	good := cluster.DNSConfig{Pattern: "r-%d.example", Port: 4000, Clusters: []uint16{1}}
	for field, change := range map[string]func(*cluster.DNSConfig){
		"Pattern":     func(c *cluster.DNSConfig) { c.Pattern = "r.example" },
		"Port":        func(c *cluster.DNSConfig) { c.Port = 0 },
		"Workers":     func(c *cluster.DNSConfig) { c.Port, c.Workers = 65535, 2 },
		"Clusters[0]": func(c *cluster.DNSConfig) { c.Clusters = []uint16{4096} },
		"Network":     func(c *cluster.DNSConfig) { c.Network = "udp" },
		"Refresh":     func(c *cluster.DNSConfig) { c.Refresh = -1 },
		"NegativeTTL": func(c *cluster.DNSConfig) { c.NegativeTTL = -1 },
		"Timeout":     func(c *cluster.DNSConfig) { c.Timeout = -1 },
	} {
		cfg := good
		change(&cfg)
		_, err := cluster.NewDNS(cfg)
		var ce *cluster.ConfigError
		if !errors.As(err, &ce) || ce.Field != field {
			t.Errorf("%v, want an error about %s", err, field)
		}
	}
}

func TestAddressesAllocatesNothing(t *testing.T) {
	s, err := cluster.NewStatic(cluster.Table{1: many(8)})
	if err != nil {
		t.Fatal(err)
	}
	d, err := cluster.NewDNS(cluster.DNSConfig{Pattern: "r-%d.example", Port: 1, Lookup: (&zone{asked: map[string]int{}}).lookup, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	d.Addresses(1)
	for name, dir := range map[string]cluster.Directory{"static": s, "dns": d} {
		if n := testing.AllocsPerRun(1000, func() { dir.Addresses(1) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func ExampleStatic() {
	directory, err := cluster.NewStatic(cluster.Table{
		1: {netip.MustParseAddrPort("10.1.0.5:4000"), netip.MustParseAddrPort("10.1.0.6:4000")},
		2: {netip.MustParseAddrPort("[2001:db8:2::5]:4000")},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(directory.Clusters(), directory.Addresses(2))
	// Output: [1 2] [[2001:db8:2::5]:4000]
}

func ExampleNewFile() {
	dir, err := os.MkdirTemp("", "clusters")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "clusters.txt")
	if err := os.WriteFile(path, []byte("1 10.1.0.5:4000-4001\n"), 0o600); err != nil {
		fmt.Println(err)
		return
	}
	directory, err := cluster.NewFile(ufrag.WatchConfig{Path: path})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer directory.Close()
	fmt.Println(directory.Addresses(1))
	// Output: [10.1.0.5:4000 10.1.0.5:4001]
}

func ExampleNewDNS() {
	directory, err := cluster.NewDNS(cluster.DNSConfig{
		Pattern: "relays-%d.media.example", Port: 4000, Workers: 4, Clusters: []uint16{1, 2},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer directory.Close()
	// It goes into relay.Config.Clusters.
	var _ cluster.Directory = directory
}
