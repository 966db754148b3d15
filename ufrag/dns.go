package ufrag

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/usher-rtc/usher/internal/config"
)

// DNSConfig configures a [DNS] resolver.
type DNSConfig struct {
	// Pattern is the name of a host with %d for its directory id, for example
	// "transceiver-%d.transceivers.media.svc.cluster.local". It is taken as an
	// absolute name: search domains do not apply.
	//
	// In Kubernetes, a headless Service drops Pods that are not ready from DNS,
	// those that drain too; set publishNotReadyAddresses on it.
	Pattern string
	// Port is the UDP port of every host; DNS says only the address.
	Port uint16
	// Network is "ip4", "ip6", or "ip" for both; empty stands for "ip".
	Network string
	// Refresh is the time between two look-ups of a host. 0 stands for 30 seconds.
	Refresh time.Duration
	// NegativeTTL is how long a host without address is remembered as such, and
	// the time to the next try after a failure. 0 stands for 10 seconds.
	NegativeTTL time.Duration
	// Forget is how long a host that nobody asks about is kept up to date. 0
	// stands for 10 minutes.
	Forget time.Duration
	// Timeout of one look-up. 0 stands for 5 seconds.
	Timeout time.Duration
	// MaxHosts bounds the hosts that are remembered, the ones without address and
	// the ones that wait for a look-up included. 0 stands for 4,096.
	MaxHosts int
	// Concurrency is the number of look-ups under way at a time. 0 stands for 4.
	Concurrency int
	// Lookup asks DNS; nil stands for net.DefaultResolver.LookupNetIP. It must
	// heed the context. An error that is a *net.DNSError with IsNotFound says that
	// the host has no address; any other error says nothing, and the last address
	// stays in use.
	Lookup func(ctx context.Context, network, name string) ([]netip.Addr, error)
	// Logger for failing look-ups, at debug level; nil stands for slog.Default().
	Logger *slog.Logger
}

func (c *DNSConfig) setDefaults() error {
	if err := config.DNSPattern("Pattern", &c.Pattern); err != nil {
		return err
	}
	if c.Port == 0 {
		return config.Errorf("Port", "is 0; name the UDP port of the hosts")
	}
	err := cmp.Or(
		config.DNSNetwork("Network", &c.Network),
		config.Default("Refresh", &c.Refresh, 30*time.Second),
		config.Default("NegativeTTL", &c.NegativeTTL, 10*time.Second),
		config.Default("Forget", &c.Forget, 10*time.Minute),
		config.Default("Timeout", &c.Timeout, 5*time.Second),
		config.Default("MaxHosts", &c.MaxHosts, 4096),
		config.Default("Concurrency", &c.Concurrency, 4),
	)
	if err != nil {
		return err
	}
	if c.Lookup == nil {
		c.Lookup = net.DefaultResolver.LookupNetIP
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}

// DNS is a [Resolver] for [KindDirectory] routes that looks hosts up in the
// background, by a name with their id in it. An id that it is asked about for the
// first time is queued and unknown meanwhile: a client repeats its check, and the
// next one finds the answer. From then on the host is looked up again and again
// while anybody asks about it. A host without address is remembered as such, and
// everything is bounded, so that ids which do not exist cannot flood DNS. If DNS
// fails, the last addresses stay in use.
type DNS struct {
	cfg    DNSConfig
	cancel context.CancelFunc
	wg     sync.WaitGroup

	snapshot atomic.Pointer[map[uint64]*dnsHost]
	ask      chan uint64 // ids that are not in the snapshot
	work     chan dnsJob // never fills: a host has at most one job
	found    chan dnsResult
	refused  atomic.Uint64

	// Owned by run.
	hosts map[uint64]*dnsState
}

// dnsHost is what Resolve sees.
type dnsHost struct {
	addr  netip.AddrPort // the zero value: no address, or none yet
	asked *atomic.Bool   // that of the state: a change of address does not lose it
}

type dnsState struct {
	host      *dnsHost
	asked     atomic.Bool // since run looked last
	busy      bool        // a look-up is queued or under way
	due       time.Time
	lastAsked time.Time
}

type dnsJob struct {
	id   uint64
	name string
}

type dnsResult struct {
	id    uint64
	addrs []netip.Addr
	err   error
}

// askQueue is a moment's worth of new ids: run takes them off at once.
const askQueue = 256

// NewDNS starts a resolver. The caller closes it. The error is a [*ConfigError].
func NewDNS(cfg DNSConfig) (*DNS, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, config.In("ufrag.DNSConfig", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	d := &DNS{
		cfg:    cfg,
		cancel: cancel,
		ask:    make(chan uint64, askQueue),
		work:   make(chan dnsJob, cfg.MaxHosts),
		found:  make(chan dnsResult),
		hosts:  make(map[uint64]*dnsState),
	}
	d.snapshot.Store(&map[uint64]*dnsHost{})
	d.wg.Go(func() { d.run(ctx) })
	for range cfg.Concurrency {
		d.wg.Go(func() { d.lookups(ctx) })
	}
	return d, nil
}

// Close ends all look-ups and waits. The last addresses stay in use. It always
// returns nil, and may be called again.
func (d *DNS) Close() error {
	d.cancel()
	d.wg.Wait()
	return nil
}

// Resolve implements [Resolver].
func (d *DNS) Resolve(r Route) (netip.AddrPort, bool) {
	if r.Kind != KindDirectory {
		return netip.AddrPort{}, false
	}
	h := (*d.snapshot.Load())[r.Host]
	if h == nil {
		select {
		case d.ask <- r.Host:
		default:
			d.refused.Add(1)
		}
		return netip.AddrPort{}, false
	}
	if !h.asked.Load() { // a load first: the cache line stays shared
		h.asked.Store(true)
	}
	return h.addr, h.addr.IsValid()
}

// DNSStats counts what a [DNS] resolver holds and refused.
type DNSStats struct {
	// Hosts with an address.
	Hosts int
	// Negative is the number of hosts without address, and of those that wait for
	// their first look-up.
	Negative int
	// Refused counts questions about unknown ids that were not queued, because of
	// MaxHosts or because too many came at once.
	Refused uint64
}

// Stats returns a snapshot of the counters.
func (d *DNS) Stats() DNSStats {
	s := DNSStats{Refused: d.refused.Load()}
	for _, h := range *d.snapshot.Load() {
		if h.addr.IsValid() {
			s.Hosts++
		} else {
			s.Negative++
		}
	}
	return s
}

// run owns the table: it takes questions and answers, starts look-ups that are
// due, and publishes.
func (d *DNS) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		changed := false
		select {
		case <-ctx.Done():
			return
		case id := <-d.ask:
			changed = d.add(id)
		case res := <-d.found:
			changed = d.apply(res)
		case <-timer.C:
		}
		changed = d.drain() || changed
		next, forgotten := d.startDue(time.Now())
		if changed || forgotten {
			d.publish()
		}
		timer.Reset(next)
	}
}

