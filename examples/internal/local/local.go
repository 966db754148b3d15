package local

import (
	"context"
	"errors"
	"flag"
	"net/netip"
	"time"

	"github.com/usher-rtc/usher/examples/internal/cli"
	"github.com/usher-rtc/usher/relay"
	"github.com/usher-rtc/usher/transceiver"
	"github.com/usher-rtc/usher/ufrag"
)

// trunkNet is where the relay and the transceivers of this process meet.
var trunkNet = netip.MustParsePrefix("127.0.0.1/32")

// Config configures Start.
type Config struct {
	// Relay is the UDP address of the relay. Without an IP address it is the
	// outbound interface's and the loopback address.
	Relay netip.AddrPort
	// Advertise is put into answers, where a NAT stands before the relay.
	Advertise cli.Advertise
	// KeyFile has the keys. Empty means random ones.
	KeyFile string
	// IdleTimeout is relay.Config's.
	IdleTimeout time.Duration
}

// Flags makes -relay and -advertise set the configuration.
func (c *Config) Flags(flags *flag.FlagSet) {
	c.Relay = netip.MustParseAddrPort("0.0.0.0:3478")
	flags.Var((*cli.AddrPort)(&c.Relay), "relay", "UDP `address` of the relay; without an IP address the outbound interface's and the loopback address")
	flags.Var(&c.Advertise, "advertise", "public `address` to put into answers, where a NAT stands before the relay")
}

// Network is a relay that runs.
type Network struct {
	Relay *relay.Server
	Codec ufrag.Codec
	// Ingresses are what transceivers advertise.
	Ingresses []transceiver.Ingress

	failed <-chan error // of a relay that has stopped by itself
	keys   *ufrag.Keyring
}

// Start starts the relay. The context bounds nothing but the start.
func Start(ctx context.Context, cfg Config) (*Network, error) {
	keys, err := keyring(cfg.KeyFile)
	if err != nil {
		return nil, err
	}
	n := &Network{Codec: ufrag.NewCodec(keys), keys: keys}
	n.Relay, err = relay.New(relay.Config{
		Ingresses:     ingresses(ctx, cfg.Relay, cfg.Advertise),
		Trunk:         netip.AddrPortFrom(trunkNet.Addr(), 0),
		Codec:         n.Codec,
		TrunkKeys:     keys,
		AllowUpstream: []netip.Prefix{trunkNet},
		IdleTimeout:   cfg.IdleTimeout,
	})
	if err != nil {
		return nil, err
	}
	for _, in := range n.Relay.Ingresses() {
		n.Ingresses = append(n.Ingresses, transceiver.Ingress{ID: in.ID, Advertise: in.Advertise})
	}
	failed := make(chan error, 1)
	go func() { failed <- n.Relay.Serve() }()
	n.failed = failed
	return n, nil
}

// Host is the configuration of a transceiver beside the relay, on a UDP socket
// of its own.
func (n *Network) Host() transceiver.Config {
	return transceiver.Config{
		Listen:      netip.AddrPortFrom(trunkNet.Addr(), 0),
		Codec:       n.Codec,
		TrunkKeys:   n.keys,
		AllowRelays: []netip.Prefix{trunkNet},
		Ingresses:   n.Ingresses,
	}
}

// stopLimit is how long calls may take to end when the program does.
const stopLimit = 2 * time.Second

// Run waits until the context ends or the relay fails, and returns why the relay
// failed. Then it calls shutdown, which ends the calls; those that do not end in
// time end with the process.
func (n *Network) Run(ctx context.Context, shutdown func(context.Context) error) error {
	select {
	case err := <-n.failed:
		return err
	case <-ctx.Done():
	}
	limit, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	if err := shutdown(limit); !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// Close stops the relay.
func (n *Network) Close() { _ = n.Relay.Close() }

// keyring returns random keys, which are all that one process needs, or those of
// a file, so that ufragctl can read its ufrags.
func keyring(file string) (*ufrag.Keyring, error) {
	if file != "" {
		return ufrag.ReadKeyFile(file)
	}
	key, err := ufrag.GenerateKey('A')
	if err != nil {
		return nil, err
	}
	return ufrag.NewKeyring(key.ID, key)
}
