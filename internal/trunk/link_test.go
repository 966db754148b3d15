package trunk

import (
	"math/rand/v2"
	"testing"
	"time"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// end is one side: its link, and what it would do.
type end struct {
	*Link
	proofs int // how often it acted on a proven epoch
}

func newEnd(epoch uint64) *end {
	return &end{Link: NewLink(epoch, [16]byte{byte(epoch), 1, 2, 3})}
}

// packet is a datagram between two ends, as the structs it would be parsed to.
type packet struct {
	h     Header
	hello *Hello
	ack   *HelloAck
}

func (e *end) hello(now time.Time) (packet, bool) {
	nonce, ok := e.Hello(now)
	return packet{h: e.Header(TypeHello), hello: &Hello{Nonce: nonce}}, ok
}

// receive handles a packet and returns the answers.
func (e *end) receive(p packet) (out []packet) {
	e.Observe(&p.h)
	switch {
	case p.hello != nil:
		ack := e.OnHello(&p.h, p.hello)
		out = append(out, packet{h: e.Header(TypeHelloAck), ack: &ack})
	case p.ack != nil:
		ack, reply, proven := e.OnHelloAck(&p.h, p.ack)
		if proven {
			e.proofs++
		}
		if reply {
			out = append(out, packet{h: e.Header(TypeHelloAck), ack: &ack})
		}
	}
	return out
}

// exchange delivers everything until there is silence, and returns all packets.
func exchange(a, b *end, first packet) (all []packet) {
	from, to := a, b
	queue := []packet{first}
	for len(queue) > 0 && len(all) < 100 {
		var answers []packet
		for _, p := range queue {
			all = append(all, p)
			answers = append(answers, to.receive(p)...)
		}
		from, to, queue = to, from, answers
	}
	return all
}

func proven(t *testing.T, e *end, epoch uint64) {
	t.Helper()
	if got, ok := e.Peer(); !ok || got != epoch {
		t.Errorf("peer %#x, %v; want %#x", got, ok, epoch)
	}
}

func TestHandshakeProvesBothSides(t *testing.T) {
	a, b := newEnd(0xa), newEnd(0xb)
	h, ok := a.hello(start)
	if !ok {
		t.Fatal("no hello")
	}
	b.receive(h)
	if _, ok := b.Peer(); ok || b.proofs != 0 {
		t.Error("a hello alone acts")
	}
	all := exchange(a, b, h)
	if len(all) != 3 {
		t.Errorf("%d datagrams, want hello, ack, ack", len(all))
	}
	proven(t, a, 0xb)
	proven(t, b, 0xa)
	if a.proofs != 1 || b.proofs != 1 {
		t.Errorf("acted %d and %d times", a.proofs, b.proofs)
	}
	// The same again proves nothing new.
	h, _ = b.hello(start.Add(time.Minute))
	exchange(b, a, h)
	if a.proofs != 1 || b.proofs != 1 {
		t.Errorf("acted %d and %d times", a.proofs, b.proofs)
	}
}

func TestHelloRate(t *testing.T) {
	a := newEnd(0xa)
	first, ok := a.Hello(start)
	if !ok || first == 0 {
		t.Fatal("no hello")
	}
	if _, ok := a.Hello(start.Add(HelloInterval - 1)); ok {
		t.Error("a second hello too early")
	}
	if again, ok := a.Hello(start.Add(HelloInterval)); !ok || again != first {
		t.Error("a repeated hello must be answerable by an answer to the first")
	}
}

func TestHandshakeSurvivesLoss(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		a, b := newEnd(0xa), newEnd(0xb)
		for try := 0; ; try++ {
			if try == 100 {
				t.Fatalf("seed %d: no handshake after 100 hellos", seed)
			}
			now := start.Add(time.Duration(try) * HelloInterval)
			if _, ok := a.Peer(); ok {
				if _, ok := b.Peer(); ok {
					break
				}
			}
			from, to := a, b
			if _, ok := a.Peer(); ok {
				from, to = b, a // who lacks a proof asks
			}
			h, ok := from.hello(now)
			if !ok {
				continue
			}
			for queue := []packet{h}; len(queue) > 0; {
				p := queue[0]
				queue = queue[1:]
				if rnd.IntN(2) == 0 {
					continue // lost
				}
				queue = append(queue, to.receive(p)...)
				from, to = to, from
			}
		}
		if a.proofs != 1 || b.proofs != 1 {
			t.Errorf("seed %d: acted %d and %d times", seed, a.proofs, b.proofs)
		}
	}
}

