package transceiver

import (
	"cmp"
	"math"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/usher-rtc/usher/internal/config"
)

// RateLimit bounds the signalling of one source: a client's IPv4 address, or
// the /64 that its IPv6 address is in. Every request takes one token of its
// source, and so does every offer over a WebSocket. The zero value of every
// field is its documented default.
type RateLimit struct {
	// PerSecond is how many tokens a source gets a second. 0 means 50; a
	// negative value switches the limit off.
	PerSecond float64
	// Burst is how many tokens a source may save up. 0 means 500, which many
	// people behind one address need when they all call at once.
	Burst int
	// MaxSources bounds the memory: it is how many sources are remembered. When
	// more than half of them call within the time that a burst takes to come
	// back, the oldest are forgotten, that is, not limited. 0 means 65,536;
	// each costs about 100 bytes.
	MaxSources int
}

const (
	defaultPerSecond  = 50
	defaultBurst      = 500
	defaultMaxSources = 1 << 16
	maxForwarded      = 32 // hops of X-Forwarded-For that are read
)

func (l *RateLimit) validate() error {
	if math.IsNaN(l.PerSecond) || math.IsInf(l.PerSecond, 0) {
		return config.Errorf("Limit.PerSecond", "%v is no rate", l.PerSecond)
	}
	set(&l.PerSecond, defaultPerSecond)
	return cmp.Or(
		config.Default("Limit.Burst", &l.Burst, defaultBurst),
		config.Default("Limit.MaxSources", &l.MaxSources, defaultMaxSources),
	)
}

// limiter is a token bucket for each source, in two generations: a bucket that
// nobody asked for while a generation lasted is full again, and forgotten.
type limiter struct {
	rate  float64
	burst float64
	half  int           // sources in one generation
	life  time.Duration // of a generation: what an empty bucket takes to fill

	mu            sync.Mutex
	since         time.Time
	young, former map[netip.Prefix]bucket
}

type bucket struct {
	tokens float64
	at     time.Time
}

// newLimiter returns nil for no limit.
func newLimiter(l RateLimit) *limiter {
	if l.PerSecond < 0 {
		return nil
	}
	return &limiter{
		rate: l.PerSecond, burst: float64(l.Burst), half: max(1, l.MaxSources/2),
		life:  time.Duration(min(float64(l.Burst)/l.PerSecond, 1e9) * float64(time.Second)),
		young: make(map[netip.Prefix]bucket),
	}
}

// take takes one token and reports whether there was one; if not, wait is how
// long it takes until there is.
func (l *limiter) take(now time.Time, a netip.Addr) (ok bool, wait time.Duration) {
	if l == nil {
		return true, 0
	}
	key := source(a)
	l.mu.Lock()
	defer l.mu.Unlock()
	_, known := l.young[key]
	if !known && len(l.young) >= l.half || now.Sub(l.since) > l.life {
		l.young, l.former, l.since = make(map[netip.Prefix]bucket), l.young, now
	}
	b, known := l.young[key]
	if !known {
		if b, known = l.former[key]; !known {
			b = bucket{l.burst, now}
		}
	}
	if passed := now.Sub(b.at); passed > 0 { // a clock that went back gives nothing and takes nothing
		b.tokens = min(l.burst, b.tokens+passed.Seconds()*l.rate)
		b.at = now
	}
	if b.tokens >= 1 {
		b.tokens--
		ok = true
	} else {
		wait = time.Duration((1 - b.tokens) / l.rate * float64(time.Second))
	}
	l.young[key] = b
	return ok, wait
}

// sources returns how many buckets there are.
func (l *limiter) sources() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.young) + len(l.former)
}

// source is what counts as one: an IPv6 client has a whole /64 to itself. All
// without an address, on a unix socket for example, are one source.
func source(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := 32
	if a.Is6() {
		bits = 64
	}
	p, _ := a.Prefix(bits)
	return p
}

// clientAddr returns the address that a request came from. X-Forwarded-For is
// believed as far as trusted proxies wrote it: its last entry was added by the
// one that sent the request, the entry before by the one that is named in the
// last, and so on to the first that is no trusted proxy.
func clientAddr(r *http.Request, trusted []netip.Prefix) netip.Addr {
	var addr netip.Addr
	if ap, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		addr = ap.Addr()
	}
	if len(trusted) == 0 || !contains(trusted, addr) {
		return addr
	}
	lines := r.Header.Values("X-Forwarded-For")
	for i, read := len(lines)-1, 0; i >= 0; i-- {
		for rest, more := lines[i], true; more; read++ {
			if read == maxForwarded {
				return addr
			}
			var entry string
			if at := strings.LastIndexByte(rest, ','); at >= 0 {
				rest, entry = rest[:at], rest[at+1:]
			} else {
				rest, entry, more = "", rest, false
			}
			next, ok := forwarded(strings.TrimSpace(entry))
			if !ok {
				return addr
			}
			if addr = next; !contains(trusted, addr) {
				return addr
			}
		}
	}
	return addr
}

// forwarded reads an entry of X-Forwarded-For: an address, which some proxies
// write with its port, and an IPv6 address then in brackets.
func forwarded(entry string) (netip.Addr, bool) {
	if ap, err := netip.ParseAddrPort(entry); err == nil {
		return ap.Addr(), true
	}
	entry = strings.TrimSuffix(strings.TrimPrefix(entry, "["), "]")
	a, err := netip.ParseAddr(entry)
	return a, err == nil
}
