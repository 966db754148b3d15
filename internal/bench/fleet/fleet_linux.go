package main

import (
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/usher-rtc/usher/internal/bench/callers"
	"github.com/usher-rtc/usher/internal/meter"
	"github.com/usher-rtc/usher/ufrag"
)

var errNoRedis = errors.New("no redis-server: install it (Debian: apt-get install redis-server)")

// fleet is both regions and the calls on them.
type fleet struct {
	out                  io.Writer
	dir                  string
	relayd, transceiverd string
	codec                ufrag.Codec
	nodes                []*node
	regions              [2]*region
	wan                  *wan
	engine               *callers.Engine
	pacer                *meter.Pacer
	calls                []*call
	quick                bool          // see options
	noise                time.Duration // what the machine adds to gaps by itself
	problems             []string
}

// available reports what is missing; nil means nothing.
func available() error {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces need root")
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		return fmt.Errorf("no TUN devices: %w", err)
	}
	for _, p := range []struct{ program, pkg string }{{"ip", "iproute2"}, {"nft", "nftables"}} {
		if _, err := exec.LookPath(p.program); err != nil {
			return fmt.Errorf("no %s: install it (Debian: apt-get install %s)", p.program, p.pkg)
		}
	}
	if _, err := exec.LookPath("redis-server"); err != nil {
		return errNoRedis
	}
	return nil
}

// newFleet makes the topology and starts all processes. The caller closes the
// fleet, also after an error. Files go into dir; what it measures goes to out.
func newFleet(ctx context.Context, dir string, out io.Writer) (f *fleet, err error) {
	f = &fleet{out: out, dir: dir, pacer: meter.NewPacer()}
	if f.engine, err = callers.NewEngine(); err != nil {
		return f, err
	}
	if err := f.build(ctx); err != nil {
		return f, err
	}
	for name, key := range map[string]byte{"keys": 'K', "trunk-keys": 'T', "edge-keys": 'E'} {
		if err := f.makeKeys(name, key); err != nil {
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

// build compiles the example programs.
func (f *fleet) build(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-o", f.dir+"/", "github.com/usher-rtc/usher/examples/relayd", "github.com/usher-rtc/usher/examples/transceiverd")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	f.relayd, f.transceiverd = f.file("relayd"), f.file("transceiverd")
	return nil
}

func (f *fleet) file(name string) string { return filepath.Join(f.dir, name) }

// makeKeys makes a key file. The first one is that of the ufrags, which the
// fleet reads too.
func (f *fleet) makeKeys(name string, id byte) error {
	key, err := ufrag.GenerateKey(id)
	if err != nil {
		return err
	}
	if name == "keys" {
		ring, err := ufrag.NewKeyring(id, key)
		if err != nil {
			return err
		}
		f.codec = ufrag.NewCodec(ring)
	}
	text, err := ufrag.FormatKeyFile(id, key)
	if err != nil {
		return err
	}
	return os.WriteFile(f.file(name), text, 0o600)
}

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
		c.stop()
	}
	f.pacer.Close()
	closeAll(f.calls)
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

// get reads a page of a server into v: JSON, or gob for a meter.Report.
func (f *fleet) get(ctx context.Context, s *server, path string, v any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url(path), http.NoBody)
	if err != nil {
		return err
	}
	response, err := s.node.web.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: GET %s: %s", s.name, path, response.Status)
	}
	if report, ok := v.(*meter.Report); ok {
		return gob.NewDecoder(response.Body).Decode(report)
	}
	return json.NewDecoder(response.Body).Decode(v)
}

// post sends an offer to a transceiver from a node, with what a CDN would add.
func (f *fleet) post(ctx context.Context, n *node, region int, t *server, offer string) (answer string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url("/v1/realtime/calls"), strings.NewReader(offer))
	if err != nil {
		return "", err
	}
	request.Header.Set("Content-Type", "application/sdp")
	request.Header.Set(regionHeader, places[region])
	response, err := n.web.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	if response.StatusCode != http.StatusCreated {
		return "", fmt.Errorf("%s: offer: %s: %s", t.name, response.Status, strings.TrimSpace(string(body)))
	}
	return string(body), nil
}

// fail notes a problem.
func (f *fleet) fail(format string, args ...any) {
	f.problems = append(f.problems, fmt.Sprintf(format, args...))
	f.say("FAIL "+format, args...)
}

// say prints a line.
func (f *fleet) say(format string, args ...any) { _, _ = fmt.Fprintf(f.out, format+"\n", args...) }

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