// TestReplayedControlNeverActs records everything of a peer's life, restarts it,
// and replays the record.
func TestReplayedControlNeverActs(t *testing.T) {
	a, host := newEnd(0xa), newEnd(0xb)
	h, _ := a.hello(start)
	record := exchange(a, host, h)
	h, _ = host.hello(start)
	record = append(record, exchange(host, a, h)...)
	control := []Header{a.Header(TypeKeepalive), a.Header(TypeGoodbye)}
	for i := range control {
		if !host.Accept(&control[i], 0xb) {
			t.Fatal("fresh control refused")
		}
	}

	replay := func(what string) {
		proofs := host.proofs
		epoch, _ := host.Peer()
		for range 3 {
			for _, p := range record {
				if p.h.Epoch == 0xb {
					continue
				}
				for _, answer := range host.receive(p) {
					if answer.ack.Echo == 0 {
						t.Errorf("%s: an empty answer", what)
					}
				}
			}
			for i := range control {
				if host.Accept(&control[i], 0xb) {
					t.Errorf("%s: a replayed %v acts", what, control[i].Type)
				}
			}
		}
		if got, _ := host.Peer(); host.proofs != proofs || got != epoch {
			t.Errorf("%s: a replayed handshake acts", what)
		}
	}
	replay("same epoch")

	restarted := newEnd(0xc)
	data := restarted.Header(TypeData)
	if host.Observe(&data) {
		t.Error("a new epoch is not noticed")
	}
	early := restarted.Header(TypeGoodbye)
	if host.Accept(&early, 0xb) {
		t.Error("control from an epoch that is not proven acts")
	}
	replay("before the new epoch is proven")
	h, ok := host.hello(start.Add(time.Second))
	if !ok {
		t.Fatal("no hello")
	}
	exchange(host, restarted, h)
	proven(t, host, 0xc)
	replay("after the new epoch is proven")

	// And when the peer is thought dead, the record does not revive it.
	host.Forget()
	replay("after Forget")
	if _, ok := host.Peer(); ok {
		t.Error("a record proves an epoch")
	}
	h, _ = host.hello(start.Add(time.Minute))
	exchange(host, restarted, h)
	proven(t, host, 0xc)
}

// TestAnAnswerFromBeforeARestartProvesNothing: it was held back on the way, and
// the hello that it answers is still unanswered when the peer has proven its new
// epoch by a hello of its own.
func TestAnAnswerFromBeforeARestartProvesNothing(t *testing.T) {
	host, old, restarted := newEnd(0xb), newEnd(0xa), newEnd(0xc)
	h, _ := host.hello(start)
	held := old.receive(h)[0]
	h, _ = restarted.hello(start)
	exchange(restarted, host, h)
	proven(t, host, 0xc)
	host.receive(held)
	proven(t, host, 0xc)
}

