package ufrag

import (
	"errors"
	"net/netip"
	"testing"
)

func ipv4(tb testing.TB, host string) Route {
	tb.Helper()
	r, err := IPv4Route(0, netip.MustParseAddrPort(host), 1)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

func TestEmbeddedIPv4(t *testing.T) {
	want := netip.MustParseAddrPort("10.0.0.7:3478")
	if ap, ok := (EmbeddedIPv4{}).Resolve(ipv4(t, "10.0.0.7:3478")); !ok || ap != want {
		t.Errorf("%s, %v", ap, ok)
	}
	// Codecs carry these; nothing can be sent there.
	for _, r := range []Route{
		{},
		{Kind: KindDirectory, Host: 0x0a0000070d96},
		{Kind: KindIPv4},                       // 0.0.0.0:0
		{Kind: KindIPv4, Host: 0x0a0000070000}, // 10.0.0.7:0
		{Kind: KindIPv4, Host: 0x000000000d96}, // 0.0.0.0:3478
		{Kind: KindIPv4, Host: 0xe00000010d96}, // 224.0.0.1:3478
		{Kind: KindIPv4, Host: 0xffffffff0d96}, // 255.255.255.255:3478
	} {
		if ap, ok := (EmbeddedIPv4{}).Resolve(r); ok || ap.IsValid() {
			t.Errorf("%#v: %s", r, ap)
		}
	}
}

func TestStatic(t *testing.T) {
	table := map[uint64]netip.AddrPort{
		17:      netip.MustParseAddrPort("[::ffff:10.0.0.7]:3478"),
		maxHost: netip.MustParseAddrPort("[2001:db8::7]:3478"),
	}
	s, err := NewStatic(table)
	if err != nil {
		t.Fatal(err)
	}
	clear(table)
	resolve := func(host uint64, want string) {
		t.Helper()
		ap, ok := s.Resolve(Route{Kind: KindDirectory, Cluster: 9, Host: host, Session: 5})
		if ok != (want != "") || ok && ap != netip.MustParseAddrPort(want) {
			t.Errorf("host %d: %s, %v; want %q", host, ap, ok, want)
		}
	}
	resolve(17, "10.0.0.7:3478")
	resolve(maxHost, "[2001:db8::7]:3478")
	resolve(18, "")
	if ap, ok := s.Resolve(Route{Kind: KindIPv4, Host: 17}); ok {
		t.Errorf("an address is taken for an id: %s", ap)
	}
	if err := s.Replace(map[uint64]netip.AddrPort{18: netip.MustParseAddrPort("10.0.0.8:1")}); err != nil {
		t.Fatal(err)
	}
	resolve(17, "")
	resolve(18, "10.0.0.8:1")
	for field, bad := range map[string]map[uint64]netip.AddrPort{
		"Table[281474976710656]": {maxHost + 1: netip.MustParseAddrPort("10.0.0.8:1")},
		"Table[1]":               {1: netip.MustParseAddrPort("10.0.0.8:0")},
		"Table[2]":               {2: {}},
		"Table[3]":               {3: netip.MustParseAddrPort("[ff02::1]:1")},
		"Table[4]":               {4: netip.MustParseAddrPort("[fe80::1%lo]:1")},
	} {
		var ce *ConfigError
		if err := s.Replace(bad); !errors.As(err, &ce) || ce.Field != field {
			t.Errorf("Replace(%v): %v", bad, err)
		}
		if got, err := NewStatic(bad); got != nil || !errors.As(err, &ce) {
			t.Errorf("NewStatic(%v): %v", bad, err)
		}
	}
	resolve(18, "10.0.0.8:1")
	if s.Len() != 1 || new(Static).Len() != 0 {
		t.Errorf("%d hosts", s.Len())
	}
	if ap, ok := new(Static).Resolve(Route{Kind: KindDirectory}); ok {
		t.Errorf("the zero Static: %s", ap)
	}
}

func TestChainAsksInOrder(t *testing.T) {
	table := func(hosts map[uint64]netip.AddrPort) *Static {
		s, err := NewStatic(hosts)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	a, b := netip.MustParseAddrPort("10.0.0.1:1"), netip.MustParseAddrPort("10.0.0.2:2")
	c := Chain{
		table(map[uint64]netip.AddrPort{1: a}),
		table(map[uint64]netip.AddrPort{1: b, 2: b}),
		EmbeddedIPv4{},
	}
	for r, want := range map[Route]netip.AddrPort{
		{Kind: KindDirectory, Host: 1}: a,
		{Kind: KindDirectory, Host: 2}: b,
		{Kind: KindDirectory, Host: 3}: {},
		ipv4(t, "10.9.9.9:9"):          netip.MustParseAddrPort("10.9.9.9:9"),
	} {
		if ap, ok := c.Resolve(r); ok != want.IsValid() || ap != want {
			t.Errorf("%v: %s, %v; want %s", r, ap, ok, want)
		}
	}
	if _, ok := (Chain)(nil).Resolve(ipv4(t, "10.9.9.9:9")); ok {
		t.Error("an empty chain resolves")
	}
}

// fixed resolves everything to one address, as a broken or hostile source might.
type fixed netip.AddrPort

func (f fixed) Resolve(Route) (netip.AddrPort, bool) { return netip.AddrPort(f), true }

// C46: no way to write an address gets around the list.
func TestAllowList(t *testing.T) {
	prefixes := func(list ...string) (out []netip.Prefix) {
		for _, s := range list {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}
	private := prefixes("10.0.0.0/8")
	everything := prefixes("0.0.0.0/0", "::/0")
	for _, tt := range []struct {
		allow []netip.Prefix
		addr  string
		want  string // empty: refused
	}{
		{private, "10.1.2.3:1", "10.1.2.3:1"},
		{private, "[::ffff:10.1.2.3]:1", "10.1.2.3:1"},
		{private, "11.1.2.3:1", ""},
		{private, "127.0.0.1:9", ""},
		{private, "169.254.169.254:80", ""},
		{private, "0.0.0.0:1", ""},
		{private, "[::ffff:127.0.0.1]:1", ""},
		{private, "[::ffff:169.254.169.254]:1", ""},
		{private, "[::127.0.0.1]:1", ""},
		{private, "[::10.1.2.3]:1", ""},
		{private, "[64:ff9b::7f00:1]:1", ""},
		{private, "[64:ff9b::10.1.2.3]:1", ""},
		{private, "[2002:a01:203::1]:1", ""},
		{private, "[fe80::1%lo]:1", ""},
		{private, "[::ffff:10.1.2.3%lo]:1", ""},
		{private, "10.1.2.3:0", ""},

		{prefixes("10.1.2.99/24"), "10.1.2.3:1", "10.1.2.3:1"}, // host bits do not matter
		{prefixes("::ffff:10.0.0.0/104"), "10.1.2.3:1", "10.1.2.3:1"},
		{prefixes("::ffff:10.0.0.0/104"), "11.1.2.3:1", ""},
		{prefixes("::ffff:0.0.0.0/96"), "11.1.2.3:1", "11.1.2.3:1"},
		{prefixes("::/0"), "10.1.2.3:1", ""},
		{prefixes("::/0"), "[::ffff:10.1.2.3]:1", ""},
		{prefixes("0.0.0.0/0"), "[2001:db8::7]:1", ""},
		{prefixes("2001:db8::/32"), "[2001:db8::7]:1", "[2001:db8::7]:1"},
		{prefixes("fe80::/10"), "[fe80::1]:1", "[fe80::1]:1"},
		{prefixes("fe80::/10"), "[fe80::1%lo]:1", ""},
		{append(prefixes("192.0.2.0/24"), private...), "10.1.2.3:1", "10.1.2.3:1"},

		{everything, "127.0.0.1:1", "127.0.0.1:1"},
		{everything, "0.0.0.0:1", ""},
		{everything, "[::]:1", ""},
		{everything, "[::ffff:0.0.0.0]:1", ""},
		{everything, "224.0.0.1:1", ""},
		{everything, "[ff02::1]:1", ""},
		{everything, "[::ffff:224.0.0.1]:1", ""},
		{everything, "255.255.255.255:1", ""},
		{everything, "10.1.2.3:0", ""},

		{nil, "10.1.2.3:1", ""},
		{[]netip.Prefix{}, "10.1.2.3:1", ""},
		{[]netip.Prefix{{}}, "10.1.2.3:1", ""},
		{[]netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 33)}, "10.1.2.3:1", ""},
	} {
		ap := netip.MustParseAddrPort(tt.addr)
		got, ok := Allow(tt.allow, fixed(ap)).Resolve(Route{})
		if ok != (tt.want != "") || ok && got != netip.MustParseAddrPort(tt.want) || !ok && got.IsValid() {
			t.Errorf("%v: %s gives %s, %v; want %q", tt.allow, tt.addr, got, ok, tt.want)
		}
	}
	if ap, ok := Allow(everything, fixed{}).Resolve(Route{}); ok {
		t.Errorf("no address: %s", ap)
	}
	if ap, ok := Allow(everything, EmbeddedIPv4{}).Resolve(Route{Kind: KindDirectory}); ok {
		t.Errorf("unknown route: %s", ap)
	}
}

func TestAllowListContains(t *testing.T) {
	given := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	a := Allow(given, nil)
	given[0] = netip.MustParsePrefix("127.0.0.0/8")
	for addr, want := range map[string]bool{
		"10.1.2.3": true, "::ffff:10.1.2.3": true, "127.0.0.1": false, "::ffff:127.0.0.1": false, "fe80::1%lo": false,
	} {
		if got := a.Contains(netip.MustParseAddr(addr)); got != want {
			t.Errorf("Contains(%s) = %v", addr, got)
		}
	}
	if a.Contains(netip.Addr{}) {
		t.Error("contains no address at all")
	}
	if ap, ok := a.Resolve(ipv4(t, "10.1.2.3:1")); ok {
		t.Errorf("resolves without a resolver: %s", ap)
	}
}

func TestResolveDoesNotAllocate(t *testing.T) {
	static, err := NewStatic(map[uint64]netip.AddrPort{1000: netip.MustParseAddrPort("10.0.0.1:1")})
	if err != nil {
		t.Fatal(err)
	}
	r := Allow([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Chain{static, EmbeddedIPv4{}})
	known, embedded, unknown := Route{Kind: KindDirectory, Host: 1000}, ipv4(t, "10.0.0.2:2"), Route{Kind: KindDirectory, Host: 1001}
	if n := testing.AllocsPerRun(100, func() {
		_, ok1 := r.Resolve(known)
		_, ok2 := r.Resolve(embedded)
		_, ok3 := r.Resolve(unknown)
		if !ok1 || !ok2 || ok3 {
			t.Error(ok1, ok2, ok3)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
