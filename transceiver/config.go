package transceiver

import (
	"cmp"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"time"

	"github.com/pion/webrtc/v4"

	"github.com/usher-rtc/usher/internal/config"
	"github.com/usher-rtc/usher/ufrag"
)

// ConfigError is what NewHost returns for a bad Config. Find it with errors.As.
type ConfigError = config.Error

// Ingress is a public address of the relays: what a client sends to.
type Ingress struct {
	// ID is the number that the relays have for it in their own configuration, 1 to 65,535.
	ID uint16
	// Advertise is the public address and port of it, as it goes into an answer.
	Advertise netip.AddrPort
}

// Config configures a Host. The zero value of every field that is not marked
// as required is its documented default.
type Config struct {
	// Listen is the UDP address for the trunk. Required, unless Conns is set.
	// Port 0 picks a free one. A second Host on an address that is in use is refused.
	Listen netip.AddrPort
	// Conns are sockets to use instead of Listen, one per reader. The Host
	// owns them and closes them. Never give one socket to two Hosts: each
	// would get half of the packets.
	Conns []net.PacketConn
	// Sockets is how many SO_REUSEPORT sockets Listen opens, each with one
	// reader. 0 means one per CPU that Go uses, at most 4; 1 outside Linux.
	Sockets int

	// AdvertiseTrunk is the trunk address that ufrags carry: IPv4, reachable by
	// the relays. Zero means the address of Listen. Ignored with HostID.
	AdvertiseTrunk netip.AddrPort
	// HostID puts this directory id (48 bits) into ufrags instead of an
	// address. The relays' Resolver turns it into one. Needed for IPv6.
	HostID uint64
	// Cluster is the cluster number in ufrags, 0 to 4095.
	Cluster uint16

	// Codec mints ufrags and derives passwords. Required.
	Codec ufrag.Codec
	// TrunkKeys authenticate trunk datagrams in both directions. Required.
	TrunkKeys *ufrag.Keyring
	// AllowRelays are the source addresses that trunk datagrams may come
	// from. Required: an empty list would refuse everything.
	AllowRelays []netip.Prefix
	// AllowEdges are the trunk addresses of edge relays that are answered directly
	// instead of by way of the cluster relay that brought their clients' packets.
	// Their own AllowClusters has to have this Host's address. Empty means none.
	AllowEdges []netip.Prefix
	// EdgeKeys authenticate trunk datagrams to and from edges that are answered
	// directly. Required with AllowEdges.
	EdgeKeys *ufrag.Keyring

	// Ingresses are advertised in answers, in order of preference. Required,
	// unless SelectIngresses is set.
	Ingresses []Ingress
	// SelectIngresses picks the ingresses of one session from its signalling
	// request, near the client for example. An empty result means Ingresses.
	// It must be safe for concurrent use.
	SelectIngresses func(*http.Request) []Ingress

	// MaxSessions is how many sessions may be alive at once. 0 means 4,096.
	MaxSessions int
	// MaxOfferBytes is the longest offer that is read. 0 means 256 KiB.
	MaxOfferBytes int
	// RequireAudio refuses an offer without an audio section.
	RequireAudio bool

	// ConnectTimeout ends a session that has not had an authenticated check.
	// 0 means 20 s; browsers give up after 11 to 15 s.
	ConnectTimeout time.Duration
	// DTLSTimeout ends a session that has no DTLS association this long after
	// its first authenticated check. 0 means 10 s.
	DTLSTimeout time.Duration
	// ConsentTimeout ends a session whose client has been silent for so long.
	// 0 means 30 s (RFC 7675). A client that comes back earlier goes on.
	ConsentTimeout time.Duration

	// TrunkMTU is the longest trunk datagram that is built from several
	// packets, in bytes. 0 means 1,400. One longer packet travels alone.
	TrunkMTU int
	// MaxBatchDelay makes a busy socket be read at most once in this long, up to
	// 10 ms: the sessions that it wakes then share system calls and datagrams. A
	// packet that comes alone is never delayed. 0 means 1 ms, which a path of
	// audio does not notice; a negative value takes what is there.
	MaxBatchDelay time.Duration
	// SkipAnnouncements keeps the Host from telling relays that have restarted, take
	// over or leave about its flows. It costs recovery time and nothing else, and is
	// there for drills that show what announcements are worth.
	SkipAnnouncements bool
	// ReadBuffer is the receive buffer asked of the kernel for each socket,
	// in bytes. 0 means 4 MiB.
	ReadBuffer int

	// OnSession is called for every session after its offer was accepted and
	// before the answer is made: add tracks and handlers here. An error
	// refuses the offer. It runs on Accept's goroutine; a panic ends the
	// session. nil means nothing is added.
	OnSession func(*Session) error
	// MediaEngine registers codecs and header extensions. nil means Opus, G.722,
	// PCMU and PCMA, with audio levels (RFC 6464). It is called once.
	MediaEngine func(*webrtc.MediaEngine) error
	// SettingEngine changes a session's settings just before its
	// PeerConnection is made. ICE, network and mux settings are set after it
	// and cannot be changed. It must be safe for concurrent use.
	SettingEngine func(*webrtc.SettingEngine)
	// NewAPI makes the webrtc.API of a session from its settings, to bring
	// interceptors (NACK, reports, congestion control), which the default
	// goes without: they cost four goroutines a session. MediaEngine is not
	// used then, Audio sends no reports of its own, and Pion's buffers are used,
	// without the limit on a client's media streams. It must be safe for
	// concurrent use.
	NewAPI func(webrtc.SettingEngine) (*webrtc.API, error)
	// DetachDataChannels lets data channels be detached, which saves 64 KB
	// a channel; their OnMessage is then not called. OpenEvents works either way.
	DetachDataChannels bool
	// CertificateLifetime is how long one DTLS certificate serves new
	// sessions. 0 means 24 h.
	CertificateLifetime time.Duration

	// Logger gets the Host's and Pion's warnings. nil means slog.Default.
	Logger *slog.Logger
}

