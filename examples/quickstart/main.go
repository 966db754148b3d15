// Quickstart is a whole installation in one process: a relay, two transceivers
// on UDP sockets of their own with the trunk between them, and a page to talk
// from. It needs no argument: start it and open the address that it prints.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"github.com/usher-rtc/usher/examples/internal/cli"
	"github.com/usher-rtc/usher/examples/internal/echo"
	"github.com/usher-rtc/usher/examples/internal/web"
	"github.com/usher-rtc/usher/relay"
	"github.com/usher-rtc/usher/transceiver"
	"github.com/usher-rtc/usher/ufrag"
)

func main() { cli.Main("quickstart", run) }

// trunkNet is where the relay and the transceivers of this process meet.
var trunkNet = netip.MustParsePrefix("127.0.0.1/32")

func run(ctx context.Context, args []string) error {
	flags := cli.NewFlags("quickstart", "[flags]")
	listen := flags.String("http", "127.0.0.1:8080", "`address` of the page")
	relayAddr := cli.AddrPort(netip.MustParseAddrPort("0.0.0.0:3478"))
	flags.Var(&relayAddr, "relay", "UDP `address` of the relay; without an IP address the outbound interface's and the loopback address")
	var advertise cli.Advertise
	flags.Var(&advertise, "advertise", "public `address` to put into answers, where a NAT stands before the relay")
	transceivers := flags.Int("transceivers", 2, "`number` of transceivers")
	keyFile := flags.String("keys", "", "key `file` instead of random keys")
	idle := flags.Duration("idle", 0, "end of a flow that its transceiver sends nothing to; 0 is the library's default")
	consent := flags.Duration("consent", 0, "end of a call whose client is silent; 0 is the library's default")
	if err := cli.ParseDaemon(flags, args); err != nil {
		return err
	}
	if *transceivers < 1 || *transceivers > 100 {
		return fmt.Errorf("-transceivers: %d is outside 1 to 100", *transceivers)
	}
	keys, err := keyring(*keyFile)
	if err != nil {
		return err
	}
	codec := ufrag.NewCodec(keys)

	front, err := relay.New(relay.Config{
		Ingresses:     ingresses(ctx, netip.AddrPort(relayAddr), advertise),
		Trunk:         netip.AddrPortFrom(trunkNet.Addr(), 0),
		Codec:         codec,
		TrunkKeys:     keys,
		AllowUpstream: []netip.Prefix{trunkNet},
		IdleTimeout:   *idle,
	})
	if err != nil {
		return err
	}
	defer func() { _ = front.Close() }()
	served := make(chan error, 1)
	go func() { served <- front.Serve() }()

	site := &web.Site{Codec: codec}
	defer site.Close()
	var advertised []transceiver.Ingress
	for _, in := range front.Ingresses() {
		advertised = append(advertised, transceiver.Ingress{ID: in.ID, Advertise: in.Advertise})
	}
	for i := range *transceivers {
		host, err := transceiver.NewHost(transceiver.Config{
			Listen:         netip.AddrPortFrom(trunkNet.Addr(), 0),
			Codec:          codec,
			TrunkKeys:      keys,
			AllowRelays:    []netip.Prefix{trunkNet},
			Ingresses:      advertised,
			ConsentTimeout: *consent,
			OnSession:      echo.Attach,
		})
		if err != nil {
			return err
		}
		if err := site.Add(fmt.Sprintf("transceiver %d", i+1), host); err != nil {
			return err
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/", site.Handler())
	mux.Handle("GET /debug/flows", cli.RelayPages(front))
	mux.Handle("GET /debug/stats", cli.RelayPages(front))
	pages, err := cli.Listen(*listen, mux)
	if err != nil {
		return err
	}
	defer pages.Close()
	slog.Info("ready: open this in a browser", "page", pages.URL(), "ingress", fmt.Sprint(advertised))

	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	limit, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := site.Shutdown(limit); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}
