package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/usher-rtc/usher/internal/bench/callers"
	"github.com/usher-rtc/usher/internal/bench/gaps"
	"github.com/usher-rtc/usher/internal/bench/procs"
	"github.com/usher-rtc/usher/internal/bench/wait"
	"github.com/usher-rtc/usher/internal/bench/web"
	"github.com/usher-rtc/usher/internal/e2e/link"
	"github.com/usher-rtc/usher/internal/meter"
	"github.com/usher-rtc/usher/ufrag"
)

// plan says what a fleet is made of.
type plan struct {
	relays   int // 1 by default; group g of the clients goes to relay g, or to the last
	hosts    int // transceivers for callers; 1 by default
	sessions int // callers
	browsers bool
	programs *procs.Programs
	// relayFlags and hostFlags are further arguments.
	relayFlags, hostFlags []string
	// meet makes relays greet all transceivers when they start.
	meet bool
	// spare relays get no clients at first; the last ones are.
	spare int
	// redis gives the relays a flow store.
	redis bool
	// handover lets relays hand over to a successor.
	handover bool
}

// fleet is a running installation with calls on it.
type fleet struct {
	plan
	run      *runner
	dir      string
	keys     string
	codec    ufrag.Codec
	balancer balancer
	relays   []*relayd
	hosts    []*host // those of the browsers come last
	engine   *callers.Engine
	pacer    *meter.Pacer
	callers  []*caller
	talkers  []*talker
	links    []*link.Link // as talkers
	web      *http.Client
	all      []*procs.Process
	store    *redis // nil without one
	drill    string // the name of the one that runs
	verdicts []*verdict
}

// relayd is a relay: where it is, and the process that is there now.
type relayd struct {
	*procs.Process
	addr netip.Addr
	args []string
	url  string
}

// host is a transceiver.
type host struct {
	*procs.Process
	trunk   netip.AddrPort
	args    []string
	url     string
	browser bool
	gone    bool // killed or drained: nothing can be asked of it
	quiet   bool
}

func relayAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 2, byte(i + 1)}) }

// relayDrain and hostDrain are how long programs drain.
const (
	relayDrain = 3 * time.Second
	hostDrain  = 6 * time.Second
)

const (
	startLimit = 15 * time.Second
	// settled is how long calls flow before a drill begins, so that what belongs
	// to their set-up is over.
	settled = 1500 * time.Millisecond
)

// newFleet starts what the plan says and waits until audio flows in all calls.
func (r *runner) newFleet(ctx context.Context, pl plan) (_ *fleet, err error) {
	pl.relays, pl.hosts = max(pl.relays, 1), max(pl.hosts, 1)
	if pl.programs == nil {
		pl.programs = r.programs
	}
	f := &fleet{plan: pl, run: r, pacer: meter.NewPacer(), web: &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{}}}
	defer func() {
		if err != nil {
			r.explain(f)
			_ = f.close() // the fleet has failed already
		}
	}()
	if f.dir, err = os.MkdirTemp(r.dir, "fleet-"); err != nil {
		return f, err
	}
	f.keys = filepath.Join(f.dir, "keys.txt")
	if f.codec, err = procs.WriteKeys(f.keys, 'A'); err != nil {
		return f, err
	}
	for g := range groups {
		f.balancer.assign(g, relayAddr(min(g, f.plan.relays-f.spare-1)))
	}
	if f.redis {
		if f.store, err = r.newRedis(ctx); err != nil {
			return f, err
		}
		f.relayFlags = append(f.relayFlags, "-redis", proxyURL)
	}
	if err := f.balancer.apply(ctx); err != nil {
		return f, err
	}
	if err := f.startHosts(ctx); err != nil {
		return f, err
	}
	for i := range f.plan.relays {
		if err := f.addRelay(ctx, i); err != nil {
			return f, err
		}
	}
	if f.engine, err = callers.NewEngine(); err != nil {
		return f, err
	}
	if err := f.openCallers(ctx); err != nil {
		return f, err
	}
	if f.browsers {
		if err := f.openTalkers(ctx); err != nil {
			return f, err
		}
	}
	return f, wait.For(ctx, settled)
}

// addRelay starts relay number i.
func (f *fleet) addRelay(ctx context.Context, i int) error {
	addr := relayAddr(i)
	r := &relayd{addr: addr, url: fmt.Sprintf("http://%v:8081", addr)}
	r.args = append([]string{
		"-listen", fmt.Sprintf("id=1,addr=%v:%d,advertise=%v", addr, vip.Port(), vip),
		"-trunk", fmt.Sprintf("%v:4000", addr), "-http", fmt.Sprintf("%v:8081", addr),
		"-keys", f.keys, "-allow-upstream", "127.0.3.0/24", "-workers", "2", "-drain", relayDrain.String(),
	}, f.relayFlags...)
	if f.meet {
		for _, h := range f.hosts {
			r.args = append(r.args, "-peer", h.trunk.String())
		}
	}
	if f.handover {
		r.args = append(r.args, "-handover", filepath.Join(f.dir, fmt.Sprintf("handover-%d", i)))
	}
	f.relays = append(f.relays, r)
	_, err := f.startRelay(ctx, i)
	return err
}

// startRelay starts relay number i, again if it was killed, and returns when it
// had its sockets.
func (f *fleet) startRelay(ctx context.Context, i int) (up int64, err error) {
	r := f.relays[i]
	if r.Process, err = f.start(fmt.Sprintf("relay %d", i+1), f.programs.Relayd, r.args...); err != nil {
		return 0, err
	}
	return r.Says(ctx, " relay ingress=", startLimit)
}

func (f *fleet) start(name, path string, args ...string) (*procs.Process, error) {
	p, err := procs.Start(name, path, args...)
	if err == nil {
		f.all = append(f.all, p)
	}
	return p, err
}

