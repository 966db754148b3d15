package transceiver

import (
	"fmt"
	"net/http"
	"net/netip"
	"testing"
	"time"
)

func testLimiter(t *testing.T, l RateLimit) *limiter {
	t.Helper()
	if err := l.validate(); err != nil {
		t.Fatal(err)
	}
	return newLimiter(l)
}

func TestLimiter(t *testing.T) {
	l := testLimiter(t, RateLimit{PerSecond: 2, Burst: 3})
	now := time.Unix(1000, 0)
	a, b := netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("203.0.113.2")
	for i := range 3 {
		if ok, _ := l.take(now, a); !ok {
			t.Fatalf("request %d of a burst of 3 is refused", i+1)
		}
	}
	if ok, wait := l.take(now, a); ok || wait != 500*time.Millisecond {
		t.Errorf("after the burst: %v, wait %v", ok, wait)
	}
	if ok, _ := l.take(now, netip.MustParseAddr("::ffff:203.0.113.1")); ok {
		t.Error("the mapped form of an address is another source")
	}
	if ok, _ := l.take(now, b); !ok {
		t.Error("another address is refused")
	}
	if ok, _ := l.take(now.Add(-time.Hour), a); ok {
		t.Error("a clock that goes back gives a token")
	}
	now = now.Add(500 * time.Millisecond)
	if ok, _ := l.take(now, a); !ok {
		t.Error("refused although a token came back")
	}
	if ok, _ := l.take(now, a); ok {
		t.Error("two tokens came back in the time for one")
	}
	if ok, _ := (*limiter)(nil).take(now, a); !ok || testLimiter(t, RateLimit{PerSecond: -1}) != nil {
		t.Error("there is a limit although it was switched off")
	}
}

func TestLimiterTakesIPv6NetworksAsOne(t *testing.T) {
	l := testLimiter(t, RateLimit{PerSecond: 1, Burst: 1})
	now := time.Unix(1000, 0)
	for text, want := range map[string]bool{"2001:db8:1:2::1": true, "2001:db8:1:3::1": true} {
		if ok, _ := l.take(now, netip.MustParseAddr(text)); ok != want {
			t.Errorf("%s: %v", text, ok)
		}
	}
	if ok, _ := l.take(now, netip.MustParseAddr("2001:db8:1:2:ffff::9")); ok {
		t.Error("another address of the same /64 is another source")
	}
}

// However many sources there are, the limiter keeps at most MaxSources, and one
// that asks all the time is not forgotten.
func TestLimiterIsBounded(t *testing.T) {
	const most = 100
	l := testLimiter(t, RateLimit{PerSecond: 1, Burst: 10, MaxSources: most})
	now := time.Unix(1000, 0)
	busy := netip.MustParseAddr("203.0.113.1")
	granted := 0
	for i := range 20 * most {
		now = now.Add(time.Millisecond)
		l.take(now, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}))
		if ok, _ := l.take(now, busy); ok {
			granted++
		}
		if n := l.sources(); n > most {
			t.Fatalf("%d sources after %d", n, i)
		}
	}
	if granted > 10+2 {
		t.Errorf("a source had %d tokens in 2 s, with a burst of 10 and 1 a second", granted)
	}
	// What is forgotten after a while would be full anyway.
	now = now.Add(time.Hour)
	l.take(now, busy)
	l.take(now.Add(time.Hour), netip.MustParseAddr("203.0.113.2"))
	if n := l.sources(); n > 2 {
		t.Errorf("%d sources are remembered for hours", n)
	}
}

