package peers

import (
	_ "embed"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/usher-rtc/usher/internal/bench/load"
)

//go:embed cforward/forward.c
var forwardC []byte

// plain is a forwarder of plain frames.
type plain struct {
	env     *Env
	name    string
	argv    func(env *Env) ([]string, error)
	proc    *load.Process
	ingress load.Endpoint
	trunk   load.Endpoint
}

// NewNaive returns the forwarder that reads and writes one packet a call in Go.
func NewNaive() Peer {
	return &plain{name: "naive", argv: func(env *Env) ([]string, error) {
		return []string{env.Exe, "serve", "naive", env.HostAddr(0).String()}, nil
	}}
}

// NewC returns the forwarder in C: recvmmsg, sendmmsg, epoll, batches of 32.
func NewC() Peer {
	return &plain{name: "c", argv: func(env *Env) ([]string, error) {
		bin, err := compile(env, "forward", forwardC)
		if err != nil {
			return nil, err
		}
		up := env.HostAddr(0)
		ip := fmt.Sprintf("%d.%d.%d.%d", up.IP[0], up.IP[1], up.IP[2], up.IP[3])
		return []string{bin, ip, strconv.Itoa(int(up.Port))}, nil
	}}
}

// compile makes a program of one C file in the scratch directory, once a run.
func compile(env *Env, name string, source []byte) (bin string, err error) {
	bin = filepath.Join(env.Dir, name)
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	}
	src := bin + ".c"
	if err := os.WriteFile(src, source, 0o600); err != nil {
		return "", err
	}
	out, err := exec.Command("gcc", "-O2", "-Wall", "-o", bin, src).CombinedOutput() //nolint:noctx // a compiler ends by itself
	if err != nil {
		return "", fmt.Errorf("gcc: %w: %s", err, out)
	}
	return bin, nil
}

func (p *plain) Name() string           { return p.name }
func (p *plain) Process() *load.Process { return p.proc }
func (p *plain) Stop() error            { return p.proc.Stop() }

func (p *plain) Start(env *Env) error {
	p.env = env
	argv, err := p.argv(env)
	if err != nil {
		return err
	}
	if p.proc, err = load.StartProcess(env.CPUs, argv...); err != nil {
		return err
	}
	// One line: the ingress address, and the trunk address if that is another.
	line, err := p.proc.Line(5 * time.Second)
	if err != nil {
		return err
	}
	words := strings.Fields(line)
	if p.ingress, err = parseEndpoint(words[0]); err != nil {
		return err
	}
	p.trunk, err = parseEndpoint(words[len(words)-1])
	return err
}

func parseEndpoint(s string) (load.Endpoint, error) {
	ap, err := netip.ParseAddrPort(s)
	if err != nil || !ap.Addr().Is4() {
		return load.Endpoint{}, fmt.Errorf("not an IPv4 address and port: %q", s)
	}
	return load.Endpoint{IP: ap.Addr().As4(), Port: ap.Port()}, nil
}

func addrPort(e load.Endpoint) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4(e.IP), e.Port)
}

func (p *plain) Establish(n int) error { return checkBothWays(p.env, p, n, nil) }

func (p *plain) Up(buf []byte, _ int, payload []byte) (int, load.Endpoint) {
	return copy(buf, payload), p.ingress
}

func (p *plain) Down(buf []byte, clients []int, payloads [][]byte) (n, used int, src, dst load.Endpoint) {
	putPlain(buf, addrPort(p.env.ClientAddr(clients[0])), len(payloads[0]))
	n = plainLen + copy(buf[plainLen:], payloads[0])
	return n, 1, p.env.HostAddr(0), p.trunk
}

func (p *plain) SplitUp(_ int, _ load.Endpoint, d []byte, out [][]byte) [][]byte {
	if _, payload, ok := parsePlain(d); ok {
		out = append(out, payload)
	}
	return out
}

func (p *plain) SplitDown(d []byte, out [][]byte) [][]byte { return append(out, d) }
