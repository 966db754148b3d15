package main

import (
	"errors"

	"github.com/usher-rtc/usher/cluster"
	"github.com/usher-rtc/usher/examples/internal/cli"
	"github.com/usher-rtc/usher/relay"
	"github.com/usher-rtc/usher/ufrag"
)

// tiers are the flags for relays that send each other packets.
type tiers struct {
	clusters, edgeKeys, trunkKeys string
	allowEdges, allowClusters     cli.Prefixes
}

// configure adds what the flags say. What it opens, close closes, after the server.
func (t *tiers) configure(config *relay.Config) (closeAll func(), err error) {
	var closers []func()
	done := func() {
		for _, c := range closers {
			c()
		}
	}
	defer func() {
		if err != nil {
			done()
		}
	}()
	if t.trunkKeys != "" {
		keys, watcher, err := cli.Keys(t.trunkKeys)
		if err != nil {
			return nil, err
		}
		closers = append(closers, func() { _ = watcher.Close() })
		config.TrunkKeys = keys
	}
	if t.clusters == "" && len(t.allowEdges) == 0 {
		if t.edgeKeys != "" || len(t.allowClusters) > 0 {
			return nil, errors.New("-edge-keys and -allow-cluster mean nothing without -clusters or -allow-edge")
		}
		return done, nil
	}
	if t.edgeKeys == "" {
		return nil, errors.New("-edge-keys is required with -clusters and -allow-edge: a key file that the relays share")
	}
	keys, watcher, err := cli.Keys(t.edgeKeys)
	if err != nil {
		return nil, err
	}
	closers = append(closers, func() { _ = watcher.Close() })
	config.EdgeKeys = keys
	config.AllowEdges, config.AllowClusters = t.allowEdges, t.allowClusters
	if t.clusters != "" {
		directory, err := cluster.NewFile(ufrag.WatchConfig{Path: t.clusters})
		if err != nil {
			return nil, err
		}
		closers = append(closers, func() { _ = directory.Close() })
		config.Clusters = directory
	}
	return done, nil
}
