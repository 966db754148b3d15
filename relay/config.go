package relay

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"time"

	"github.com/usher-rtc/usher/cluster"
	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/config"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/ufrag"
)

// ConfigError is returned by [New] for a bad configuration and names the field.
type ConfigError = config.Error

// Ingress is an address that clients send to.
type Ingress struct {
	// ID stands for the advertised address in frames and in the flow store; it
	// is the same at every relay behind that address, and 1 to 65,535: Hosts have no
	// use for 0.
	ID uint16
	// Listen is the local address of this relay's sockets. Port 0 takes any. On
	// a wildcard address replies leave from the address the client sent to. An
	// address that any other socket has is refused.
	Listen netip.AddrPort
	// Advertise is what clients use, when a balancer translates addresses. The
	// zero value means Listen. The relay only reports it.
	Advertise netip.AddrPort
}

// Config describes a Server. Ingresses, Codec, TrunkKeys and AllowUpstream are
// required; all other fields have defaults.
type Config struct {
	// Ingresses are the public addresses, each with an id of its own. A relay with
	// AllowEdges needs none: then it only passes on what edges send.
	Ingresses []Ingress
	// Trunk is the local address for the link to Hosts. Worker i uses port+i;
	// port 0 takes any, but then Hosts cannot teach a restarted relay its flows
	// before it has heard from their clients. The zero value is [::]:0.
	Trunk netip.AddrPort
	// Peers are Hosts to say hello to at the start, so that they announce
	// flows that this relay had before a restart. Optional: other Hosts are met
	// when one side sends.
	Peers []netip.AddrPort
	// Workers is the number of threads and of sockets for each ingress. 0 means
	// GOMAXPROCS on Linux and 1 elsewhere. More than one needs Linux. Keep it the
	// same over restarts: it decides which trunk ports exist.
	Workers int
	// Cluster is this relay's cluster, 0 to 4095; ufrags of others are dropped,
	// unless Clusters finds a relay there.
	Cluster uint16

	// Codec decodes ufrags and derives passwords.
	Codec ufrag.Codec
	// TrunkKeys authenticate the link to Hosts. Not needed without AllowUpstream.
	TrunkKeys *ufrag.Keyring
	// Resolver finds the address of a route's host. nil means
	// ufrag.EmbeddedIPv4.
	Resolver ufrag.Resolver
	// AllowUpstream lists the networks of Hosts. The relay sends to and accepts
	// frames from no other address, whatever a ufrag says. It may be empty at a
	// relay with Clusters, which then has no Hosts and no cluster of its own.
	AllowUpstream []netip.Prefix

	// Clusters finds the relays of other clusters: this relay, the edge, sends
	// their clients' packets there. nil for none. Close it after the Server.
	Clusters cluster.Directory
	// AllowClusters lists the networks of other clusters' relays, and of those of
	// their Hosts that answer directly: nothing goes to another address, whatever
	// Clusters says, and only frames from there reach own clients. Required with
	// Clusters.
	AllowClusters []netip.Prefix
	// AllowEdges lists the networks of relays whose clients' packets this relay
	// passes on. Empty for none.
	AllowEdges []netip.Prefix
	// EdgeKeys authenticate the link between relays. Required with Clusters or
	// AllowEdges. They are not those of the Hosts: an edge in another network must
	// not be able to speak as one.
	EdgeKeys *ufrag.Keyring

	// SkipIntegrity turns off the check of MESSAGE-INTEGRITY when a flow is made
	// or contested. Only for codecs that cannot derive the password.
	SkipIntegrity bool
	// SkipLearning makes the relay learn no flow from a validated frame. It costs
	// recovery time and nothing else: a relay that has lost its flows then waits for
	// announcements, the flow store or the clients' checks. It is there for drills
	// that show what learning is worth.
	SkipLearning bool

	// MaxFlows is the most flows of all workers together, each having an equal
	// share. 0 means flowtable.DefaultMaxFlows. A quarter may be unconfirmed.
	MaxFlows int
	// IdleTimeout ends a confirmed flow without traffic from its Host. 0 means
	// flowtable.DefaultIdleTimeout (30 s).
	IdleTimeout time.Duration
	// UnconfirmedTimeout is the same for a flow whose client has not yet
	// answered its Host. 0 means flowtable.DefaultUnconfirmedTimeout (10 s).
	UnconfirmedTimeout time.Duration

	// Store remembers flows for other relays and for this one's next start. nil
	// for none: flows then come back with their Hosts' announcements or with the
	// clients' next checks. It is not asked in the packet path, and may fail in any
	// way. Close it after the Server.
	Store flowtable.FlowStore
	// StoreKeys authenticate the values in the store. All relays that share a store
	// need the same. nil means TrunkKeys.
	StoreKeys *ufrag.Keyring
	// StoreTTL is the life of an entry, and so the longest outage after which the
	// store still helps: 3 s to 24 h. Live flows renew theirs four times within it.
	// 0 means 10 minutes.
	StoreTTL time.Duration
	// StoreTimeout is how long packets of an unknown client wait for the store, and
	// the deadline of a question: 1 ms to 1 s. 0 means 50 ms.
	StoreTimeout time.Duration
	// StoreLookups is the most questions to the store a second, of all workers
	// together: up to 100,000. 0 means 1,000. A quarter of it may be about one IP
	// address.
	StoreLookups int

	// TrunkMTU is the most bytes of UDP payload in a datagram with several
	// frames: 576 to 65507. 0 means 1,400. A larger packet travels alone.
	TrunkMTU int
	// MaxBatchDelay makes a busy worker read at most once in this long, up to
	// 10 ms: fewer system calls and fuller datagrams for a delay in both
	// directions under load. A packet that comes alone is never delayed. 0 takes
	// what is there. The portable path, which reads one packet a call, ignores it.
	MaxBatchDelay time.Duration
	// ReadBuffer is the kernel's receive buffer in bytes to ask for, for each
	// socket. 0 means 4 MiB. Less granted is logged once.
	ReadBuffer int

	// Handover is the path of a unix socket for upgrades that lose no packet: "" for
	// none. If a relay listens there, New gets all its sockets, and Serve its flows
	// and its place in the trunk's conversations; that relay's Serve then returns
	// ErrHandedOver. Until it has let go, it takes up its work again if anything
	// fails. If nobody listens there, New opens sockets of its own. In both cases
	// this relay then listens at the path for its successor, with permission for
	// this user alone.
	//
	// Cluster, Workers, Trunk and Ingresses must be the same in both. Everything
	// else may change; flows that the new configuration does not allow are left
	// behind. Packets wait in the kernel meanwhile, as many as ReadBuffer holds.
	// It needs Linux.
	Handover string
	// Sockets are open UDP sockets to use for Ingresses and Trunk, such as those of
	// SystemdSockets: one for each worker of an ingress (SO_REUSEPORT if there are
	// several), one for the trunk of a worker. An ingress or trunk without any is
	// opened as usual. A relay that takes over from another one uses that one's,
	// among which these must be. The caller closes them after New.
	Sockets []Socket

	// Logger gets a few lines; nil means slog.Default(). What strangers can
	// cause is rate-limited.
	Logger *slog.Logger
	// Trace observes single flows and drops; nil for none.
	Trace *Trace
}