func (f *fleet) startHosts(ctx context.Context) error {
	n := f.plan.hosts
	if f.browsers {
		n += len(kinds)
	}
	for i := range n {
		addr := netip.AddrFrom4([4]byte{127, 0, 3, byte(i + 1)})
		h := &host{trunk: netip.AddrPortFrom(addr, 9000), browser: i >= f.plan.hosts}
		page := fmt.Sprintf("127.0.0.1:%d", 8100+i)
		h.url = "http://" + page
		advertise := vip
		if h.browser {
			advertise = doors[i-f.plan.hosts]
		}
		h.args = append([]string{
			"-app", "meter", "-trunk", h.trunk.String(), "-http", page, "-keys", f.keys,
			"-ingress", fmt.Sprintf("id=1,advertise=%v", advertise), "-allow-relay", "127.0.2.0/24", "-drain", hostDrain.String(),
		}, f.hostFlags...)
		f.hosts = append(f.hosts, h)
		if err := f.startHost(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// startHost starts transceiver number i, again if it has ended.
func (f *fleet) startHost(ctx context.Context, i int) (err error) {
	h := f.hosts[i]
	if h.Process, err = f.start(fmt.Sprintf("transceiver %d", i+1), f.programs.Transceiverd, h.args...); err != nil {
		return err
	}
	h.gone = false
	_, err = h.Says(ctx, " transceiver trunk=", startLimit)
	return err
}

// close ends everything, and returns what ended in a way that it should not.
func (f *fleet) close() error {
	for _, t := range f.talkers {
		t.close()
	}
	for _, l := range f.links {
		_ = l.Close() // its errors are lost packets, which the drill counts
	}
	for _, c := range f.callers {
		c.Stop()
	}
	f.pacer.Close()
	callers.HangUpAll(f.callers)
	var errs []error
	for _, p := range f.all {
		errs = append(errs, p.Finish()) // how they end by themselves is a drill of its own
	}
	if f.store != nil {
		f.store.close()
	}
	f.web.CloseIdleConnections()
	return errors.Join(errs...)
}

// get reads a page into v, which may be nil.
func (f *fleet) get(ctx context.Context, url string, v any) error { return web.Get(ctx, f.web, url, v) }

func (f *fleet) do(ctx context.Context, method, url, body string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	return f.web.Do(request)
}

// speak makes callers and transceivers speak or be silent. Browsers always speak.
func (f *fleet) speak(ctx context.Context, up, down bool) error {
	for _, c := range f.callers {
		c.Quiet.Store(!up)
	}
	for _, h := range f.hosts {
		if h.gone || h.browser {
			continue
		}
		h.quiet = !down
		response, err := f.do(ctx, http.MethodPut, h.url+"/debug/audio", strconv.FormatBool(down))
		if err != nil {
			return err
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusNoContent {
			return fmt.Errorf("PUT %s/debug/audio: %s", h.url, response.Status)
		}
	}
	return nil
}

// after waits until d after a time of meter.Now.
func after(ctx context.Context, at int64, d time.Duration) error {
	return wait.For(ctx, time.Duration(at-meter.Now())+d)
}

// measure waits for the end of a spell and judges the calls that which lets
// through; nil is all. Calls of transceivers that have gone are left out.
func (f *fleet) measure(ctx context.Context, name string, w gaps.Spell, which func(h *host, group int) bool) (*verdict, error) {
	return f.measureOthers(ctx, name, w, which, nil)
}

// measureOthers also leaves out sessions.
func (f *fleet) measureOthers(ctx context.Context, name string, w gaps.Spell, which func(h *host, group int) bool, without map[uint32]bool) (*verdict, error) {
	if err := after(ctx, w.To, 0); err != nil {
		return nil, err
	}
	since := w.From - int64(settled)
	reports := make(map[*host]map[uint32]meter.CallReport)
	for _, h := range f.hosts {
		if h.gone {
			continue
		}
		var err error
		if reports[h], err = web.Audio(ctx, f.web, h.url, since); err != nil {
			return nil, err
		}
	}
	var calls []call
	var missing []string
	add := func(h *host, group int, session uint32, name string, quiet bool, sent, received []meter.Event) {
		if h.gone || without[session] || which != nil && !which(h, group) {
			return
		}
		there, ok := reports[h][session]
		if !ok {
			missing = append(missing, fmt.Sprintf("%s has lost session %d of %s", h.Name, session, name))
			return
		}
		c := call{name: name}
		if !quiet {
			c.up = &gaps.Stream{Sent: sent, Received: there.Received}
		}
		if !h.quiet {
			c.down = &gaps.Stream{Sent: there.Sent, Received: received}
		}
		calls = append(calls, c)
	}
	for _, c := range f.callers {
		add(c.host, c.group, c.session, "", c.Quiet.Load(), c.Spoken.Since(since), c.Heard.Since(since))
	}
	for _, t := range f.talkers {
		sent, received := t.heard(since)
		add(t.host, t.group, t.session, t.name, false, sent, received)
	}
	v := judge(name, w, calls)
	for _, m := range missing {
		v.Fail("%s", m)
	}
	return v, nil
}

// report notes a verdict.
func (f *fleet) report(v *verdict) { f.verdicts = append(f.verdicts, v) }

// refresh asks the pages which calls they are in: one that heard nothing for a
// second between two drills has called again.
func (f *fleet) refresh(ctx context.Context) error {
	for _, t := range f.talkers {
		if t.host.gone {
			continue
		}
		if err := t.called(ctx, 1, callLimit); err != nil {
			return err
		}
		if err := t.locate(ctx); err != nil {
			return err
		}
	}
	return nil
}
