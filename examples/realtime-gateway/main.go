// Realtime-gateway lets WebRTC clients of the Realtime calls API talk to any
// server that speaks the Realtime events over WebSocket: a relay, a transceiver
// and the gateway in one process. Without -upstream it starts a small stand-in
// for such a server, so it needs no argument and no account: start it, open the
// address that it prints, talk, and hear your own words back when you pause.
//
//	realtime-gateway
//	realtime-gateway -tokens tokens.txt -upstream wss://speech.example/v1/realtime?model=m -upstream-token key.txt
//
// A client sends its offer to /v1/realtime/calls with a bearer token. The npm
// library for realtime agents does so with
//
//	new OpenAIRealtimeWebRTC({ baseUrl: 'http://127.0.0.1:8080/v1/realtime/calls' })
//
// and in a browser wants tokens that begin with ek_, and -origins to have the
// page's own.
package main

import (
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/usher-rtc/usher/examples/internal/cli"
	"github.com/usher-rtc/usher/examples/internal/local"
	"github.com/usher-rtc/usher/examples/realtime-gateway/standin"
)

//go:embed page
var page embed.FS

func main() { cli.Main("realtime-gateway", run) }

func run(ctx context.Context, args []string) error {
	flags := cli.NewFlags("realtime-gateway", "[flags]")
	listen := flags.String("http", "127.0.0.1:8080", "`address` of the calls API and the page")
	debug := flags.String("debug", "", "`address` of /healthz, /readyz, /debug/sessions and /debug/stats; none without it")
	var lan local.Config
	lan.Flags(flags)
	upstream := flags.String("upstream", "", "`URL` (ws or wss) of the server that speaks the Realtime events; a stand-in without it")
	upstreamToken := flags.String("upstream-token", "", "`file` with the bearer token for -upstream")
	tokenFile := flags.String("tokens", "", "`file` with the bearer tokens of clients, one a line; without it one is made up and printed")
	origins := flags.String("origins", "", "`origins` whose pages may call besides the gateway's own, separated by commas")
	var proxies cli.Prefixes
	flags.Var(&proxies, "trusted-proxy", "`prefixes` of reverse proxies in front of -http, whose X-Forwarded-For says who the client is")
	maxCalls := flags.Int("max-calls", 100, "`number` of calls at once")
	if err := cli.ParseDaemon(flags, args); err != nil {
		return err
	}
	cfg := config{TrustedProxies: proxies}
	if *origins != "" {
		cfg.Origins = strings.Split(*origins, ",")
	}
	if *maxCalls < 1 {
		return fmt.Errorf("-max-calls: %d is less than 1", *maxCalls)
	}
	if *upstreamToken != "" && *upstream == "" {
		return errors.New("-upstream-token: there is no -upstream to send it to")
	}
	tokens, err := clientTokens(*tokenFile)
	if err != nil {
		return err
	}
	cfg.Authorize = allowTokens(tokens)
	if cfg.UpstreamToken, err = upstreamSecret(*upstreamToken); err != nil {
		return err
	}
	if *upstream == "" {
		speech := standin.New(standin.Config{})
		defer speech.Close()
		server, err := cli.Listen("127.0.0.1:0", speech)
		if err != nil {
			return err
		}
		defer server.Close()
		*upstream = server.URL() + "v1/realtime"
	}
	if cfg.Upstream, err = url.Parse(*upstream); err != nil {
		return fmt.Errorf("-upstream: %w", err)
	}

	network, err := local.Start(ctx, lan)
	if err != nil {
		return err
	}
	defer network.Close()
	host := network.Host()
	host.MaxSessions = *maxCalls
	g, err := newGateway(host, cfg)
	if err != nil {
		return err
	}
	defer g.close()
	files, err := fs.Sub(page, "page")
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/", http.FileServerFS(files))
	mux.Handle(callsPath, g)
	mux.Handle(callsPath+"/", g)
	server, err := cli.Listen(*listen, mux)
	if err != nil {
		return err
	}
	defer server.Close()
	if *debug != "" {
		pages, err := cli.Listen(*debug, debugPages(g))
		if err != nil {
			return err
		}
		defer pages.Close()
	}
	address := server.URL()
	if *tokenFile == "" {
		address += "#" + tokens[0]
	}
	slog.Info("ready: open this in a browser", "page", address, "upstream", cfg.Upstream.Redacted())

	return network.Run(ctx, g.host.Shutdown)
}

// clientTokens reads the tokens of a file, or makes one up.
func clientTokens(file string) ([]string, error) {
	if file == "" {
		return []string{rand.Text()}, nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("-tokens: %w", err)
	}
	var tokens []string
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			tokens = append(tokens, line)
		}
	}
	if len(tokens) == 0 {
		return nil, fmt.Errorf("-tokens: no token in %s", file)
	}
	return tokens, nil
}

func upstreamSecret(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("-upstream-token: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if token == "" || strings.ContainsAny(token, "\r\n") {
		return "", fmt.Errorf("-upstream-token: %s is not one line", file)
	}
	return token, nil
}

func debugPages(g *gateway) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /", g.host.StatusHandler())
	mux.Handle("GET /debug/stats", cli.Stats(g.stats.snapshot))
	return mux
}