const (
	defaultReadBuffer = 4 << 20 // 80 ms of full-size video at 400,000 packets a second
	minTrunkMTU       = 576     // what every IPv4 host must accept (RFC 791)
	maxBatchDelay     = 10 * time.Millisecond
	maxCluster        = 1<<12 - 1

	defaultStoreTTL     = 10 * time.Minute
	minStoreTTL         = 3 * time.Second // four rounds of housekeeping, each late by one
	maxStoreTTL         = 24 * time.Hour
	defaultStoreTimeout = 50 * time.Millisecond
	maxStoreTimeout     = time.Second
	defaultStoreLookups = 1_000
	maxStoreLookups     = 100_000
)

// withDefaults returns the configuration that New works with.
func (c Config) withDefaults() (Config, error) {
	if c.Workers == 0 {
		c.Workers = 1
		if runtime.GOOS == "linux" {
			c.Workers = runtime.GOMAXPROCS(0)
		}
	}
	if !c.Trunk.IsValid() {
		c.Trunk = netip.AddrPortFrom(netip.IPv6Unspecified(), c.Trunk.Port())
	}
	if c.Resolver == nil {
		c.Resolver = ufrag.EmbeddedIPv4{}
	}
	if c.StoreKeys == nil {
		c.StoreKeys = c.TrunkKeys
		if c.TrunkKeys == nil {
			c.StoreKeys = c.EdgeKeys
		}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Trace == nil {
		c.Trace = new(Trace)
	}
	err := cmp.Or(
		config.Default("MaxFlows", &c.MaxFlows, flowtable.DefaultMaxFlows),
		config.Default("TrunkMTU", &c.TrunkMTU, trunk.DefaultMTU),
		config.Default("ReadBuffer", &c.ReadBuffer, defaultReadBuffer),
		config.Default("StoreTTL", &c.StoreTTL, defaultStoreTTL),
		config.Default("StoreTimeout", &c.StoreTimeout, defaultStoreTimeout),
		config.Default("StoreLookups", &c.StoreLookups, defaultStoreLookups),
	)
	if err != nil {
		return c, err
	}
	return c, c.validate()
}

func (c *Config) validate() error {
	switch {
	case c.Codec == nil:
		return config.Errorf("Codec", "required: ufrag.NewCodec(keyring) is the standard one")
	case c.TrunkKeys == nil && (c.Clusters == nil || len(c.AllowUpstream) > 0):
		return config.Errorf("TrunkKeys", "required: the keyring that the Hosts' trunk uses")
	case c.TrunkKeys != nil && c.TrunkKeys.MintID() == 0:
		return config.Errorf("TrunkKeys", "has no keys")
	case c.Cluster > maxCluster:
		return config.Errorf("Cluster", "%d is not in 0..%d", c.Cluster, maxCluster)
	case c.Workers < 1 || c.Workers > 1024:
		return config.Errorf("Workers", "%d is not in 1..1024", c.Workers)
	case c.Workers > 1 && runtime.GOOS != "linux":
		return config.Errorf("Workers", "more than one needs Linux")
	case c.Trunk.Port() != 0 && int(c.Trunk.Port())+c.Workers-1 > 65535:
		return config.Errorf("Trunk", "no room for %d ports from %d on", c.Workers, c.Trunk.Port())
	case c.MaxFlows < c.Workers:
		return config.Errorf("MaxFlows", "%d is less than one for each of %d workers", c.MaxFlows, c.Workers)
	case c.MaxFlows/c.Workers > flowtable.MaxFlowsLimit-1:
		return config.Errorf("MaxFlows", "%d is more than %d for each worker", c.MaxFlows, flowtable.MaxFlowsLimit-1)
	case c.TrunkMTU < minTrunkMTU || c.TrunkMTU > trunk.MaxDatagram:
		return config.Errorf("TrunkMTU", "%d is not in %d..%d", c.TrunkMTU, minTrunkMTU, trunk.MaxDatagram)
	case c.MaxBatchDelay < 0 || c.MaxBatchDelay > maxBatchDelay:
		return config.Errorf("MaxBatchDelay", "%v is not in 0..%v", c.MaxBatchDelay, maxBatchDelay)
	}
	if err := c.validateStore(); err != nil {
		return err
	}
	if err := c.validateUpstream(); err != nil {
		return err
	}
	if err := c.validateTiers(); err != nil {
		return err
	}
	if err := c.validateHandover(); err != nil {
		return err
	}
	return c.validateIngresses()
}

func (c *Config) validateStore() error {
	switch {
	case c.StoreKeys.MintID() == 0:
		return config.Errorf("StoreKeys", "has no keys")
	case c.StoreTTL < minStoreTTL || c.StoreTTL > maxStoreTTL:
		return config.Errorf("StoreTTL", "%v is not in %v..%v", c.StoreTTL, minStoreTTL, maxStoreTTL)
	case c.StoreTimeout < time.Millisecond || c.StoreTimeout > maxStoreTimeout:
		return config.Errorf("StoreTimeout", "%v is not in %v..%v", c.StoreTimeout, time.Millisecond, maxStoreTimeout)
	case c.StoreLookups < 1 || c.StoreLookups > maxStoreLookups:
		return config.Errorf("StoreLookups", "%d is not in 1..%d", c.StoreLookups, maxStoreLookups)
	}
	return nil
}

func (c *Config) validateUpstream() error {
	if len(c.AllowUpstream) == 0 && c.Clusters == nil {
		return config.Errorf("AllowUpstream", "required: prefixes of the Hosts' trunk addresses; an empty list refuses every Host")
	}
	for i, p := range c.AllowUpstream {
		if !p.IsValid() {
			return config.Errorf(fmt.Sprintf("AllowUpstream[%d]", i), "not a prefix")
		}
	}
	allow := ufrag.Allow(c.AllowUpstream, nil)
	for i, p := range c.Peers {
		if !p.IsValid() || p.Port() == 0 || !allow.Contains(p.Addr()) {
			return config.Errorf(fmt.Sprintf("Peers[%d]", i), "%v is not an address inside AllowUpstream", p)
		}
	}
	return nil
}

func (c *Config) validateIngresses() error {
	if len(c.Ingresses) == 0 && len(c.AllowEdges) == 0 {
		return config.Errorf("Ingresses", "required: at least one public address")
	}
	if len(c.Ingresses) > trunk.MaxIngresses {
		return config.Errorf("Ingresses", "%d are more than %d", len(c.Ingresses), trunk.MaxIngresses)
	}
	ids := make(map[uint16]int)
	addrs := make(map[netip.AddrPort]int)
	for i, in := range c.Ingresses {
		field := fmt.Sprintf("Ingresses[%d]", i)
		if in.ID == 0 {
			return config.Errorf(field+".ID", "required: 1 to 65535, the same here and in the Hosts' Ingresses")
		}
		if j, ok := ids[in.ID]; ok {
			return config.Errorf(field+".ID", "%d is also the id of Ingresses[%d]", in.ID, j)
		}
		ids[in.ID] = i
		a := in.Listen.Addr()
		switch {
		case !a.IsValid():
			return config.Errorf(field+".Listen", "required, such as 0.0.0.0:3478")
		case a.IsMulticast():
			return config.Errorf(field+".Listen", "%v is a multicast address", a)
		case a.Is6() && a.IsLinkLocalUnicast():
			return config.Errorf(field+".Listen", "%v is link-local; clients at link-local addresses are not served", a)
		}
		if in.Listen.Port() != 0 {
			if j, ok := addrs[in.Listen]; ok {
				return config.Errorf(field+".Listen", "%v is also that of Ingresses[%d]", in.Listen, j)
			}
			addrs[in.Listen] = i
		}
		if adv := in.Advertise; adv.IsValid() && (adv.Port() == 0 || adv.Addr().IsUnspecified() || adv.Addr().IsMulticast()) {
			return config.Errorf(field+".Advertise", "%v is not an address that clients can send to", adv)
		}
	}
	return nil
}
