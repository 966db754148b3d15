package peers

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/usher-rtc/usher/internal/bench/load"
)

// Env is what the peers of one run share.
type Env struct {
	// Raw sends for clients and upstream.
	Raw *load.Raw
	// Clients takes what the relay sends to clients.
	Clients *load.Sink
	// Upstreams take what the relay sends to the upstream, number 0. usher's
	// sessions are spread over all of them, each a Host.
	Upstreams []*load.Sink
	// CPUs is the processor list for the relay, "1" or "0,1".
	CPUs string
	// Softirq is the softirq thread of the harness' own processor, 0 if unknown:
	// while it wants to run, packets are still on their way.
	Softirq int
	// Workers is how many workers or relay threads a peer gets.
	Workers int
	// Dir is a scratch directory of this run.
	Dir string
	// Exe is the harness itself: peers written in Go are roles of it.
	Exe string
}

// ClientAddr returns the address of a client: its own IP address, the clients' common port.
func (e *Env) ClientAddr(client int) load.Endpoint {
	return load.Endpoint{IP: [4]byte{127, 1, byte(client / 250), byte(1 + client%250)}, Port: e.Clients.Port()}
}

// HostAddr returns the address of upstream number h.
func (e *Env) HostAddr(h int) load.Endpoint {
	return load.Endpoint{IP: [4]byte{127, 200, 0, 1}, Port: e.Upstreams[h].Port()}
}

// Peer is one relay under test. Its methods are called by one goroutine.
type Peer interface {
	// Name is the name in tables and flags.
	Name() string
	// Start starts the process. Call it from a goroutine locked to a thread
	// that outlives the process.
	Start(env *Env) error
	// Establish makes the flows of the first n clients known, and checks that
	// a packet of each arrives in both directions.
	Establish(n int) error
	// Up writes the datagram with which a client sends a payload.
	Up(buf []byte, client int, payload []byte) (n int, dst load.Endpoint)
	// Down writes one datagram with which the upstream sends the first used of the payloads.
	Down(buf []byte, clients []int, payloads [][]byte) (n, used int, src, dst load.Endpoint)
	// SplitUp appends the payloads in a datagram that an upstream got.
	SplitUp(host int, from load.Endpoint, d []byte, out [][]byte) [][]byte
	// SplitDown appends the payloads in a datagram that a client got.
	SplitDown(d []byte, out [][]byte) [][]byte
	// Process returns the process, for its accounting.
	Process() *load.Process
	// Stop ends the process.
	Stop() error
}

// Grouper is implemented by a peer whose downlink packets share datagrams:
// those of one group can.
type Grouper interface {
	Group(client int) uint64
}

// loopback returns 127.0.0.1 with a port.
func loopback(port uint16) load.Endpoint {
	return load.Endpoint{IP: [4]byte{127, 0, 0, 1}, Port: port}
}

// freePort returns a UDP port on 127.0.0.1 that nobody has now.
func freePort() (uint16, error) {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	addr, ok := c.LocalAddr().(*net.UDPAddr)
	if !ok {
		return 0, errors.New("no port")
	}
	return uint16(addr.Port), nil
}

// Handshakes send at most this many packets before they read answers, so
// that a relay with a small receive buffer loses none.
const chunk = 32

const (
	tries    = 40
	tryPause = 25 * time.Millisecond
)

// exchange calls send for each client that is not done, then poll until
// nothing more comes, and repeats that a bounded number of times.
func exchange(env *Env, n int, done func(client int) bool, send func(client int), poll func() int) error {
	left := 0
	for range tries {
		left = 0
		for i := range n {
			if done(i) {
				continue
			}
			left++
			send(i)
			if left%chunk == 0 {
				env.Raw.Flush()
				pollUntilQuiet(poll, 2*time.Millisecond)
			}
		}
		if left == 0 {
			return nil
		}
		env.Raw.Flush()
		pollUntilQuiet(poll, tryPause)
	}
	return fmt.Errorf("%d of %d clients got no answer", left, n)
}

func pollUntilQuiet(poll func() int, quiet time.Duration) {
	last := time.Now()
	for end := last.Add(2 * time.Second); time.Now().Before(end); {
		switch {
		case poll() > 0:
			last = time.Now()
		case time.Since(last) > quiet:
			return
		default:
			time.Sleep(200 * time.Microsecond)
		}
	}
}

// FromRelay reads one batch from every upstream socket, hands f each payload
// in it, and returns how many datagrams there were.
func (e *Env) FromRelay(p Peer, f func(from load.Endpoint, payload []byte)) int {
	total := 0
	for h, s := range e.Upstreams {
		k := s.Recv()
		total += k
		for i := range k {
			for _, b := range p.SplitUp(h, s.From(i), s.Data(i), nil) {
				f(s.From(i), b)
			}
		}
	}
	return total
}

// checkBothWays sends a packet of every client up, then one down to every
// client, and requires that each arrives. learn is told where each client's
// packets come from at the upstream; it may be nil.
func checkBothWays(env *Env, p Peer, n int, learn func(client int, from load.Endpoint)) error {
	var payload [64]byte
	seen := make([]bool, n)
	parts := make([][]byte, 0, 64)
	up := func() int {
		return env.FromRelay(p, func(from load.Endpoint, b []byte) {
			if c, _, ok := ParsePayload(b); ok && c < n {
				seen[c] = true
				if learn != nil {
					learn(c, from)
				}
			}
		})
	}
	err := exchange(env, n, func(c int) bool { return seen[c] }, func(c int) {
		PutPayload(payload[:], c, 1, 0)
		k, dst := p.Up(env.Raw.Buffer(), c, payload[:])
		env.Raw.Push(env.ClientAddr(c), dst, k)
	}, up)
	if err != nil {
		return fmt.Errorf("%s: uplink: %w", p.Name(), err)
	}
	clear(seen)
	down := func() int {
		k := env.Clients.Recv()
		for i := range k {
			parts = p.SplitDown(env.Clients.Data(i), parts[:0])
			for _, b := range parts {
				if c, _, ok := ParsePayload(b); ok && c < n {
					seen[c] = true
				}
			}
		}
		return k
	}
	err = exchange(env, n, func(c int) bool { return seen[c] }, func(c int) {
		PutPayload(payload[:], c, 1, 0)
		k, _, src, dst := p.Down(env.Raw.Buffer(), []int{c}, [][]byte{payload[:]})
		env.Raw.Push(src, dst, k)
	}, func() int { return down() + up() })
	if err != nil {
		return fmt.Errorf("%s: downlink: %w", p.Name(), err)
	}
	return nil
}