const (
	defaultMaxSessions = 4096
	defaultMaxOffer    = 256 << 10
	defaultConnect     = 20 * time.Second
	defaultDTLS        = 10 * time.Second
	defaultConsent     = 30 * time.Second
	defaultTrunkMTU    = 1400
	defaultReadBuffer  = 4 << 20
	defaultBatchDelay  = time.Millisecond
	maxBatchDelay      = 10 * time.Millisecond
	// minTrunkMTU leaves room for a datagram's header and one small packet.
	minTrunkMTU = 576
	maxTrunkMTU = 65000
	maxSockets  = 256
)

func (c *Config) setDefaults() error {
	if c.Sockets == 0 {
		c.Sockets = 1
		if runtime.GOOS == "linux" {
			c.Sockets = min(runtime.GOMAXPROCS(0), 4)
		}
	}
	set(&c.TrunkMTU, defaultTrunkMTU)
	set(&c.MaxBatchDelay, defaultBatchDelay)
	c.MaxBatchDelay = max(c.MaxBatchDelay, 0)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return cmp.Or(
		config.Default("MaxSessions", &c.MaxSessions, defaultMaxSessions),
		config.Default("MaxOfferBytes", &c.MaxOfferBytes, defaultMaxOffer),
		config.Default("ConnectTimeout", &c.ConnectTimeout, defaultConnect),
		config.Default("DTLSTimeout", &c.DTLSTimeout, defaultDTLS),
		config.Default("ConsentTimeout", &c.ConsentTimeout, defaultConsent),
		config.Default("ReadBuffer", &c.ReadBuffer, defaultReadBuffer),
		config.Default("CertificateLifetime", &c.CertificateLifetime, 24*time.Hour),
	)
}

func set[T comparable](field *T, def T) {
	var zero T
	if *field == zero {
		*field = def
	}
}

