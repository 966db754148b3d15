package geo

import (
	"cmp"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/usher-rtc/usher/internal/config"
	"github.com/usher-rtc/usher/transceiver"
)

// Steering picks ingresses. It does not change, and all methods are safe for
// concurrent use.
type Steering struct {
	cfg      Config
	places   []Place
	byRegion map[string]int // names and aliases, folded -> index in places
	prefixes []prefix       // longest first
	fallback int
}

type prefix struct {
	netip.Prefix
	place int
}

// New validates the configuration. The error is a *ConfigError.
func New(cfg Config) (*Steering, error) {
	if err := cfg.validate(); err != nil {
		return nil, config.In("geo.Config", err)
	}
	if cfg.Most == 0 {
		cfg.Most = defaultMost
	}
	if cfg.ClientAddr == nil {
		cfg.ClientAddr = remoteAddr
	}
	s := &Steering{cfg: cfg, places: slices.Clone(cfg.Places), byRegion: make(map[string]int)}
	for i := range s.places {
		s.places[i].Ingresses = slices.Clone(s.places[i].Ingresses)
		s.byRegion[fold(s.places[i].Region)] = i
	}
	for alias, region := range cfg.Aliases {
		if _, taken := s.byRegion[fold(alias)]; !taken { // a region's own name goes first
			s.byRegion[fold(alias)] = s.byRegion[fold(region)]
		}
	}
	for p, region := range cfg.Prefixes {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		s.prefixes = append(s.prefixes, prefix{p.Masked(), s.byRegion[fold(region)]})
	}
	slices.SortFunc(s.prefixes, func(a, b prefix) int { return cmp.Compare(b.Bits(), a.Bits()) })
	if cfg.Default != "" {
		s.fallback = s.byRegion[fold(cfg.Default)]
	}
	return s, nil
}

// remoteAddr is the address that a request came from.
func remoteAddr(r *http.Request) netip.Addr {
	ap, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return ap.Addr()
}

// Client is what is known about where a client is. All fields are optional. An
// application keeps it with the session, to choose again without a request.
type Client struct {
	// Region is the name of a place, or an alias.
	Region string
	// At is where the client is, if Located is set.
	At      Coordinates
	Located bool
	// Addr is the client's address.
	Addr netip.Addr
}

// Locate reads from a signalling request what it says about the client. Headers
// with values that mean nothing here are as good as none.
func (s *Steering) Locate(r *http.Request) Client {
	c := Client{Addr: s.cfg.ClientAddr(r)}
	if h := s.cfg.RegionHeader; h != "" {
		if v := r.Header.Get(h); s.hasRegion(v) {
			c.Region = v
		}
	}
	c.At, c.Located = s.coordinates(r.Header)
	return c
}

func (s *Steering) hasRegion(name string) bool {
	_, ok := s.byRegion[fold(name)]
	return ok
}

func (s *Steering) coordinates(h http.Header) (c Coordinates, ok bool) {
	if s.cfg.LatitudeHeader == "" {
		return c, false
	}
	lat, long := h.Get(s.cfg.LatitudeHeader), h.Get(s.cfg.LongitudeHeader)
	if http.CanonicalHeaderKey(s.cfg.LatitudeHeader) == http.CanonicalHeaderKey(s.cfg.LongitudeHeader) {
		lat, long, _ = strings.Cut(lat, ",")
	}
	var err1, err2 error
	c.Latitude, err1 = strconv.ParseFloat(strings.TrimSpace(lat), 64)
	c.Longitude, err2 = strconv.ParseFloat(strings.TrimSpace(long), 64)
	if err1 != nil || err2 != nil || !c.valid() {
		return Coordinates{}, false
	}
	return c, true
}

// Select picks the ingresses for a signalling request. It is a SelectIngresses of
// transceiver.Config.
func (s *Steering) Select(r *http.Request) []transceiver.Ingress { return s.For(s.Locate(r)) }

// For picks the ingresses for a client, of the nearest places, in order of
// preference. Places with an ingress that is to be avoided, by id, come only if
// there are no others: pass SessionStats.Ingress to restart ICE away from it. The
// caller owns the slice.
func (s *Steering) For(c Client, avoid ...uint16) []transceiver.Ingress {
	order := s.order(c)
	shunned := func(place int) bool {
		return slices.ContainsFunc(s.places[place].Ingresses, func(in transceiver.Ingress) bool { return slices.Contains(avoid, in.ID) })
	}
	if len(avoid) > 0 {
		kept := slices.DeleteFunc(slices.Clone(order), shunned)
		if len(kept) > 0 {
			order = kept
		}
	}
	var out []transceiver.Ingress
	for _, i := range order[:min(len(order), s.cfg.Most)] {
		out = append(out, s.places[i].Ingresses...)
	}
	return out
}

// order lists all places, the best first, the others by their distance from the
// client or, if it is not known where that is, from the best.
func (s *Steering) order(c Client) []int {
	first, named := s.place(c)
	at := s.places[first].At
	if c.Located {
		at = c.At
	}
	order := make([]int, len(s.places))
	for i := range order {
		order[i] = i
	}
	rank := func(i int) float64 {
		if i == first && (named || !c.Located) {
			return -1
		}
		return s.places[i].At.distance(at)
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(rank(a), rank(b)) })
	return order
}

// place finds the place that a client is led to by name or address. It reports
// whether the name says so, which counts more than coordinates do.
func (s *Steering) place(c Client) (place int, named bool) {
	if i, ok := s.byRegion[fold(c.Region)]; ok && c.Region != "" {
		return i, true
	}
	addr := c.Addr.Unmap()
	for _, p := range s.prefixes {
		if p.Contains(addr) {
			return p.place, false
		}
	}
	return s.fallback, false
}
