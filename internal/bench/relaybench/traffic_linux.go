package main

import (
	"cmp"
	"slices"

	"github.com/usher-rtc/usher/internal/bench/load"
	"github.com/usher-rtc/usher/internal/bench/peers"
)

// packet is a downlink packet.
type packet struct {
	client  int
	group   uint64
	payload []byte
}

// traffic makes one cell's packets for one peer and counts what arrives.
type traffic struct {
	env     *peers.Env
	peer    peers.Peer
	cell    cell
	grouper peers.Grouper // nil if downlink packets never share a datagram

	next    uint32 // packets made, both directions
	ups     uint32
	downs   uint32
	pending []packet // downlink packets that are due
	clients []int    // the same, as Down takes them
	waiting [][]byte
	slab    [load.Slots][burstSize]byte
	up      [burstSize]byte
	parts   [][]byte

	sent, sentDown       uint64 // packets
	downDatagrams        uint64
	received, receivedUp uint64
	upDatagrams          uint64
	lastStamp            int64
	latencies            []int64 // nanoseconds; nil: do not record
}

func newTraffic(env *peers.Env, p peers.Peer, c cell) *traffic {
	grouper, _ := p.(peers.Grouper)
	return &traffic{
		env: env, peer: p, grouper: grouper, cell: c,
		pending: make([]packet, 0, load.Slots),
		clients: make([]int, 0, load.Slots),
		waiting: make([][]byte, 0, load.Slots),
		parts:   make([][]byte, 0, load.Slots),
	}
}

// emit sends n packets now, at most load.Slots. Downlink packets that are due
// at the same time may share a datagram, as they do in a Host's writer.
func (t *traffic) emit(n int) {
	now := load.Now()
	group := uint32(t.cell.sizes.group())
	for range min(n, load.Slots) {
		down := t.cell.dir == downlink
		if t.cell.dir == both {
			down = (t.next/group)%2 == 1
		}
		size := t.cell.sizes.size(t.next)
		t.next++
		if down {
			c := int(t.downs/group) % t.cell.clients
			b := t.slab[len(t.pending)][:size]
			peers.PutPayload(b, c, uint16(t.downs), now)
			p := packet{client: c, payload: b}
			if t.grouper != nil {
				p.group = t.grouper.Group(c)
			}
			t.pending = append(t.pending, p)
			t.downs++
			continue
		}
		c := int(t.ups/group) % t.cell.clients
		b := t.up[:size]
		peers.PutPayload(b, c, uint16(t.ups), now)
		k, dst := t.peer.Up(t.env.Raw.Buffer(), c, b)
		t.env.Raw.Push(t.env.ClientAddr(c), dst, k)
		t.ups++
		t.sent++
	}
	t.flushDown()
	t.env.Raw.Flush()
}

func (t *traffic) flushDown() {
	if t.grouper != nil {
		slices.SortStableFunc(t.pending, func(a, b packet) int { return cmp.Compare(a.group, b.group) })
	}
	for _, p := range t.pending {
		t.clients = append(t.clients, p.client)
		t.waiting = append(t.waiting, p.payload)
	}
	t.pending = t.pending[:0]
	for off := 0; off < len(t.waiting); {
		k, used, src, dst := t.peer.Down(t.env.Raw.Buffer(), t.clients[off:], t.waiting[off:])
		t.env.Raw.Push(src, dst, k)
		t.downDatagrams++
		t.sent += uint64(used)
		t.sentDown += uint64(used)
		off += used
	}
	t.clients, t.waiting = t.clients[:0], t.waiting[:0]
}

// collect takes one batch from each sink and returns how many datagrams there were.
func (t *traffic) collect() int {
	up := 0
	for h, s := range t.env.Upstreams {
		n := s.Recv()
		up += n
		for i := range n {
			t.parts = t.peer.SplitUp(h, s.From(i), s.Data(i), t.parts[:0])
			if k := t.count(s.Stamp(i)); k > 0 {
				t.receivedUp += k
				t.upDatagrams++
			}
		}
	}
	down := t.env.Clients.Recv()
	for i := range down {
		s := t.env.Clients
		t.parts = t.peer.SplitDown(s.Data(i), t.parts[:0])
		t.count(s.Stamp(i))
	}
	return up + down
}

func (t *traffic) count(stamp int64) uint64 {
	n := uint64(0)
	for _, b := range t.parts {
		_, sentAt, ok := peers.ParsePayload(b)
		if !ok {
			continue
		}
		n++
		if t.latencies != nil && stamp != 0 && len(t.latencies) < cap(t.latencies) {
			t.latencies = append(t.latencies, stamp-sentAt)
		}
	}
	t.received += n
	t.lastStamp = max(t.lastStamp, stamp)
	return n
}

// reset forgets the counts, not the sequence.
func (t *traffic) reset() {
	t.sent, t.sentDown, t.downDatagrams = 0, 0, 0
	t.received, t.receivedUp, t.upDatagrams = 0, 0, 0
	t.lastStamp = 0
	if t.latencies != nil {
		t.latencies = t.latencies[:0]
	}
}
