// Quickstart is a whole installation in one process: a relay, two transceivers
// on UDP sockets of their own with the trunk between them, and a page to talk
// from. It needs no argument: start it and open the address that it prints.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/usher-rtc/usher/examples/internal/cli"
	"github.com/usher-rtc/usher/examples/internal/echo"
	"github.com/usher-rtc/usher/examples/internal/local"
	"github.com/usher-rtc/usher/examples/internal/web"
	"github.com/usher-rtc/usher/transceiver"
)

func main() { cli.Main("quickstart", run) }

func run(ctx context.Context, args []string) error {
	flags := cli.NewFlags("quickstart", "[flags]")
	listen := flags.String("http", "127.0.0.1:8080", "`address` of the page")
	var cfg local.Config
	cfg.Flags(flags)
	transceivers := flags.Int("transceivers", 2, "`number` of transceivers")
	flags.StringVar(&cfg.KeyFile, "keys", "", "key `file` instead of random keys")
	flags.DurationVar(&cfg.IdleTimeout, "idle", 0, "end of a flow that its transceiver sends nothing to; 0 is the library's default")
	consent := flags.Duration("consent", 0, "end of a call whose client is silent; 0 is the library's default")
	if err := cli.ParseDaemon(flags, args); err != nil {
		return err
	}
	if *transceivers < 1 || *transceivers > 100 {
		return fmt.Errorf("-transceivers: %d is outside 1 to 100", *transceivers)
	}
	network, err := local.Start(ctx, cfg)
	if err != nil {
		return err
	}
	defer network.Close()

	site := &web.Site{Codec: network.Codec}
	defer site.Close()
	for i := range *transceivers {
		config := network.Host()
		config.ConsentTimeout, config.OnSession = *consent, echo.Attach
		host, err := transceiver.NewHost(config)
		if err != nil {
			return err
		}
		if err := site.Add(fmt.Sprintf("transceiver %d", i+1), host); err != nil {
			return err
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/", site.Handler())
	mux.Handle("GET /debug/flows", cli.RelayPages(network.Relay))
	mux.Handle("GET /debug/stats", cli.RelayPages(network.Relay))
	pages, err := cli.Listen(*listen, mux)
	if err != nil {
		return err
	}
	defer pages.Close()
	slog.Info("ready: open this in a browser", "page", pages.URL(), "ingress", fmt.Sprint(network.Ingresses))

	return network.Run(ctx, site.Shutdown)
}