func (c *Config) validate() error {
	switch {
	case c.Codec == nil:
		return config.Errorf("Codec", "required: ufrag.NewCodec(keyring) is the standard one")
	case c.TrunkKeys == nil:
		return config.Errorf("TrunkKeys", "required: the keyring that the relays' trunk uses")
	case len(c.AllowRelays) == 0:
		return config.Errorf("AllowRelays", "required: prefixes of the relays' trunk addresses; an empty list refuses every relay")
	case len(c.Conns) == 0 && !c.Listen.IsValid():
		return config.Errorf("Listen", "required: the trunk's UDP address, 10.0.0.5:9000 for example")
	case len(c.Conns) > 0 && c.Listen.IsValid():
		return config.Errorf("Conns", "set either Conns or Listen")
	case c.Sockets < 0 || c.Sockets > maxSockets:
		return config.Errorf("Sockets", "%d is outside 0 to %d", c.Sockets, maxSockets)
	case c.HostID >= 1<<48:
		return config.Errorf("HostID", "%d does not fit into 48 bits", c.HostID)
	case c.Cluster > 4095:
		return config.Errorf("Cluster", "%d is outside 0 to 4095", c.Cluster)
	case len(c.Ingresses) == 0 && c.SelectIngresses == nil:
		return config.Errorf("Ingresses", "required: at least one public address of the relays")
	case c.TrunkMTU != 0 && (c.TrunkMTU < minTrunkMTU || c.TrunkMTU > maxTrunkMTU):
		return config.Errorf("TrunkMTU", "%d is outside %d to %d", c.TrunkMTU, minTrunkMTU, maxTrunkMTU)
	case c.MaxBatchDelay > maxBatchDelay:
		return config.Errorf("MaxBatchDelay", "%v is more than %v", c.MaxBatchDelay, maxBatchDelay)
	}
	for i, p := range c.AllowRelays {
		if !p.IsValid() {
			return config.Errorf(fmt.Sprintf("AllowRelays[%d]", i), "not a valid prefix")
		}
	}
	for i, p := range c.AllowEdges {
		switch {
		case !p.IsValid():
			return config.Errorf(fmt.Sprintf("AllowEdges[%d]", i), "not a valid prefix")
		case c.EdgeKeys == nil:
			return config.Errorf("EdgeKeys", "required with AllowEdges: the keyring of the edges' trunk")
		case c.EdgeKeys == c.TrunkKeys:
			return config.Errorf("EdgeKeys", "is TrunkKeys: every edge could speak as a cluster relay")
		}
	}
	for i, conn := range c.Conns {
		if conn == nil {
			return config.Errorf(fmt.Sprintf("Conns[%d]", i), "is nil")
		}
		for _, earlier := range c.Conns[:i] {
			if earlier == conn {
				return config.Errorf(fmt.Sprintf("Conns[%d]", i), "is given twice: two readers would each get half of the packets")
			}
		}
	}
	return validateIngresses("Ingresses", c.Ingresses)
}

func validateIngresses(field string, ingresses []Ingress) error {
	for i, in := range ingresses {
		name := fmt.Sprintf("%s[%d]", field, i)
		switch {
		case in.ID == 0:
			return config.Errorf(name+".ID", "required: the id, 1 to 65535, that the relays have for this address")
		case !in.Advertise.IsValid() || in.Advertise.Port() == 0:
			return config.Errorf(name+".Advertise", "required, with a port: the public address that clients send to")
		case in.Advertise.Addr().IsUnspecified():
			return config.Errorf(name+".Advertise", "%v is no address that a client could send to", in.Advertise.Addr())
		case in.Advertise.Addr().Zone() != "":
			return config.Errorf(name+".Advertise", "an address with a zone means nothing to a client")
		}
		for _, earlier := range ingresses[:i] {
			if earlier.ID == in.ID {
				return config.Errorf(name+".ID", "%d is given twice", in.ID)
			}
			if earlier.Advertise == in.Advertise {
				return config.Errorf(name+".Advertise", "%v is given twice", in.Advertise)
			}
		}
	}
	return nil
}
