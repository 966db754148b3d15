// Transceiverd is a transceiver that echoes: it answers offers over HTTP, owns
// the calls, and sends audio and data back to where they came from. With
// -app meter it speaks for itself and keeps a record of the packets, for drills.
//
//	transceiverd -trunk 10.0.0.5:9000 -ingress 203.0.113.10:3478 -allow-relay 10.0.0.2 -keys keys.txt
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
	"github.com/usher-rtc/usher/examples/internal/metrics"
	"github.com/usher-rtc/usher/examples/internal/metrics/hostmetrics"
	"github.com/usher-rtc/usher/examples/internal/web"
	"github.com/usher-rtc/usher/internal/meter"
	"github.com/usher-rtc/usher/transceiver"
	"github.com/usher-rtc/usher/ufrag"
)

func main() { cli.Main("transceiverd", run) }

// flagOf has the flags that fields of transceiver.Config come from.
var flagOf = map[string]string{
	"Ingresses": "ingress", "Listen": "trunk", "TrunkKeys": "trunk-keys", "AllowRelays": "allow-relay",
	"AllowEdges": "allow-edge", "EdgeKeys": "edge-keys", "ConsentTimeout": "consent",
}

func run(ctx context.Context, args []string) error {
	flags := cli.NewFlags("transceiverd", "-trunk ADDR -ingress ADDR -allow-relay PREFIX -keys FILE [flags]")
	var ingresses cli.Ingresses
	flags.Var(&ingresses, "ingress", "public `address` of the relays, or id=N,advertise=ADDR; may be given several times")
	geoFile := flags.String("geo", "", "JSON `file` with places and their ingresses: answers advertise those near the client; -ingress is not needed then")
	var trunk cli.AddrPort
	flags.Var(&trunk, "trunk", "`address` towards the relays")
	var relays cli.Prefixes
	flags.Var(&relays, "allow-relay", "`prefixes` that relays have addresses in")
	listen := flags.String("http", "127.0.0.1:8080", "`address` of the page, the signalling, /healthz, /readyz, /metrics and /debug/sessions")
	keyFile := flags.String("keys", "", "key `file`; followed while running")
	cluster := flags.Uint("cluster", 0, "cluster `number`, 0 to 4095")
	consent := flags.Duration("consent", 0, "end of a call whose client is silent; 0 is the library's default")
	skipAnnouncements := flags.Bool("skip-announcements", false, "tell relays that restart or leave nothing about flows: slower recovery, for drills that show it")
	trunkKeyFile := flags.String("trunk-keys", "", "key `file` of the link to the relays, so that edges need not have it; -keys without it")
	var edges cli.Prefixes
	flags.Var(&edges, "allow-edge", "`prefixes` of edge relays that are answered directly, not by way of the cluster's relay")
	edgeKeyFile := flags.String("edge-keys", "", "key `file` of the link to edge relays; needed with -allow-edge")
	var proxies cli.Prefixes
	flags.Var(&proxies, "trusted-proxy", "`prefixes` of reverse proxies in front of -http, whose X-Forwarded-For says who the client is")
	drain := flags.Duration("drain", 10*time.Second, "how long SIGTERM lets calls go on")
	app := flags.String("app", "echo", "`name` of what calls talk to: echo, or meter, which sends 50 numbered packets a second and serves a record of all packets at /debug/audio, for drills")
	if err := cli.ParseDaemon(flags, args); err != nil {
		return err
	}
	if *cluster > 4095 {
		return fmt.Errorf("-cluster: %d is outside 0 to 4095", *cluster)
	}
	if a := netip.AddrPort(trunk).Addr(); a.IsValid() && (a.IsUnspecified() || !a.Unmap().Is4()) {
		return fmt.Errorf("-trunk: relays cannot be led to %v: give the IPv4 address of an interface", a)
	}
	if *app != "echo" && *app != "meter" {
		return fmt.Errorf("-app: %q is neither echo nor meter", *app)
	}
	keys, watcher, err := cli.Keys(*keyFile)
	if err != nil {
		return err
	}
	defer func() { _ = watcher.Close() }()

	config := transceiver.Config{
		Listen:         netip.AddrPort(trunk),
		Cluster:        uint16(*cluster),
		Codec:          ufrag.NewCodec(keys),
		TrunkKeys:      keys,
		AllowRelays:    relays,
		ConsentTimeout: *consent,
		OnSession:      echo.Attach,

		SkipAnnouncements: *skipAnnouncements,
	}
	if *trunkKeyFile != "" {
		keys, watcher, err := cli.Keys(*trunkKeyFile)
		if err != nil {
			return err
		}
		defer func() { _ = watcher.Close() }()
		config.TrunkKeys = keys
	}
	if *edgeKeyFile != "" {
		keys, watcher, err := cli.Keys(*edgeKeyFile)
		if err != nil {
			return err
		}
		defer func() { _ = watcher.Close() }()
		config.EdgeKeys = keys
	}
	config.AllowEdges = edges
	for _, in := range ingresses {
		advertise := in.Advertise
		if !advertise.IsValid() {
			advertise = in.Addr
		}
		config.Ingresses = append(config.Ingresses, transceiver.Ingress{ID: in.ID, Advertise: advertise})
	}
	if *geoFile != "" {
		steering, err := readPlaces(*geoFile)
		if err != nil {
			return err
		}
		config.SelectIngresses = steering.Select
	}
	record := meter.NewApp()
	defer record.Close() // after the host
	if *app == "meter" {
		config.OnSession = record.Attach
	}
	host, err := transceiver.NewHost(config)
	if err != nil {
		return cli.NameFlag(err, flagOf)
	}
	site := &web.Site{Codec: config.Codec, TrustedProxies: proxies}
	defer site.Close()
	if err := site.Add(host.Addr().String(), host); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/", site.Handler())
	mux.Handle("GET /metrics", metrics.Handler(hostmetrics.Host(host.Stats)))
	if *app == "meter" {
		mux.Handle("/debug/audio", record)
	}
	pages, err := cli.Listen(*listen, mux)
	if err != nil {
		return err
	}
	defer pages.Close()
	slog.Info("transceiver", "trunk", host.Addr(), "http", pages.URL())

	<-ctx.Done()
	slog.Info("draining", "limit", *drain)
	limit, cancel := context.WithTimeout(context.Background(), *drain)
	defer cancel()
	if err := site.Shutdown(limit); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}
