package geo_test

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"testing"

	"github.com/usher-rtc/usher/transceiver"
	"github.com/usher-rtc/usher/transceiver/geo"
)

func ingress(id uint16, addr string) transceiver.Ingress {
	return transceiver.Ingress{ID: id, Advertise: netip.MustParseAddrPort(addr)}
}

// Three places; each has an even id for IPv6 and an odd one for IPv4.
func fleet() geo.Config {
	return geo.Config{
		Places: []geo.Place{
			{Region: "us-east", At: geo.Coordinates{Latitude: 39, Longitude: -77}, Ingresses: []transceiver.Ingress{ingress(10, "[2001:db8:1::1]:3478"), ingress(11, "192.0.2.1:3478")}},
			{Region: "eu-west", At: geo.Coordinates{Latitude: 53, Longitude: -6}, Ingresses: []transceiver.Ingress{ingress(20, "[2001:db8:2::1]:3478"), ingress(21, "192.0.2.2:3478")}},
			{Region: "ap-east", At: geo.Coordinates{Latitude: 22, Longitude: 114}, Ingresses: []transceiver.Ingress{ingress(30, "[2001:db8:3::1]:3478"), ingress(31, "192.0.2.3:3478")}},
		},
		RegionHeader:   "X-Client-Region",
		Aliases:        map[string]string{"DE": "eu-west", "HK": "AP-East"},
		LatitudeHeader: "X-Client-Lat", LongitudeHeader: "X-Client-Long",
		Prefixes: map[netip.Prefix]string{
			netip.MustParsePrefix("198.51.100.0/24"): "eu-west",
			netip.MustParsePrefix("198.51.0.0/16"):   "ap-east",
			netip.MustParsePrefix("2001:db8:f::/48"): "ap-east",
		},
	}
}

func ids(list []transceiver.Ingress) (out []uint16) {
	for _, in := range list {
		out = append(out, in.ID)
	}
	return out
}

func TestSelect(t *testing.T) {
	s, err := geo.New(fleet())
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, from string
		headers    map[string]string
		want       []uint16
	}{
		{"nothing is known: the default, then its neighbour", "", nil, []uint16{10, 11, 20, 21}},
		{"region", "", map[string]string{"X-Client-Region": "eu-west"}, []uint16{20, 21, 10, 11}},
		{"region in other letters", "", map[string]string{"X-Client-Region": " EU-West"}, []uint16{20, 21, 10, 11}},
		{"alias", "", map[string]string{"X-Client-Region": "hk"}, []uint16{30, 31, 20, 21}},
		{"unknown region", "", map[string]string{"X-Client-Region": "mars"}, []uint16{10, 11, 20, 21}},
		{"coordinates: Singapore", "", map[string]string{"X-Client-Lat": "1.3", "X-Client-Long": "103.8"}, []uint16{30, 31, 20, 21}},
		{"coordinates: Lisbon", "", map[string]string{"X-Client-Lat": "38.7", "X-Client-Long": "-9.1"}, []uint16{20, 21, 10, 11}},
		{"across the date line: Honolulu", "", map[string]string{"X-Client-Lat": "21.3", "X-Client-Long": "-157.9"}, []uint16{10, 11, 30, 31}},
		{"half of the coordinates", "", map[string]string{"X-Client-Lat": "1.3"}, []uint16{10, 11, 20, 21}},
		{"coordinates that are none", "", map[string]string{"X-Client-Lat": "NaN", "X-Client-Long": "103.8"}, []uint16{10, 11, 20, 21}},
		{"off the Earth", "", map[string]string{"X-Client-Lat": "91", "X-Client-Long": "0"}, []uint16{10, 11, 20, 21}},
		{"region before coordinates, which order the rest", "", map[string]string{"X-Client-Region": "us-east", "X-Client-Lat": "1.3", "X-Client-Long": "103.8"}, []uint16{10, 11, 30, 31}},
		{"prefix", "198.51.7.1:9", nil, []uint16{30, 31, 20, 21}},
		{"the longest prefix", "198.51.100.1:9", nil, []uint16{20, 21, 10, 11}},
		{"mapped address", "[::ffff:198.51.100.1]:9", nil, []uint16{20, 21, 10, 11}},
		{"IPv6 prefix", "[2001:db8:f::5]:9", nil, []uint16{30, 31, 20, 21}},
		{"coordinates before prefix", "198.51.7.1:9", map[string]string{"X-Client-Lat": "38.7", "X-Client-Long": "-9.1"}, []uint16{20, 21, 10, 11}},
		{"no address", "@", nil, []uint16{10, 11, 20, 21}},
	} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		if tc.from != "" {
			r.RemoteAddr = tc.from
		}
		for k, v := range tc.headers {
			r.Header.Set(k, v)
		}
		if got := ids(s.Select(r)); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestCombinedHeaderAndForwardedAddress(t *testing.T) {
	cfg := fleet()
	cfg.LatitudeHeader, cfg.LongitudeHeader = "X-Client-Geo", "x-client-geo"
	cfg.Default, cfg.Most = "ap-east", 1
	cfg.ClientAddr = func(r *http.Request) netip.Addr {
		a, _ := netip.ParseAddr(r.Header.Get("X-Forwarded-For"))
		return a
	}
	s, err := geo.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	if got := ids(s.Select(r)); !slices.Equal(got, []uint16{30, 31}) {
		t.Errorf("default: %v", got)
	}
	r.Header.Set("X-Forwarded-For", "198.51.100.1")
	if got := ids(s.Select(r)); !slices.Equal(got, []uint16{20, 21}) {
		t.Errorf("forwarded address: %v", got)
	}
	r.Header.Set("X-Client-Geo", "40.7, -74.0")
	if got := ids(s.Select(r)); !slices.Equal(got, []uint16{10, 11}) {
		t.Errorf("combined header: %v", got)
	}
}

