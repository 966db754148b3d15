package simnet

import (
	"container/heap"
	"errors"
	"hash/fnv"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Link is what happens to datagrams in one direction between two hosts. The
// zero value delivers each at once and in order.
type Link struct {
	// Delay is the time on the way.
	Delay time.Duration
	// Jitter adds a random time of up to this much to each datagram, which
	// reorders those that follow more closely.
	Jitter time.Duration
	// Loss and Duplicate are probabilities from 0 to 1.
	Loss, Duplicate float64
	// MTU drops payloads that are longer. 0 lets all pass.
	MTU int
}

// Stats counts what happened to datagrams.
type Stats struct {
	Sent, Delivered int
	Lost            int // by Link.Loss or Link.MTU
	Unreachable     int // nobody there, or a NAT without a mapping
	Overflowed      int // the receiver's queue was full
}

// Network is a set of hosts that can all reach each other. Its methods and
// those of its sockets are safe for concurrent use.
type Network struct {
	seed    uint64
	nextEph uint16

	mu    sync.Mutex
	conns map[netip.AddrPort]*Conn
	nats  map[netip.Addr]*NAT // by public address
	links map[pair]*path
	def   Link
	due   events
	order uint64 // numbers events, so that equal times keep their order
	timer *time.Timer
	stats Stats
}

type pair struct{ from, to netip.Addr }

// path is a link in use, with a random sequence of its own.
type path struct {
	Link
	rng *rand.Rand
}

// New makes a network whose links are all like def, unless SetLink says
// otherwise. Networks with the same seed that see the same datagrams on a link
// treat them the same.
func New(seed uint64, def Link) *Network {
	return &Network{
		seed:    seed,
		nextEph: 49152,
		def:     def,
		conns:   make(map[netip.AddrPort]*Conn),
		nats:    make(map[netip.Addr]*NAT),
		links:   make(map[pair]*path),
	}
}

// SetLink changes the link from one host to another, in this direction, for
// datagrams sent from now on. Behind a NAT the host is its public address.
func (n *Network) SetLink(from, to netip.Addr, l Link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.path(pair{from, to}).Link = l
}

// Stats returns the counters.
func (n *Network) Stats() Stats {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stats
}

// Listen opens a socket. Port 0 takes a free one. The queue holds queue
// datagrams (0: 256); what comes while it is full is lost.
func (n *Network) Listen(addr netip.AddrPort, queue int) (*Conn, error) {
	return n.listen(addr, queue, nil)
}

func (n *Network) listen(addr netip.AddrPort, queue int, nat *NAT) (*Conn, error) {
	if !addr.Addr().IsValid() || addr.Addr().IsUnspecified() {
		return nil, errors.New("simnet: a socket needs the address of its host")
	}
	if queue <= 0 {
		queue = defaultQueue
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	conns := n.conns
	if nat != nil {
		conns = nat.conns
	}
	if addr.Port() == 0 {
		for {
			addr = netip.AddrPortFrom(addr.Addr(), n.nextEph)
			n.nextEph = max(n.nextEph+1, 49152) // wraps round to 0
			if conns[addr] == nil {
				break
			}
		}
	}
	if conns[addr] != nil {
		return nil, &net.OpError{Op: "listen", Net: "udp", Addr: net.UDPAddrFromAddrPort(addr), Err: errors.New("address already in use")}
	}
	c := newConn(n, nat, addr, queue)
	conns[addr] = c
	return c, nil
}

const defaultQueue = 256

// path returns the link of a pair; n.mu is held.
func (n *Network) path(p pair) *path {
	l := n.links[p]
	if l == nil {
		h := fnv.New64a()
		h.Write([]byte(p.from.String() + ">" + p.to.String()))
		l = &path{Link: n.def, rng: rand.New(rand.NewPCG(n.seed, h.Sum64()))}
		n.links[p] = l
	}
	return l
}

// send takes a datagram from a socket on its way.
func (n *Network) send(c *Conn, b []byte, to netip.AddrPort) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stats.Sent++
	from := c.local
	if c.nat != nil {
		if inside := c.nat.conns[to]; inside != nil {
			n.deliver(datagram{from, to, append([]byte(nil), b...), inside})
			return
		}
		from = c.nat.outbound(c, to)
	}
	l := n.path(pair{from.Addr(), to.Addr()})
	// The same draws for each datagram, whatever happens to it.
	loss, dup := l.rng.Float64(), l.rng.Float64()
	late, late2 := l.rng.Float64(), l.rng.Float64()
	if loss < l.Loss || l.MTU > 0 && len(b) > l.MTU {
		n.stats.Lost++
		return
	}
	d := datagram{from: from, to: to, data: append([]byte(nil), b...)}
	n.schedule(d, l.Delay+time.Duration(late*float64(l.Jitter)))
	if dup < l.Duplicate {
		d.data = append([]byte(nil), b...)
		n.schedule(d, l.Delay+time.Duration(late2*float64(l.Jitter)))
	}
}

// datagram is on its way, or in a queue.
type datagram struct {
	from, to netip.AddrPort
	data     []byte
	inside   *Conn // the receiver, if sender and receiver are behind one NAT
}

// event is a delivery to come.
type event struct {
	at    time.Time
	order uint64
	d     datagram
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	if e[i].at.Equal(e[j].at) {
		return e[i].order < e[j].order
	}
	return e[i].at.Before(e[j].at)
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

// schedule delivers a datagram after a time; n.mu is held.
func (n *Network) schedule(d datagram, after time.Duration) {
	now := time.Now()
	if after <= 0 && (len(n.due) == 0 || n.due[0].at.After(now)) {
		n.deliver(d)
		return
	}
	n.order++
	heap.Push(&n.due, event{now.Add(after), n.order, d})
	if n.due[0].order == n.order {
		n.arm(now)
	}
}

// arm sets the timer to the first delivery; n.mu is held.
func (n *Network) arm(now time.Time) {
	if n.timer == nil {
		n.timer = time.AfterFunc(n.due[0].at.Sub(now), n.run)
		return
	}
	n.timer.Reset(n.due[0].at.Sub(now))
}

// run delivers what is due, in order.
func (n *Network) run() {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	for len(n.due) > 0 && !n.due[0].at.After(now) {
		n.deliver(heap.Pop(&n.due).(event).d)
	}
	if len(n.due) > 0 {
		n.arm(now)
	}
}

// deliver puts a datagram into its receiver's queue; n.mu is held.
func (n *Network) deliver(d datagram) {
	c := d.inside
	if c == nil {
		c = n.conns[d.to]
	}
	if nat := n.nats[d.to.Addr()]; c == nil && nat != nil {
		c = nat.inbound(d.from, d.to)
	}
	switch {
	case c == nil || c.isClosed():
		n.stats.Unreachable++
	case !c.push(d):
		n.stats.Overflowed++
	default:
		n.stats.Delivered++
	}
}
