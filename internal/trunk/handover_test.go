package trunk

import (
	"bytes"
	"testing"
	"time"
)

// TestLinkGoesOnInAnotherProcess hands a Link over at every step of a handshake
// and of what follows. The peer must not notice.
func TestLinkGoesOnInAnotherProcess(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	a, b := NewLink(11, [16]byte{1}), NewLink(22, [16]byte{2})
	move := func() {
		t.Helper()
		moved, ok := RestoreLink(11, a.AppendState(nil, now), now)
		if !ok {
			t.Fatal("refused")
		}
		*a = Link{} // who was replaced is of no use any more
		a = moved
	}
	nonce, _ := a.Hello(now)
	move()
	if _, ok := a.Hello(now.Add(HelloInterval - time.Millisecond)); ok {
		t.Error("the interval of hellos was forgotten")
	}
	h := a.Header(TypeHello)
	b.Observe(&h)
	ack := b.OnHello(&h, &Hello{Nonce: nonce})
	h = b.Header(TypeHelloAck)
	move()
	a.Observe(&h)
	reply, wanted, proven := a.OnHelloAck(&h, &ack)
	if !wanted || !proven {
		t.Fatal("the answer to a hello from before was not taken")
	}
	move()
	h = a.Header(TypeHelloAck)
	if h.Seq != 1 || h.Epoch != 11 {
		t.Errorf("the second datagram has number %d and epoch %d", h.Seq, h.Epoch)
	}
	b.Observe(&h)
	if _, _, proven := b.OnHelloAck(&h, &reply); !proven {
		t.Fatal("the peer does not believe the one that goes on")
	}
	h = b.Header(TypeKeepalive)
	h.Seq += 5
	if !a.Observe(&h) || !a.Accept(&h, 11) {
		t.Error("a keepalive was refused")
	}
	move()
	if a.Accept(&h, 11) {
		t.Error("a keepalive was taken again by the one that goes on")
	}
	if a.Received != 2 || a.Lost != 5 {
		t.Errorf("received %d, lost %d; want 2 and 5", a.Received, a.Lost)
	}
}

func TestRestoreLinkRefuses(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	good := NewLink(11, [16]byte{1}).AppendState(nil, now)
	if len(good) != LinkStateLen {
		t.Fatalf("%d bytes, want %d", len(good), LinkStateLen)
	}
	for name, bad := range map[string][]byte{
		"empty":         nil,
		"short":         good[:LinkStateLen-1],
		"long":          append(bytes.Clone(good), 0),
		"flag":          append([]byte{4}, good[1:]...),
		"reserved":      append([]byte{0, 1}, good[2:]...),
		"wait too long": append(bytes.Clone(good[:LinkStateLen-4]), 0xff, 0, 0, 0),
		"other epoch":   NewLink(12, [16]byte{1}).AppendState(nil, now),
	} {
		if _, ok := RestoreLink(11, bad, now); ok {
			t.Errorf("%s: accepted", name)
		}
	}
}