func TestClientAddr(t *testing.T) {
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for name, c := range map[string]struct {
		remote  string
		header  []string
		trusted []netip.Prefix
		want    string
	}{
		"no proxy":              {"203.0.113.9:1", nil, trusted, "203.0.113.9"},
		"not believed":          {"203.0.113.9:1", []string{"198.51.100.1"}, trusted, "203.0.113.9"},
		"nobody is trusted":     {"10.0.0.1:1", []string{"198.51.100.1"}, nil, "10.0.0.1"},
		"one proxy":             {"10.0.0.1:1", []string{"198.51.100.1"}, trusted, "198.51.100.1"},
		"client lies":           {"10.0.0.1:1", []string{"192.0.2.1, 198.51.100.1"}, trusted, "198.51.100.1"},
		"two proxies":           {"10.0.0.1:1", []string{"192.0.2.1, 198.51.100.1, 10.0.0.2"}, trusted, "198.51.100.1"},
		"two lines":             {"10.0.0.1:1", []string{"192.0.2.1,198.51.100.1", "10.0.0.2"}, trusted, "198.51.100.1"},
		"IPv6, mapped proxy":    {"[::ffff:10.0.0.1]:1", []string{"2001:db8::1"}, trusted, "2001:db8::1"},
		"with ports":            {"[fd00::1]:1", []string{"[2001:db8::1]:443, 10.0.0.2:5000"}, trusted, "2001:db8::1"},
		"in brackets":           {"[fd00::1]:1", []string{"[2001:db8::1]"}, trusted, "2001:db8::1"},
		"nonsense":              {"10.0.0.1:1", []string{"198.51.100.1, unknown, 10.0.0.2"}, trusted, "10.0.0.2"},
		"empty header":          {"10.0.0.1:1", []string{""}, trusted, "10.0.0.1"},
		"only proxies":          {"10.0.0.1:1", []string{"10.0.0.3, 10.0.0.2"}, trusted, "10.0.0.3"},
		"no address, unix":      {"@", []string{"198.51.100.1"}, trusted, "invalid IP"},
		"more hops than anyone": {"10.0.0.1:1", []string{"198.51.100.1" + repeat(", 10.0.0.2", 40)}, trusted, "10.0.0.2"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &http.Request{RemoteAddr: c.remote, Header: http.Header{"X-Forwarded-For": c.header}}
			if got := clientAddr(r, c.trusted).Unmap(); got.String() != c.want {
				t.Errorf("%v, want %s", got, c.want)
			}
		})
	}
}

func repeat(s string, n int) (out string) {
	for range n {
		out += s
	}
	return out
}

func FuzzClientAddr(f *testing.F) {
	f.Add("10.0.0.1:1", "192.0.2.1, [2001:db8::1]:4, 10.0.0.2")
	f.Fuzz(func(t *testing.T, remote, header string) {
		r := &http.Request{RemoteAddr: remote, Header: http.Header{"X-Forwarded-For": {header}}}
		direct, err := netip.ParseAddrPort(remote)
		got := clientAddr(r, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")})
		if err == nil && !netip.MustParsePrefix("10.0.0.0/8").Contains(direct.Addr().Unmap().WithZone("")) && got != direct.Addr() {
			t.Errorf("%q from %q counts as %v", header, remote, got)
		}
	})
}

func TestSignallingLimitsASource(t *testing.T) {
	host, _ := setup(t, nil)
	server := serve(t, host, SignallingConfig{
		Limit:          RateLimit{PerSecond: 0.001, Burst: 2},
		TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
	})
	post := func(source string) response {
		return do(t, "POST", server.URL+"/whip", "text/plain", "", "X-Forwarded-For", source)
	}
	for range 2 {
		if res := post("203.0.113.1"); res.StatusCode != 415 {
			t.Fatalf("%d %s", res.StatusCode, res.body)
		}
	}
	res := post("203.0.113.1")
	if res.StatusCode != 429 || checkProblem(t, res).RetryAfter < 900 {
		t.Errorf("after the burst: %d %s", res.StatusCode, res.body)
	}
	if res := post("203.0.113.2"); res.StatusCode != 415 {
		t.Errorf("another source: %d", res.StatusCode)
	}
	if res := do(t, "OPTIONS", server.URL+"/whip", "", "", "X-Forwarded-For", "203.0.113.1"); res.StatusCode != 204 {
		t.Errorf("a preflight is limited: %d", res.StatusCode)
	}
	if n := host.Stats().Limited; n != 1 {
		t.Errorf("%d counted", n)
	}
}

func BenchmarkLimiter(b *testing.B) {
	l := newLimiter(RateLimit{PerSecond: 1, Burst: 1, MaxSources: 1 << 16})
	now := time.Now()
	for i := 0; b.Loop(); i++ {
		l.take(now, netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}))
	}
	b.ReportMetric(float64(l.sources()), "sources")
}

func ExampleRateLimit() {
	// Ten calls a second from one address, after a burst of thirty.
	cfg := SignallingConfig{
		Limit:          RateLimit{PerSecond: 10, Burst: 30},
		TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
	}
	fmt.Println(cfg.Limit.PerSecond, cfg.TrustedProxies)
	// Output: 10 [10.0.0.0/8]
}