func TestAccept(t *testing.T) {
	a, b := newEnd(0xa), newEnd(0xb)
	h, _ := a.hello(start)
	exchange(a, b, h)
	at := a.next
	for _, test := range []struct {
		name  string
		epoch uint64
		seq   uint32
		to    uint64
		want  bool
	}{
		{"from before the proof", 0xa, at - 1, 0xb, false},
		{"fresh", 0xa, at, 0xb, true},
		{"the same again", 0xa, at, 0xb, false},
		{"another epoch", 0xd, at + 1, 0xb, false},
		{"for what we were before", 0xa, at + 1, 0xd, false},
		{"ahead", 0xa, at + 63, 0xb, true},
		{"overtaken", 0xa, at + 1, 0xb, true},
		{"overtaken, again", 0xa, at + 1, 0xb, false},
		{"seen, then overtaken", 0xa, at, 0xb, false},
		{"from before the proof, and a window later", 0xa, at - 1, 0xb, false},
		{"a window ahead", 0xa, at + 63 + 64, 0xb, true},
		{"behind the window", 0xa, at + 63, 0xb, false},
		{"behind the window, never seen", 0xa, at + 62, 0xb, false},
		{"far ahead", 0xa, at + 127 + 1<<31 - 1, 0xb, true},
		{"further, over the wrap", 0xa, at + 1<<31 + 500, 0xb, true},
		{"from before the wrap", 0xa, at + 501, 0xb, false},
	} {
		if got := b.Accept(&Header{Type: TypeKeepalive, Epoch: test.epoch, Seq: test.seq}, test.to); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}

func TestWrongEchoesProveNothing(t *testing.T) {
	a := newEnd(0xa)
	for _, echo := range []uint64{0, 1, 0xffffffffffffffff} {
		if _, reply, proven := a.OnHelloAck(&Header{Epoch: 0xb}, &HelloAck{Echo: echo, Nonce: 1}); reply || proven {
			t.Errorf("echo %#x, and no hello was sent", echo)
		}
	}
	nonce, _ := a.Hello(start)
	if _, reply, proven := a.OnHelloAck(&Header{Epoch: 0xb}, &HelloAck{Echo: nonce + 1, Nonce: 1}); reply || proven {
		t.Error("another echo")
	}
	// The challenge of one epoch does not prove another.
	challenge := a.OnHello(&Header{Epoch: 0xb}, &Hello{Nonce: 1}).Nonce
	if _, _, proven := a.OnHelloAck(&Header{Epoch: 0xc}, &HelloAck{Echo: challenge}); proven {
		t.Error("the challenge of another epoch")
	}
	if _, _, proven := a.OnHelloAck(&Header{Epoch: 0xb}, &HelloAck{Echo: challenge}); !proven {
		t.Error("the right challenge")
	}
}

// A replayed datagram is no sign of life: not of an earlier epoch, nor of this one.
func TestOnlyNewDatagramsAreFresh(t *testing.T) {
	a, b := newEnd(0xa), newEnd(0xb)
	early := a.Header(TypeData)
	if b.Observe(&early); b.Fresh() {
		t.Error("fresh before a proof")
	}
	h, _ := a.hello(start)
	exchange(a, b, h)
	one, two := a.Header(TypeData), a.Header(TypeData)
	other := Header{Epoch: 0xd, Seq: two.Seq + 1}
	for i, step := range []struct {
		h    Header
		want bool
	}{{early, false}, {one, true}, {one, false}, {two, true}, {one, false}, {other, false}, {two, false}, {a.Header(TypeKeepalive), true}} {
		if b.Observe(&step.h); b.Fresh() != step.want {
			t.Errorf("step %d: %v", i, !step.want)
		}
	}
	restored, ok := RestoreLink(0xb, b.AppendState(nil, start), start)
	if !ok {
		t.Fatal("not restored")
	}
	if restored.Observe(&two); restored.Fresh() {
		t.Error("a replay is fresh to the process that has taken over")
	}
	next := a.Header(TypeData)
	if restored.Observe(&next); !restored.Fresh() {
		t.Error("a new datagram is not")
	}
}

func TestLosses(t *testing.T) {
	for _, test := range []struct {
		name     string
		seqs     []uint32
		received uint64
		lost     uint64
	}{
		{"in order", []uint32{5, 6, 7}, 3, 0},
		{"a gap", []uint32{5, 8}, 2, 2},
		{"late", []uint32{5, 8, 7}, 3, 1},
		{"all late", []uint32{5, 8, 7, 6}, 4, 0},
		{"over the wrap", []uint32{0xfffffffe, 1}, 2, 2},
		{"duplicate", []uint32{5, 5, 6}, 3, 0},
	} {
		l := newEnd(0xa)
		for _, seq := range test.seqs {
			l.Observe(&Header{Epoch: 0xb, Seq: seq})
		}
		if l.Received != test.received || l.Lost != test.lost {
			t.Errorf("%s: received %d, lost %d", test.name, l.Received, l.Lost)
		}
	}
	// A new epoch begins to count anew.
	l := newEnd(0xa)
	l.Observe(&Header{Epoch: 0xb, Seq: 1000})
	l.Observe(&Header{Epoch: 0xc, Seq: 7})
	l.Observe(&Header{Epoch: 0xc, Seq: 8})
	if l.Received != 3 || l.Lost != 0 {
		t.Errorf("received %d, lost %d", l.Received, l.Lost)
	}
}
