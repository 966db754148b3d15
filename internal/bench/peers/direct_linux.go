package peers

import "github.com/usher-rtc/usher/internal/bench/load"

// direct is no relay at all: packets go straight to the other side. It shows
// what the measurement itself adds to latency.
type direct struct{ env *Env }

// NewDirect returns the path without a relay. Its Process is nil.
func NewDirect() Peer { return &direct{} }

func (p *direct) Name() string           { return "direct" }
func (p *direct) Process() *load.Process { return nil }
func (p *direct) Stop() error            { return nil }
func (p *direct) Start(env *Env) error   { p.env = env; return nil }
func (p *direct) Establish(n int) error  { return checkBothWays(p.env, p, n, nil) }

func (p *direct) Up(buf []byte, _ int, payload []byte) (int, load.Endpoint) {
	return copy(buf, payload), p.env.HostAddr(0)
}

func (p *direct) Down(buf []byte, clients []int, payloads [][]byte) (n, used int, src, dst load.Endpoint) {
	return copy(buf, payloads[0]), 1, p.env.HostAddr(0), p.env.ClientAddr(clients[0])
}

func (p *direct) SplitUp(_ int, _ load.Endpoint, d []byte, out [][]byte) [][]byte {
	return append(out, d)
}

func (p *direct) SplitDown(d []byte, out [][]byte) [][]byte { return append(out, d) }
