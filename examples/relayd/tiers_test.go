package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/usher-rtc/usher/examples/internal/cli"
	"github.com/usher-rtc/usher/relay"
	"github.com/usher-rtc/usher/ufrag"
)

func TestTiersFlags(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	keyFile := func(name string) string {
		t.Helper()
		key, err := ufrag.GenerateKey('A')
		if err != nil {
			t.Fatal(err)
		}
		text, err := ufrag.FormatKeyFile('A', key)
		if err != nil {
			t.Fatal(err)
		}
		return file(name, string(text))
	}
	edges, trunk := keyFile("edge"), keyFile("trunk")
	clusters, bad := file("clusters", "1 10.1.0.5:4000-4003\n"), file("bad", "1 nowhere\n")
	var some cli.Prefixes
	if err := some.Set("10.0.0.0/8"); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		tiers tiers
		err   string // a part of it; empty: none
	}{
		{"one tier", tiers{}, ""},
		{"keys of its own for the trunk", tiers{trunkKeys: trunk}, ""},
		{"edge", tiers{clusters: clusters, edgeKeys: edges, allowClusters: some}, ""},
		{"cluster relay", tiers{allowEdges: some, edgeKeys: edges, trunkKeys: trunk}, ""},
		{"no keys between relays", tiers{allowEdges: some, trunkKeys: trunk}, "-edge-keys is required"},
		{"keys for nothing", tiers{edgeKeys: edges}, "mean nothing"},
		{"networks for nothing", tiers{allowClusters: some}, "mean nothing"},
		{"no file of keys", tiers{allowEdges: some, edgeKeys: filepath.Join(dir, "none")}, "none"},
		{"bad directory", tiers{clusters: bad, edgeKeys: edges, allowClusters: some}, "bad:1:"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var config relay.Config
			done, err := tt.tiers.configure(&config)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want one with %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer done()
			if (config.EdgeKeys != nil) != (tt.tiers.edgeKeys != "") || (config.TrunkKeys != nil) != (tt.tiers.trunkKeys != "") {
				t.Errorf("keys: %v, %v", config.EdgeKeys, config.TrunkKeys)
			}
			if (config.Clusters != nil) != (tt.tiers.clusters != "") {
				t.Error("the directory is missing, or there is one")
			} else if config.Clusters != nil && len(config.Clusters.Addresses(1)) != 4 {
				t.Errorf("directory: %v", config.Clusters.Addresses(1))
			}
		})
	}
}