// drain takes what else has come, so that a burst is published once. It takes a
// bounded number, lest a flood of questions keep answers from being published.
func (d *DNS) drain() (changed bool) {
	for range askQueue {
		select {
		case id := <-d.ask:
			changed = d.add(id) || changed
		case res := <-d.found:
			changed = d.apply(res) || changed
		default:
			return changed
		}
	}
	return changed
}

func (d *DNS) add(id uint64) (changed bool) {
	if d.hosts[id] != nil {
		return false // asked again before the snapshot was out
	}
	if len(d.hosts) >= d.cfg.MaxHosts || id > maxHost {
		d.refused.Add(1)
		return false
	}
	now := time.Now()
	s := &dnsState{due: now, lastAsked: now}
	s.host = &dnsHost{asked: &s.asked}
	d.hosts[id] = s
	return true
}

func (d *DNS) apply(res dnsResult) (changed bool) {
	s := d.hosts[res.id]
	s.busy = false
	now := time.Now()
	s.due = now.Add(d.cfg.NegativeTTL)
	addr := s.host.addr
	var notFound *net.DNSError
	switch {
	case res.err == nil:
		addr = d.pick(res.addrs, addr)
	case errors.As(res.err, &notFound) && notFound.IsNotFound:
		addr = netip.AddrPort{}
	default:
		d.cfg.Logger.Debug("look-up of a host failed", "host", res.id, "error", res.err)
		return false
	}
	if addr.IsValid() {
		s.due = now.Add(d.cfg.Refresh)
	}
	if addr == s.host.addr {
		return false
	}
	s.host = &dnsHost{addr: addr, asked: &s.asked}
	return true
}

// pick chooses the address of a host, which should have one: the present one if
// it is still there, else the smallest, so that all relays choose the same.
func (d *DNS) pick(addrs []netip.Addr, present netip.AddrPort) netip.AddrPort {
	var best netip.AddrPort
	for _, a := range addrs {
		ap := netip.AddrPortFrom(a.Unmap(), d.cfg.Port)
		if ap == present {
			return present
		}
		if usable(ap) && (!best.IsValid() || ap.Addr().Less(best.Addr())) {
			best = ap
		}
	}
	return best
}

// startDue queues the look-ups that are due, drops hosts that nobody asks about,
// and returns the time to the next that is due.
func (d *DNS) startDue(now time.Time) (next time.Duration, forgotten bool) {
	next = d.cfg.Refresh
	for id, s := range d.hosts {
		if s.busy {
			continue
		}
		wait := s.due.Sub(now)
		if wait > 0 {
			next = min(next, wait)
			continue
		}
		if s.asked.Swap(false) {
			s.lastAsked = now
		}
		keep := d.cfg.Forget
		if !s.host.addr.IsValid() {
			keep = d.cfg.NegativeTTL
		}
		if idle := now.Sub(s.lastAsked); idle >= keep {
			delete(d.hosts, id)
			forgotten = true
			continue
		}
		s.busy = true
		d.work <- dnsJob{id, strings.Replace(d.cfg.Pattern, "%d", strconv.FormatUint(id, 10), 1)}
	}
	return next, forgotten
}

func (d *DNS) publish() {
	snapshot := make(map[uint64]*dnsHost, len(d.hosts))
	for id, s := range d.hosts {
		snapshot[id] = s.host
	}
	d.snapshot.Store(&snapshot)
}

func (d *DNS) lookups(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case job := <-d.work:
			one, cancel := context.WithTimeout(ctx, d.cfg.Timeout)
			addrs, err := d.cfg.Lookup(one, d.cfg.Network, job.name)
			cancel()
			select {
			case d.found <- dnsResult{job.id, addrs, err}:
			case <-ctx.Done():
				return
			}
		}
	}
}
