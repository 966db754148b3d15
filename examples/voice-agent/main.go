// Voice-agent is a conversation in a browser with a service in a process of its
// own: a relay, a transceiver and the page in this one, and behind a bridge
// (docs/bridge.md) the service, which this program starts and starts again when
// it dies. It needs no argument and no account: start it, open the address that
// it prints, talk, and hear your own words back when you pause.
//
//	voice-agent                                   everything
//	voice-agent service -listen 127.0.0.1:9000    the service alone
//	voice-agent -service ws://127.0.0.1:9000      everything but the service, which may be your own
package main

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"

	"github.com/usher-rtc/usher/examples/internal/cli"
	"github.com/usher-rtc/usher/examples/internal/local"
	"github.com/usher-rtc/usher/examples/internal/web"
	"github.com/usher-rtc/usher/examples/pcm"
	"github.com/usher-rtc/usher/transceiver"
	"github.com/usher-rtc/usher/transceiver/bridge"
)

//go:embed page
var page embed.FS

func main() { cli.Main("voice-agent", run) }

func run(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == "service" {
		return runService(ctx, args[1:])
	}
	flags := cli.NewFlags("voice-agent", "[service] [flags]")
	listen := flags.String("http", "127.0.0.1:8080", "`address` of the page")
	var cfg local.Config
	cfg.Flags(flags)
	external := flags.String("service", "", "`URL` of a service that runs already, instead of one of this program's")
	if err := cli.ParseDaemon(flags, args); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	service := bridge.Config{Codecs: pcm.Both(), OnState: tell, Target: bridge.Target{URL: *external}}
	if *external == "" {
		agent, err := startChild(ctx)
		if err != nil {
			return err
		}
		defer func() { stop(); <-agent.done }()
		service.Select = agent.target
	} else if err := service.Validate(); err != nil {
		return fmt.Errorf("-service: %w", err)
	}

	network, err := local.Start(ctx, cfg)
	if err != nil {
		return err
	}
	defer network.Close()
	config := network.Host()
	config.OnSession = func(s *transceiver.Session) error {
		_, err := bridge.Attach(s, service)
		return err
	}
	host, err := transceiver.NewHost(config)
	if err != nil {
		return err
	}
	site := &web.Site{Codec: network.Codec}
	defer site.Close()
	if err := site.Add("transceiver", host); err != nil {
		return err
	}
	pages, err := cli.Listen(*listen, handler(site.Handler()))
	if err != nil {
		return err
	}
	defer pages.Close()
	slog.Info("ready: open this in a browser", "page", pages.URL())

	return network.Run(ctx, site.Shutdown)
}

// handler serves this program's page in place of the quickstart's.
func handler(site http.Handler) http.Handler {
	files, err := fs.Sub(page, "page")
	if err != nil {
		panic(err) // the directory is part of the program
	}
	own := http.FileServerFS(files)
	mux := http.NewServeMux()
	mux.Handle("/", site)
	mux.Handle("GET /{$}", own)
	mux.Handle("GET /agent.js", own)
	mux.Handle("GET /agent.css", own)
	return mux
}

// tell tells the page about the service, on the same channel as the service's
// own events. It waits for a page that has not opened the channel yet.
func tell(b *bridge.Bridge, c bridge.Change) {
	if c.State != bridge.StateReady && c.State != bridge.StateReconnecting {
		return
	}
	// An error is the end of the session, or of the page's interest.
	_ = b.Events().SendJSON(context.Background(), map[string]any{"type": "service", "state": c.State, "attempt": c.Attempt, "connection": c.Connection})
}
