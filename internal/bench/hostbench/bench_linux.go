package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/usher-rtc/usher/internal/bench/callers"
	"github.com/usher-rtc/usher/internal/bench/hosts"
	"github.com/usher-rtc/usher/internal/bench/load"
	"github.com/usher-rtc/usher/internal/bench/wait"
	"github.com/usher-rtc/usher/internal/bench/web"
)

// bench is one run.
type bench struct {
	options
	exe   string
	cpus  string // all processors
	alive []*process
	out   report
}

func newBench(o options) *bench {
	return &bench{options: o, cpus: fmt.Sprintf("%d,%d", min(o.hostCPU, o.clientCPU), max(o.hostCPU, o.clientCPU))}
}

func (b *bench) run(ctx context.Context) (err error) {
	if b.exe, err = os.Executable(); err != nil {
		return err
	}
	key, err := hosts.NewKey()
	if err != nil {
		return err
	}
	if err := os.Setenv(hosts.KeyEnv, key); err != nil {
		return err
	}
	var failed error // a part that fails takes nothing from the others
	for _, p := range []struct {
		name string
		run  func(context.Context) error
	}{{"setup", b.setup}, {"idle", b.idle}, {"rate", b.rate}, {"cpu", b.cpu}, {"churn", b.churns}} {
		if !b.part(p.name) || ctx.Err() != nil {
			continue
		}
		if err := errors.Join(p.run(ctx), b.stopAll()); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", p.name, err))
		}
	}
	return errors.Join(failed, b.out.print(os.Stdout))
}

// process is a server, a relay or a fleet.
type process struct {
	*load.Process
	name    string
	control string // address of its control port
	relay   *process
}

// startLimit is how long a process may take to say where it listens.
const startLimit = 30 * time.Second

// start runs this program in one of its roles and returns what it says, a line each.
func (b *bench) start(name, cpus string, lines int, args ...string) (*process, []string, error) {
	p, err := load.StartProcess(cpus, append([]string{b.exe}, args...)...)
	if err != nil {
		return nil, nil, err
	}
	said := make([]string, 0, lines)
	for range lines {
		line, err := p.Line(startLimit)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
		said = append(said, line)
	}
	p.Discard()
	proc := &process{Process: p, name: name, control: said[0]}
	b.alive = append(b.alive, proc)
	return proc, said, nil
}

// stopAll ends the processes of a part.
func (b *bench) stopAll() error {
	var errs []error
	for i := len(b.alive) - 1; i >= 0; i-- {
		p := b.alive[i]
		if err := p.Stop(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w: %s", p.name, err, strings.TrimSpace(p.Errors())))
		}
	}
	b.alive = nil
	return errors.Join(errs...)
}

// row is a server that is compared.
type row struct {
	name string
	role hosts.Role
	// apart keeps it out of "the best stock row": it has what the user must know to ask for.
	apart bool
}

func (r row) usher() bool { return r.role.Kind == kindUsher }

const (
	kindUsher = "usher"
	kindRelay = "relay"
	kindStock = "stock"
)

// server starts a row's server, with a relay in front if it is usher's. The
// relay runs on the processors relayCPUs.
func (b *bench) server(r row, cpus, relayCPUs string) (*process, error) {
	var relay *process
	if r.usher() {
		args, err := hosts.Role{Kind: kindRelay}.Args()
		if err != nil {
			return nil, err
		}
		p, said, err := b.start("relay of "+r.name, relayCPUs, 2, args...)
		if err != nil {
			return nil, err
		}
		relay = p
		if r.role.Ingress, err = netip.ParseAddrPort(said[1]); err != nil {
			return nil, err
		}
	}
	args, err := r.role.Args()
	if err != nil {
		return nil, err
	}
	p, _, err := b.start(r.name, cpus, 1, args...)
	if err != nil {
		return nil, err
	}
	p.relay = relay
	return p, nil
}

// fleet starts a process of clients that call a server. See callers.Fleet.Mute.
func (b *bench) fleet(of *process, cpus string, mute bool) (*process, error) {
	role := someCallers
	if mute {
		role = muteCallers
	}
	p, _, err := b.start("callers of "+of.name, cpus, 1, role, of.control)
	return p, err
}

// tell makes a fleet do something and returns when it is done.
func tell(ctx context.Context, fleet *process, c callers.Command) (l callers.Load, err error) {
	body, err := json.Marshal(c)
	if err != nil {
		return l, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+fleet.control+"/", bytes.NewReader(body))
	if err != nil {
		return l, err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return l, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return l, err
	}
	if response.StatusCode != http.StatusOK {
		return l, fmt.Errorf("%s: %s", fleet.name, strings.TrimSpace(string(answer)))
	}
	return l, json.Unmarshal(answer, &l)
}

// get reads a page of a server into v; see web.Get.
func (p *process) get(ctx context.Context, path string, v any) error {
	return web.Get(ctx, http.DefaultClient, "http://"+p.control+path, v)
}

// usage collects a server's garbage and returns what it holds.
func (p *process) usage(ctx context.Context) (u hosts.Usage, err error) {
	err = p.get(ctx, "/usage", &u)
	return u, err
}

// count is usage without a collection.
func (p *process) count(ctx context.Context) (u hosts.Usage, err error) {
	err = p.get(ctx, "/count", &u)
	return u, err
}

// drops says where a server and its relay have lost packets since they started.
func (p *process) drops(ctx context.Context) (string, error) {
	u, err := p.count(ctx)
	if err != nil || p.relay == nil {
		return fmt.Sprint(u.Drops), err
	}
	r, err := p.relay.count(ctx)
	return fmt.Sprintf("%v, its relay %v", u.Drops, r.Drops), err
}

// empty waits until a server has no session.
func (p *process) empty(ctx context.Context) error {
	for end := time.Now().Add(emptyLimit); ; {
		u, err := p.count(ctx)
		if err != nil {
			return err
		}
		if u.Live == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s: %d sessions are left after %v", p.name, u.Live, emptyLimit)
		}
		if err := wait.For(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}
