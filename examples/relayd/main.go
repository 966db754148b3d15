// Relayd is a relay: one small, fixed public UDP address in front of any number
// of transceivers.
//
//	ufragctl keygen > keys.txt
//	relayd -listen 203.0.113.10:3478 -trunk 10.0.0.2:4000 -keys keys.txt -allow-upstream 10.0.0.0/24
//
// With -handover PATH, starting a second relayd with the same flags is an upgrade:
// it takes sockets and flows over, without losing a packet, and the first one ends.
// Sockets that systemd passes are used for -listen and -trunk.
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

// flagOf has the flags that fields of relay.Config come from.
var flagOf = map[string]string{
	"Ingresses": "listen", "Trunk": "trunk", "Workers": "workers", "Peers": "peer",
	"TrunkKeys": "trunk-keys", "AllowUpstream": "allow-upstream",
	"AllowClusters": "allow-cluster", "AllowEdges": "allow-edge", "EdgeKeys": "edge-keys",
	"IdleTimeout": "idle", "MaxBatchDelay": "max-batch-delay", "StoreTTL": "store-ttl",
}

func run(ctx context.Context, args []string) error {
	flags := cli.NewFlags("relayd", "-listen ADDR -trunk ADDR -keys FILE -allow-upstream PREFIX [flags]")
	var listen cli.Ingresses
	flags.Var(&listen, "listen", "public `address`, or id=N,addr=ADDR,advertise=ADDR; may be given several times")
	var trunk cli.AddrPort
	flags.Var(&trunk, "trunk", "`address` towards the transceivers; worker i uses port + i")
	var upstream cli.Prefixes
	flags.Var(&upstream, "allow-upstream", "`prefixes` that transceivers may have addresses in")
	web := flags.String("http", "127.0.0.1:8081", "`address` of /healthz, /readyz, /metrics, /debug/flows and /debug/stats")
	keyFile := flags.String("keys", "", "key `file`; followed while running")
	cluster := flags.Uint("cluster", 0, "cluster `number`, 0 to 4095")
	workers := flags.Int("workers", 0, "worker `count`; 0 is one per CPU")
	var peers cli.AddrPorts
	flags.Var(&peers, "peer", "`addresses` of transceivers to greet at the start, so that they announce their flows; may be given several times")
	redis := flags.String("redis", "", "`URL` of a flow store, redis://user:password@host:6379/0, or @FILE with it; parameters addr=, cluster=true, master=, prefix=")
	storeTTL := flags.Duration("store-ttl", 0, "life of an entry in the flow store; 0 is the library's default")
	batchDelay := flags.Duration("max-batch-delay", 0, "delay under load that may be traded for fewer system calls; 0 is none, 500us a good start")
	idle := flags.Duration("idle", 0, "end of a flow that its transceiver sends nothing to; 0 is the library's default")
	handover := flags.String("handover", "", "`path` of a unix socket: take over from the relayd that listens there, if one does, then listen there for the next one")
	skipLearning := flags.Bool("skip-learning", false, "learn no flows from transceivers' packets: slower recovery, for drills that show it")
	var tiers tiers
	flags.StringVar(&tiers.clusters, "clusters", "", "`file` with the trunk addresses of other clusters' relays, \"1 10.1.0.5:4000-4003\" a line: packets for their sessions go there; followed while running")
	flags.Var(&tiers.allowClusters, "allow-cluster", "`prefixes` that relays of other clusters, and transceivers that answer directly, may have addresses in")
	flags.Var(&tiers.allowEdges, "allow-edge", "`prefixes` of relays whose clients' packets are passed on")
	flags.StringVar(&tiers.edgeKeys, "edge-keys", "", "key `file` of the link between relays; followed while running")
	flags.StringVar(&tiers.trunkKeys, "trunk-keys", "", "key `file` of the link to transceivers, so that edges need not have it; -keys without it")
	drain := flags.Duration("drain", 5*time.Second, "how long SIGTERM lets flows move elsewhere")
	if err := cli.ParseDaemon(flags, args); err != nil {
		return err
	}
	if len(listen) == 0 && len(tiers.allowEdges) == 0 {
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
		Peers:         peers,
		MaxBatchDelay: *batchDelay,
		StoreTTL:      *storeTTL,
		SkipLearning:  *skipLearning,
		Handover:      *handover,
	}
	closeTiers, err := tiers.configure(&config)
	if err != nil {
		return err
	}
	defer closeTiers() // after the server
	if *redis != "" {
		store, err := openStore(*redis)
		if err != nil {
			return err
		}
		defer func() { _ = store.Close() }() // after the server
		config.Store = store
	}
	for _, in := range listen {
		config.Ingresses = append(config.Ingresses, relay.Ingress{ID: in.ID, Listen: in.Addr, Advertise: in.Advertise})
	}
	if config.Sockets, err = relay.SystemdSockets(); err != nil {
		return err
	}
	server, err := relay.New(config)
	for _, s := range config.Sockets {
		_ = s.File.Close() // the server has duplicates
	}
	if err != nil {
		return cli.NameFlag(err, flagOf)
	}
	defer func() { _ = server.Close() }()
	listenWeb := cli.Listen
	if *handover != "" {
		listenWeb = cli.ListenBeside
	}
	pages, err := listenWeb(*web, cli.RelayPages(server))
	if err != nil {
		return err
	}
	defer pages.Close()
	if !config.Trunk.IsValid() || config.Trunk.Port() == 0 {
		slog.Warn("without -trunk the trunk has whatever ports are free, others at each start: after a restart transceivers cannot announce its flows; give -trunk ADDR:PORT unless this is a trial",
			"trunk", fmt.Sprint(server.TrunkAddrs()))
	}
	slog.Info("relay", "ingress", fmt.Sprint(server.Ingresses()), "trunk", fmt.Sprint(server.TrunkAddrs()), "http", pages.URL())

	served := make(chan error, 1)
	go func() { served <- server.Serve() }()
	select {
	case err := <-served:
		if errors.Is(err, relay.ErrHandedOver) {
			return nil
		}
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
