// Relayd is a relay: one small, fixed public UDP address in front of any number
// of transceivers.
//
//	ufragctl keygen > keys.txt
//	relayd -listen 203.0.113.10:3478 -trunk 10.0.0.2:4000 -keys keys.txt -allow-upstream 10.0.0.0/24
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/usher-rtc/usher/examples/internal/cli"
	"github.com/usher-rtc/usher/relay"
	"github.com/usher-rtc/usher/ufrag"
)

func main() { cli.Main("relayd", run) }

func run(ctx context.Context, args []string) error {
	flags := cli.NewFlags("relayd", "-listen ADDR -trunk ADDR -keys FILE -allow-upstream PREFIX [flags]")
	var listen cli.Ingresses
	flags.Var(&listen, "listen", "public `address`, or id=N,addr=ADDR,advertise=ADDR; may be given several times")
	var trunk cli.AddrPort
	flags.Var(&trunk, "trunk", "`address` towards the transceivers; worker i uses port + i")
	var upstream cli.Prefixes
	flags.Var(&upstream, "allow-upstream", "`prefixes` that transceivers may have addresses in")
	web := flags.String("http", "127.0.0.1:8081", "`address` of /healthz, /readyz, /debug/flows and /debug/stats")
	keyFile := flags.String("keys", "", "key `file`; followed while running")
	cluster := flags.Uint("cluster", 0, "cluster `number`, 0 to 4095")
	workers := flags.Int("workers", 0, "worker `count`; 0 is one per CPU")
	idle := flags.Duration("idle", 0, "end of a flow that its transceiver sends nothing to; 0 is the library's default")
	drain := flags.Duration("drain", 5*time.Second, "how long SIGTERM lets flows move elsewhere")
	if err := cli.ParseDaemon(flags, args); err != nil {
		return err
	}
	if len(listen) == 0 {
		return errors.New("-listen is required: at least one public address")
	}
	if *cluster > 4095 {
		return fmt.Errorf("-cluster: %d is outside 0 to 4095", *cluster)
	}
	keys, watcher, err := cli.Keys(*keyFile)
	if err != nil {
		return err
	}
	defer func() { _ = watcher.Close() }()

	config := relay.Config{
		Trunk:         netip.AddrPort(trunk),
		Workers:       *workers,
		Cluster:       uint16(*cluster),
		Codec:         ufrag.NewCodec(keys),
		TrunkKeys:     keys,
		AllowUpstream: upstream,
		IdleTimeout:   *idle,
	}
	for _, in := range listen {
		config.Ingresses = append(config.Ingresses, relay.Ingress{ID: in.ID, Listen: in.Addr, Advertise: in.Advertise})
	}
	server, err := relay.New(config)
	if err != nil {
		return err
	}
	defer func() { _ = server.Close() }()
	pages, err := cli.Listen(*web, cli.RelayPages(server))
	if err != nil {
		return err
	}
	defer pages.Close()
	slog.Info("relay", "ingress", fmt.Sprint(server.Ingresses()), "trunk", fmt.Sprint(server.TrunkAddrs()), "http", pages.URL())

	served := make(chan error, 1)
	go func() { served <- server.Serve() }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	slog.Info("draining", "limit", *drain)
	limit, cancel := context.WithTimeout(context.Background(), *drain)
	defer cancel()
	if err := server.Shutdown(limit); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if err := <-served; !errors.Is(err, relay.ErrServerClosed) {
		return err
	}
	return nil
}
