package geo

import (
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"strings"

	"github.com/usher-rtc/usher/internal/config"
	"github.com/usher-rtc/usher/transceiver"
)

// ConfigError is what New returns for a bad Config. Find it with errors.As.
type ConfigError = config.Error

// Coordinates are a point on Earth, in degrees: north and east are positive.
type Coordinates struct {
	Latitude, Longitude float64
}

func (c Coordinates) valid() bool {
	return math.Abs(c.Latitude) <= 90 && math.Abs(c.Longitude) <= 180 // false for NaN
}

// distance is the angle between two points in radians, by the haversine formula:
// the Earth is a sphere as far as choosing a relay goes.
func (c Coordinates) distance(o Coordinates) float64 {
	rad := func(degrees float64) float64 { return degrees * math.Pi / 180 }
	sq := func(x float64) float64 { return x * x }
	a := sq(math.Sin(rad(o.Latitude-c.Latitude)/2)) +
		math.Cos(rad(c.Latitude))*math.Cos(rad(o.Latitude))*sq(math.Sin(rad(o.Longitude-c.Longitude)/2))
	return 2 * math.Asin(math.Sqrt(min(a, 1)))
}

// Place is where relays are.
type Place struct {
	// Region is its name, for example "eu-west". Names are compared without regard
	// to case.
	Region string
	// At is where it is.
	At Coordinates
	// Ingresses are the public addresses there in order of preference, IPv6 and
	// IPv4, each with the id that the relays have for it.
	Ingresses []transceiver.Ingress
}

// Config describes a Steering. Places is required; all other fields have defaults.
type Config struct {
	// Places are all there are. The order decides between equals.
	Places []Place
	// Default is the region of clients about which nothing is known. Empty means
	// that of the first place.
	Default string
	// Most is how many places are in one answer. 0 means 2. Each makes more
	// candidates that a client checks.
	Most int

	// RegionHeader names the header with the client's region, for example
	// "X-Client-Region". Empty means none.
	RegionHeader string
	// Aliases are other values of the header with the region each stands for: a
	// country's code for example. They are compared without regard to case.
	Aliases map[string]string
	// LatitudeHeader and LongitudeHeader name the headers with the client's
	// coordinates in degrees. If both are the same, that header has both, with a
	// comma between. Empty means none.
	LatitudeHeader, LongitudeHeader string
	// Prefixes are regions of address prefixes; the longest that has the client's
	// address counts.
	Prefixes map[netip.Prefix]string
	// ClientAddr finds the client's address in a request, from X-Forwarded-For for
	// example, if what is in front can be trusted with it. nil means the address
	// that the request came from.
	ClientAddr func(*http.Request) netip.Addr
}

const (
	defaultMost = 2
	// maxMost keeps answers short: a client checks every candidate.
	maxMost = 8
)

func (c *Config) validate() error {
	if len(c.Places) == 0 {
		return config.Errorf("Places", "need at least one")
	}
	regions := make(map[string]bool)
	ids := make(map[uint16]string)
	for i, p := range c.Places {
		field := fmt.Sprintf("Places[%d]", i)
		switch {
		case p.Region == "":
			return config.Errorf(field+".Region", "is empty")
		case regions[fold(p.Region)]:
			return config.Errorf(field+".Region", "%q is given twice", p.Region)
		case !p.At.valid():
			return config.Errorf(field+".At", "%v is not a point on Earth: ±90 and ±180 degrees", p.At)
		case len(p.Ingresses) == 0:
			return config.Errorf(field+".Ingresses", "need at least one")
		}
		regions[fold(p.Region)] = true
		for j, in := range p.Ingresses {
			sub := fmt.Sprintf("%s.Ingresses[%d]", field, j)
			if in.ID == 0 || !in.Advertise.IsValid() || in.Advertise.Port() == 0 {
				return config.Errorf(sub, "needs an id, an address and a port")
			}
			if other, ok := ids[in.ID]; ok {
				return config.Errorf(sub+".ID", "%d is also the id of one in %s", in.ID, other)
			}
			ids[in.ID] = p.Region
		}
	}
	known := func(field, region string) error {
		if !regions[fold(region)] {
			return config.Errorf(field, "there is no region %q in Places", region)
		}
		return nil
	}
	if c.Default != "" {
		if err := known("Default", c.Default); err != nil {
			return err
		}
	}
	if c.Most < 0 || c.Most > maxMost {
		return config.Errorf("Most", "%d is not in 0..%d", c.Most, maxMost)
	}
	if (c.LatitudeHeader == "") != (c.LongitudeHeader == "") {
		return config.Errorf("LongitudeHeader", "LatitudeHeader and LongitudeHeader go together")
	}
	for alias, region := range c.Aliases {
		if err := known(fmt.Sprintf("Aliases[%q]", alias), region); err != nil {
			return err
		}
	}
	for p, region := range c.Prefixes {
		field := fmt.Sprintf("Prefixes[%v]", p)
		if !p.IsValid() {
			return config.Errorf(field, "not a valid prefix")
		}
		if err := known(field, region); err != nil {
			return err
		}
	}
	return nil
}

func fold(name string) string { return strings.ToLower(strings.TrimSpace(name)) }
