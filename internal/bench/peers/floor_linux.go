package peers

import (
	_ "embed"
	"fmt"
	"strconv"
	"time"

	"github.com/usher-rtc/usher/internal/bench/load"
)

//go:embed cfloor/floor.c
var floorC []byte

const (
	// FloorSize is the payload size that the floor's programs know.
	FloorSize = 160
	// FloorBatch is how many datagrams they take or give with one call.
	FloorBatch = 64
	// floorBundle is how many payloads share a datagram: usher's MTU holds as many.
	floorBundle = 8
)

// Floor is one pattern of system calls without any work between them.
type Floor struct {
	// Name is the name in tables.
	Name string
	// OneIn and OneOut take and give one datagram with a call instead of a batch.
	OneIn, OneOut bool
	// Count sends one datagram for each batch of received ones, Amplify a whole
	// batch for each received one, so that only one side costs anything.
	Count, Amplify bool
	// Bundle sends several payloads in each datagram, and all datagrams of a batch
	// with one call that the kernel cuts (UDP_SEGMENT).
	Bundle bool
	// Split receives bundles and sends their payloads to the clients. Else payloads
	// go to the upstream, amplified ones to the clients unless they are bundles.
	Split bool
	// Fragment allows the kernel to fragment what is sent, as usher does: then each
	// datagram needs an identification.
	Fragment bool
}

func (f *Floor) toClients() bool { return f.Split || f.Amplify && !f.Bundle }

// args are the arguments of floor.c.
func (f *Floor) args() []string {
	pick := func(b bool, yes, no string) string {
		if b {
			return yes
		}
		return no
	}
	return []string{
		pick(f.OneIn, "1", "64"),
		pick(f.Count, "count", pick(f.Amplify, "64", "all")),
		pick(f.OneOut, "1", pick(f.Bundle, "gso", "64")),
		pick(f.toClients(), "clients", "upstream"),
		pick(f.Fragment, "1", "0"),
		strconv.Itoa(FloorSize),
	}
}

// floorPeer is a Floor's process.
type floorPeer struct {
	Floor
	env  *Env
	proc *load.Process
	in   load.Endpoint
}

// NewFloor returns a peer that makes a pattern of system calls. Payloads must be of
// FloorSize; one of Amplify or Split takes uplink packets or downlink packets only.
func NewFloor(f Floor) Peer { return &floorPeer{Floor: f} }

func (p *floorPeer) Name() string           { return p.Floor.Name }
func (p *floorPeer) Process() *load.Process { return p.proc }
func (p *floorPeer) Stop() error            { return p.proc.Stop() }

func (p *floorPeer) Start(env *Env) error {
	p.env = env
	bin, err := compile(env, "floor", floorC)
	if err != nil {
		return err
	}
	up := env.HostAddr(0)
	argv := append([]string{bin}, p.args()...)
	argv = append(argv, addrPort(up).Addr().String(), strconv.Itoa(int(up.Port)), strconv.Itoa(int(env.Clients.Port())))
	if p.proc, err = load.StartProcess(env.CPUs, argv...); err != nil {
		return err
	}
	line, err := p.proc.Line(5 * time.Second)
	if err != nil {
		return err
	}
	p.in, err = parseEndpoint(line)
	return err
}

// Establish checks that packets arrive; a floor knows no clients.
func (p *floorPeer) Establish(int) error {
	var payload [FloorSize]byte
	PutPayload(payload[:], 1, 1, 0)
	got := 0
	for range FloorBatch { // a count needs that many
		k, dst := p.Up(p.env.Raw.Buffer(), 1, payload[:])
		p.env.Raw.Push(p.env.ClientAddr(1), dst, k)
	}
	p.env.Raw.Flush()
	pollUntilQuiet(func() int {
		down := p.env.Clients.Recv()
		for i := range down {
			got += len(p.SplitDown(p.env.Clients.Data(i), nil))
		}
		up := 0
		for h, s := range p.env.Upstreams {
			n := s.Recv()
			up += n
			for i := range n {
				got += len(p.SplitUp(h, s.From(i), s.Data(i), nil))
			}
		}
		return down + up
	}, 10*tryPause)
	want := FloorBatch
	if p.Amplify {
		want *= FloorBatch
	}
	if got != want {
		return fmt.Errorf("%s: %d of %d packets arrived", p.Floor.Name, got, want)
	}
	return nil
}

func (p *floorPeer) Up(buf []byte, _ int, payload []byte) (int, load.Endpoint) {
	return copy(buf, payload), p.in
}

func (p *floorPeer) Down(buf []byte, _ []int, payloads [][]byte) (n, used int, src, dst load.Endpoint) {
	for _, b := range payloads[:min(len(payloads), floorBundle)] {
		n += copy(buf[n:], b)
		used++
	}
	return n, used, p.env.HostAddr(0), p.in
}

// Group is one for all: any payloads share a datagram.
func (p *floorPeer) Group(int) uint64 { return 0 }

func (p *floorPeer) SplitUp(_ int, _ load.Endpoint, d []byte, out [][]byte) [][]byte {
	if p.Count {
		for range FloorBatch { // that many were received for it
			out = append(out, d)
		}
		return out
	}
	for len(d) >= FloorSize {
		out, d = append(out, d[:FloorSize]), d[FloorSize:]
	}
	return out
}

func (p *floorPeer) SplitDown(d []byte, out [][]byte) [][]byte { return append(out, d) }
