package cluster

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/usher-rtc/usher/internal/config"
)

// DNSConfig configures a [DNS] directory.
type DNSConfig struct {
	// Pattern is the name of a cluster's relays with %d for the cluster's number,
	// for example "relays-%d.media.example"; each address of the name is a relay.
	// It is taken as an absolute name: search domains do not apply.
	Pattern string
	// Port is the trunk port of a relay's first worker; DNS says only addresses.
	Port uint16
	// Workers is how many workers each relay has, on ports from Port on. 0 means 1.
	Workers int
	// Clusters are looked up from the start on. Others are, once the first packet
	// for them has come. A relay that starts greets only clusters it knows, and it
	// is told about flows only by those.
	Clusters []uint16
	// Network is "ip4", "ip6", or "ip" for both; empty stands for "ip".
	Network string
	// Refresh is the time between two look-ups of a cluster. 0 means 30 seconds.
	Refresh time.Duration
	// NegativeTTL is the time to the next look-up of a cluster without address,
	// and after a failure. 0 means 10 seconds.
	NegativeTTL time.Duration
	// Timeout of one look-up. 0 means 5 seconds.
	Timeout time.Duration
	// Lookup asks DNS; nil means net.DefaultResolver.LookupNetIP. It must heed the
	// context. An error that is a *net.DNSError with IsNotFound says that the
	// cluster has no relays; any other error says nothing, and the last addresses
	// stay in use.
	Lookup func(ctx context.Context, network, name string) ([]netip.Addr, error)
	// Logger for failing look-ups, at debug level; nil means slog.Default().
	Logger *slog.Logger
}

func (c *DNSConfig) setDefaults() error {
	if err := config.DNSPattern("Pattern", &c.Pattern); err != nil {
		return err
	}
	if c.Workers == 0 {
		c.Workers = 1
	}
	switch {
	case c.Port == 0:
		return config.Errorf("Port", "is 0; name the trunk port of the relays")
	case c.Workers < 0 || c.Workers > MaxAddresses:
		return config.Errorf("Workers", "%d is not in 0..%d", c.Workers, MaxAddresses)
	case int(c.Port)+c.Workers-1 > 65535:
		return config.Errorf("Workers", "no room for %d ports from %d on", c.Workers, c.Port)
	}
	for i, id := range c.Clusters {
		if id > MaxID {
			return config.Errorf("Clusters["+strconv.Itoa(i)+"]", "the number of a cluster is at most %d", MaxID)
		}
	}
	err := cmp.Or(
		config.DNSNetwork("Network", &c.Network),
		config.Default("Refresh", &c.Refresh, 30*time.Second),
		config.Default("NegativeTTL", &c.NegativeTTL, 10*time.Second),
		config.Default("Timeout", &c.Timeout, 5*time.Second),
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

// DNS is a [Directory] that looks clusters up in the background, by a name with
// their number in it. A cluster that it is asked about for the first time is
// queued and unknown meanwhile: a client repeats its check, and the next one finds
// the answer. From then on it is looked up again and again. If DNS fails, the last
// addresses stay in use.
type DNS struct {
	cfg    DNSConfig
	cancel context.CancelFunc
	wg     sync.WaitGroup
	table  [MaxID + 1]atomic.Pointer[[]netip.AddrPort]
	asked  [MaxID + 1]atomic.Bool
	ask    chan uint16 // never fills: each cluster is asked for once
}

// NewDNS starts a directory. The caller closes it. The error is a [*ConfigError].
func NewDNS(cfg DNSConfig) (*DNS, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, config.In("cluster.DNSConfig", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	d := &DNS{cfg: cfg, cancel: cancel, ask: make(chan uint16, MaxID+1)}
	for _, id := range cfg.Clusters {
		d.want(id)
	}
	d.wg.Go(func() {
		for {
			select {
			case id := <-d.ask:
				d.wg.Go(func() { d.follow(ctx, id) })
			case <-ctx.Done():
				return
			}
		}
	})
	return d, nil
}

// Close ends all look-ups and waits. The last addresses stay in use. It always
// returns nil, and may be called again.
func (d *DNS) Close() error {
	d.cancel()
	d.wg.Wait()
	return nil
}

func (d *DNS) want(id uint16) {
	// A load first: the cache line stays shared.
	if !d.asked[id].Load() && d.asked[id].CompareAndSwap(false, true) {
		d.ask <- id
	}
}

// Addresses implements [Directory].
func (d *DNS) Addresses(cluster uint16) []netip.AddrPort {
	if cluster > MaxID {
		return nil
	}
	if list := d.table[cluster].Load(); list != nil {
		return *list
	}
	d.want(cluster)
	return nil
}

// Clusters implements [Directory].
func (d *DNS) Clusters() []uint16 {
	var ids []uint16
	for id := range d.table {
		if list := d.table[id].Load(); list != nil && len(*list) > 0 {
			ids = append(ids, uint16(id))
		}
	}
	return ids
}

// follow keeps one cluster up to date.
func (d *DNS) follow(ctx context.Context, id uint16) {
	name := strings.Replace(d.cfg.Pattern, "%d", strconv.Itoa(int(id)), 1)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		timer.Reset(d.lookup(ctx, id, name))
	}
}

// lookup asks once and returns the time to the next look-up.
func (d *DNS) lookup(ctx context.Context, id uint16, name string) time.Duration {
	one, cancel := context.WithTimeout(ctx, d.cfg.Timeout)
	defer cancel()
	addrs, err := d.cfg.Lookup(one, d.cfg.Network, name)
	var notFound *net.DNSError
	if err != nil && (!errors.As(err, &notFound) || !notFound.IsNotFound) {
		d.cfg.Logger.Debug("look-up of a cluster failed", "cluster", id, "error", err)
		return d.cfg.NegativeTTL
	}
	list := d.expand(addrs)
	if old := d.table[id].Load(); old == nil || !slices.Equal(*old, list) {
		d.table[id].Store(&list)
	}
	if len(list) == 0 {
		return d.cfg.NegativeTTL
	}
	return d.cfg.Refresh
}

// expand makes the list of all workers of all relays.
func (d *DNS) expand(addrs []netip.Addr) []netip.AddrPort {
	relays := make([]netip.AddrPort, 0, len(addrs))
	for _, a := range addrs {
		if ap := unmap(netip.AddrPortFrom(a, d.cfg.Port)); usable(ap) {
			relays = append(relays, ap)
		}
	}
	relays = sorted(relays)
	var list []netip.AddrPort
	for _, r := range relays[:min(len(relays), MaxAddresses/d.cfg.Workers)] {
		for i := range d.cfg.Workers {
			list = append(list, netip.AddrPortFrom(r.Addr(), d.cfg.Port+uint16(i)))
		}
	}
	return list
}
