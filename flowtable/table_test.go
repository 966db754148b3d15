package flowtable

import (
	"errors"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/usher-rtc/usher/internal/race"
)

func TestConfigErrorsNameTheField(t *testing.T) {
	for _, tc := range []struct {
		field string
		cfg   Config
	}{
		{"MaxFlows", Config{MaxFlows: -1}},
		{"MaxFlows", Config{MaxFlows: MaxFlowsLimit + 1}},
		{"MaxUnconfirmed", Config{MaxFlows: 10, MaxUnconfirmed: 11}},
		{"IdleTimeout", Config{IdleTimeout: time.Microsecond}},
		{"UnconfirmedTimeout", Config{UnconfirmedTimeout: 8 * 24 * time.Hour}},
	} {
		_, err := New(tc.cfg)
		var ce *ConfigError
		if !errors.As(err, &ce) || ce.Field != tc.field {
			t.Errorf("%+v: %v, want an error about %s", tc.cfg, err, tc.field)
		}
	}
}

func TestSlotIsACacheLine(t *testing.T) {
	if n := unsafe.Sizeof(slot{}); n != 64 {
		t.Errorf("slot has %d bytes", n)
	}
	if n := unsafe.Sizeof(links{}); n != 24 {
		t.Errorf("links has %d bytes", n)
	}
}

// C58: an IPv4 client has one key, however its address is written.
func TestMappedAddressIsTheSameClient(t *testing.T) {
	table, _ := New(Config{MaxFlows: 4})
	table.Lock()
	defer table.Unlock()
	plain := netip.MustParseAddrPort("192.0.2.1:5000")
	mapped := netip.AddrPortFrom(netip.AddrFrom16(plain.Addr().As16()), plain.Port())
	f := Flow{Key: Key{Client: mapped}, State: Confirmed, Upstream: mapped}
	r, _ := table.Insert(&f)
	if table.Lookup(Key{Client: plain}) != r || table.Upstream(r) != plain || table.Flow(r).Key.Client != plain {
		t.Fatal("mapped and plain form differ")
	}
}

func TestFullTableKeepsConfirmedFlows(t *testing.T) {
	table, _ := New(Config{MaxFlows: 10, MaxUnconfirmed: 4})
	table.Lock()
	defer table.Unlock()
	for i := range 10 {
		f := numbered(i)
		if _, ok := table.Insert(&f); !ok {
			t.Fatal("refused")
		}
	}
	f := numbered(11)
	f.State = Unconfirmed
	if _, ok := table.Insert(&f); ok {
		t.Fatal("a stranger's flow displaced a confirmed one")
	}
	if table.Len() != 10 {
		t.Fatal("a flow is gone")
	}
}

func TestLocalAddressesAreBounded(t *testing.T) {
	table, _ := New(Config{MaxFlows: 4})
	table.Lock()
	defer table.Unlock()
	f := numbered(1)
	r, _ := table.Insert(&f)
	for i := range 100_000 {
		table.SetLocal(r, netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}))
	}
	if len(table.locals) > 5000 {
		t.Fatalf("%d addresses kept", len(table.locals))
	}
}

// numbered makes distinct confirmed flows: every third of IPv6, some sharing an
// IP address, with one audio and one video SSRC.
func numbered(i int) Flow {
	a := netip.AddrFrom4([4]byte{100, byte(i >> 18), byte(i >> 10), byte(i >> 2)})
	if i%3 == 0 {
		a = netip.AddrFrom16([16]byte{0x20, 1, 12: byte(i >> 24), byte(i >> 16), byte(i >> 8), byte(i)})
	}
	return Flow{
		Key:      Key{Client: netip.AddrPortFrom(a, uint16(i%4+1024)), Ingress: 1},
		Route:    route(uint64(i)),
		Upstream: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 3), 1}), 9000),
		State:    Confirmed,
		SSRCs:    [MaxSSRCs]uint32{uint32(i)*7 + 1, uint32(i)*7 + 2}, NumSSRCs: 2,
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func filled(tb testing.TB, n int) *Table {
	table, err := New(Config{MaxFlows: n})
	if err != nil {
		tb.Fatal(err)
	}
	table.Lock()
	defer table.Unlock()
	for i := range n {
		f := numbered(i)
		if _, ok := table.Insert(&f); !ok {
			tb.Fatal("refused")
		}
	}
	return table
}

// A million flows, with all indexes, cost at most 128 bytes each.
func TestBytesPerFlow(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector takes minutes for a million flows")
	}
	const n = 1_000_000
	before := heap()
	table := filled(t, n)
	perFlow := float64(heap()-before) / n
	t.Logf("%.1f bytes per flow", perFlow)
	if perFlow > 128 {
		t.Errorf("%.1f bytes per flow, want at most 128", perFlow)
	}
	table.Lock()
	defer table.Unlock()
	for i := 0; i < n; i += 997 {
		f := numbered(i)
		if r := table.Lookup(f.Key); r == 0 || table.Flow(r) != f {
			t.Fatalf("flow %d is lost", i)
		}
		if r := table.BySSRC(f.Key.Client.Addr(), f.SSRCs[1], 0); r == 0 || table.Flow(r).Key != f.Key {
			t.Fatalf("flow %d is not found by SSRC", i)
		}
	}
}

func TestNothingAllocatesInSteadyState(t *testing.T) {
	race.NoAllocs(t)
	table, _ := New(Config{MaxFlows: 1000})
	table.Lock()
	defer table.Unlock()
	i, now := 0, Tick(0)
	owners := make([]Owner, 0, 2)
	step := func() {
		f := numbered(i % 1000)
		i++
		now += 5
		r, ok := table.Insert(&f)
		if !ok {
			t.Fatal("refused")
		}
		table.Touch(r, now)
		table.Confirm(r, now, f.SSRCs[:2])
		_ = table.Upstream(table.Lookup(f.Key))
		_ = table.BySSRC(f.Key.Client.Addr(), f.SSRCs[0], now)
		_ = table.Owners(f.Key.Client.Addr(), owners[:0])
		table.Contend(r, f.Route, now)
		table.SetOwner(r, f.Route, f.Upstream, now)
		table.Expire(now)
	}
	for range 5000 {
		step()
	}
	if n := testing.AllocsPerRun(5000, step); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Importers of the relay's core must not get WebRTC, Redis or Prometheus.
func TestImports(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
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
