package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/usher-rtc/usher/internal/bench/callers"
	"github.com/usher-rtc/usher/internal/bench/procs"
	"github.com/usher-rtc/usher/internal/bench/web"
	"github.com/usher-rtc/usher/internal/meter"
	"github.com/usher-rtc/usher/internal/parts"
	"github.com/usher-rtc/usher/ufrag"
)

// fleet is both regions and the calls on them.
type fleet struct {
	out      io.Writer
	dir      string
	programs *procs.Programs
	codec    ufrag.Codec
	nodes    []*node
	regions  [2]*region
	wan      *wan
	engine   *callers.Engine
	pacer    *meter.Pacer
	calls    []*call
	quick    bool          // see options
	noise    time.Duration // what the machine adds to gaps by itself
	problems []string
}

// available reports what is missing; nil means nothing.
func available() error {
	_, err := os.Stat("/dev/net/tun")
	if err != nil {
		err = fmt.Errorf("no TUN devices: %w", err)
	}
	return errors.Join(parts.Root("a network namespace"), err,
		parts.Program("ip", "iproute2"), parts.Program("nft", "nftables"), parts.Program("redis-server", "redis-server"))
}

// newFleet makes the topology and starts all processes. The caller closes the
// fleet, also after an error. Files go into dir; what it measures goes to out.
func newFleet(ctx context.Context, dir string, out io.Writer) (f *fleet, err error) {
	f = &fleet{out: out, dir: dir, pacer: meter.NewPacer()}
	if f.engine, err = callers.NewEngine(); err != nil {
		return f, err
	}
	if f.programs, err = procs.Build(ctx, dir); err != nil {
		return f, err
	}
	if f.codec, err = procs.WriteKeys(f.file("keys"), 'K'); err != nil {
		return f, err
	}
	for name, key := range map[string]byte{"trunk-keys": 'T', "edge-keys": 'E'} {
		if _, err := procs.WriteKeys(f.file(name), key); err != nil {
			return f, err
		}
	}
	for name, text := range map[string]string{"clusters": clusterFile(), "geo.json": geoFile()} {
		if err := os.WriteFile(f.file(name), []byte(text), 0o600); err != nil {
			return f, err
		}
	}
	for i := range f.regions {
		if f.regions[i], err = f.newRegion(i); err != nil {
			return f, err
		}
	}
	if f.wan, err = newWAN([2]*node{f.regions[0].router, f.regions[1].router}); err != nil {
		return f, err
	}
	for _, r := range f.regions {
		if err := r.connect(); err != nil {
			return f, err
		}
	}
	for _, r := range f.regions {
		if err := r.startAll(ctx); err != nil {
			return f, err
		}
	}
	return f, nil
}

func (f *fleet) file(name string) string { return filepath.Join(f.dir, name) }

// newNode makes a node that close ends.
func (f *fleet) newNode(a netip.Addr) (*node, error) {
	n, err := newNode(a)
	if err == nil {
		f.nodes = append(f.nodes, n)
	}
	return n, err
}

// close ends everything.
func (f *fleet) close() {
	for _, c := range f.calls {
		c.Stop()
	}
	f.pacer.Close()
	callers.HangUpAll(f.calls)
	for _, n := range f.nodes {
		n.close()
	}
	if f.wan != nil {
		_ = f.wan.close()
	}
}

// servers are all of usher's processes.
func (f *fleet) servers() (all []*server) {
	for _, r := range f.regions {
		for i := range pair {
			all = append(all, r.edges[i], r.clusters[i], r.transceiver[i])
		}
	}
	return all
}

// get reads a page of a server into v.
func (f *fleet) get(ctx context.Context, s *server, path string, v any) error {
	return web.Get(ctx, s.node.web, s.url(path), v)
}

// post sends an offer to a transceiver from a node, with what a CDN would add.
func (f *fleet) post(ctx context.Context, n *node, region int, t *server, offer string) (answer string, err error) {
	answer, _, err = web.Offer(ctx, n.web, t.url("/v1/realtime/calls"), offer, http.Header{regionHeader: {places[region]}})
	return answer, err
}

// fail notes a problem.
func (f *fleet) fail(format string, args ...any) {
	f.problems = append(f.problems, fmt.Sprintf(format, args...))
	f.say("FAIL "+format, args...)
}

// say prints a line.
func (f *fleet) say(format string, args ...any) { _, _ = fmt.Fprintf(f.out, format+"\n", args...) }