func TestAvoid(t *testing.T) {
	s, err := geo.New(fleet())
	if err != nil {
		t.Fatal(err)
	}
	c := geo.Client{Region: "eu-west"}
	for _, tc := range []struct{ avoid, want []uint16 }{
		{nil, []uint16{20, 21, 10, 11}},
		{[]uint16{21}, []uint16{10, 11, 30, 31}},
		{[]uint16{99}, []uint16{20, 21, 10, 11}},
		{[]uint16{21, 10}, []uint16{30, 31}},
		{[]uint16{20, 10, 31}, []uint16{20, 21, 10, 11}}, // nowhere else to go
	} {
		if got := ids(s.For(c, tc.avoid...)); !slices.Equal(got, tc.want) {
			t.Errorf("avoiding %v: %v, want %v", tc.avoid, got, tc.want)
		}
	}
	// The caller owns what it gets.
	list := s.For(c)
	list[0].ID = 99
	if got := ids(s.For(c)); got[0] != 20 {
		t.Error("a caller has changed the places")
	}
}

func TestConfig(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*geo.Config)
		field  string
	}{
		"no places":         {func(c *geo.Config) { c.Places = nil }, "Places"},
		"no name":           {func(c *geo.Config) { c.Places[1].Region = "" }, "Places[1].Region"},
		"twice":             {func(c *geo.Config) { c.Places[1].Region = "US-East" }, "Places[1].Region"},
		"nowhere":           {func(c *geo.Config) { c.Places[0].At.Latitude = math.NaN() }, "Places[0].At"},
		"no ingresses":      {func(c *geo.Config) { c.Places[0].Ingresses = nil }, "Places[0].Ingresses"},
		"no id":             {func(c *geo.Config) { c.Places[0].Ingresses[1].ID = 0 }, "Places[0].Ingresses[1]"},
		"an id twice":       {func(c *geo.Config) { c.Places[1].Ingresses[1].ID = 10 }, "Places[1].Ingresses[1].ID"},
		"unknown default":   {func(c *geo.Config) { c.Default = "mars" }, "Default"},
		"too many":          {func(c *geo.Config) { c.Most = 9 }, "Most"},
		"half a pair":       {func(c *geo.Config) { c.LongitudeHeader = "" }, "LongitudeHeader"},
		"alias of nothing":  {func(c *geo.Config) { c.Aliases = map[string]string{"X": "mars"} }, `Aliases["X"]`},
		"prefix of nothing": {func(c *geo.Config) { c.Prefixes = map[netip.Prefix]string{netip.MustParsePrefix("10.0.0.0/8"): "mars"} }, "Prefixes[10.0.0.0/8]"},
		"no prefix":         {func(c *geo.Config) { c.Prefixes = map[netip.Prefix]string{{}: "us-east"} }, "Prefixes[invalid Prefix]"},
	} {
		cfg := fleet()
		tc.change(&cfg)
		_, err := geo.New(cfg)
		var ce *geo.ConfigError
		if !errors.As(err, &ce) || ce.Field != tc.field {
			t.Errorf("%s: %v, want an error about %s", name, err, tc.field)
		}
	}
}

// FuzzLocate throws headers of strangers at a Steering: there is always a place.
func FuzzLocate(f *testing.F) {
	cfg := fleet()
	s, err := geo.New(cfg)
	if err != nil {
		f.Fatal(err)
	}
	f.Add("eu-west", "1.5", "-3", "192.0.2.1:9")
	f.Add("", "1e309", "0x1p-2", "[::1%lo]:9")
	f.Fuzz(func(t *testing.T, region, lat, long, from string) {
		r := &http.Request{Header: http.Header{}, RemoteAddr: from}
		r.Header.Set("X-Client-Region", region)
		r.Header.Set("X-Client-Lat", lat)
		r.Header.Set("X-Client-Long", long)
		if got := s.Select(r); len(got) != 4 {
			t.Fatalf("%v", got)
		}
	})
}

func ExampleSteering() {
	steering, err := geo.New(geo.Config{
		Places: []geo.Place{
			{Region: "us-east", At: geo.Coordinates{Latitude: 39, Longitude: -77}, Ingresses: []transceiver.Ingress{{ID: 1, Advertise: netip.MustParseAddrPort("192.0.2.1:3478")}}},
			{Region: "eu-west", At: geo.Coordinates{Latitude: 53, Longitude: -6}, Ingresses: []transceiver.Ingress{{ID: 2, Advertise: netip.MustParseAddrPort("192.0.2.2:3478")}}},
		},
		LatitudeHeader: "X-Client-Lat", LongitudeHeader: "X-Client-Long",
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	// The Host calls Select for each request: Config.SelectIngresses.
	offer := httptest.NewRequest(http.MethodPost, "/whip", nil)
	offer.Header.Set("X-Client-Lat", "48.8")
	offer.Header.Set("X-Client-Long", "2.3")
	client := steering.Locate(offer)
	fmt.Println(steering.For(client))

	// Later, the relay at ingress 2 is gone: restart ICE onto another one.
	fmt.Println(steering.For(client, 2))
	// Output:
	// [{2 192.0.2.2:3478} {1 192.0.2.1:3478}]
	// [{1 192.0.2.1:3478}]
}
