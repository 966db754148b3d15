package udpbatch

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
)

// A bad destination costs its own message and no other.
func TestBadMessageCostsNoOther(t *testing.T) {
	big := make([]byte, MaxDatagram+1)
	bad := map[string]Message{
		"no address":   message(netip.AddrPort{}, []byte("x")),
		"other family": message(netip.MustParseAddrPort("[2001:db8::1]:9"), []byte("x")),
		"oversized":    {Buffers: [][]byte{big}},
		"oversized in many buffers": {Buffers: func() (bs [][]byte) {
			for range 1100 {
				bs = append(bs, big[:100])
			}
			return bs
		}()},
		// Nothing bound to loopback can send there, route or no route.
		"unroutable": message(netip.MustParseAddrPort("192.0.2.1:9"), []byte("x")),
	}
	all := make([]int, 16)
	for i := range all {
		all[i] = i
	}
	eachPath(t, func(t *testing.T, p path) {
		for name, b := range bad {
			for _, where := range [][]int{{0}, {7}, {15}, {0, 1, 15}, {3, 4, 5}, all} {
				t.Run(fmt.Sprint(name, where), func(t *testing.T) {
					c := p.open(t, "127.0.0.1:0")
					u := client(t, "127.0.0.1:0")
					ms := make([]Message, 16)
					for i := range ms {
						// In two buffers and an empty one.
						ms[i] = message(addrOf(u), []byte("message "), nil, []byte{byte(i)})
						ms[i].Err = errors.New("of an earlier batch")
					}
					isBad := make([]bool, len(ms))
					for _, i := range where {
						ms[i] = b
						if !ms[i].To.IsValid() && name != "no address" {
							ms[i].To = addrOf(u)
						}
						isBad[i] = true
					}
					sent := c.WriteBatch(ms)
					if want := len(ms) - len(where); sent != want {
						t.Errorf("sent %d, want %d", sent, want)
					}
					for i := range ms {
						if (ms[i].Err != nil) != isBad[i] {
							t.Errorf("message %d: bad is %v, error is %v", i, isBad[i], ms[i].Err)
						}
						if !isBad[i] {
							if got, _ := receive(t, u); !bytes.Equal(got, append([]byte("message "), byte(i))) {
								t.Errorf("got %q in place of message %d", got, i)
							}
						}
					}
					if n := c.Stats().WriteErrors.Total(); n != uint64(len(where)) {
						t.Errorf("%d errors counted, want %d: %+v", n, len(where), c.Stats().WriteErrors)
					}
				})
			}
		}
	})
}

func TestWriteBatchLongerThanAChunk(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		c, u := p.open(t, "127.0.0.1:0"), client(t, "127.0.0.1:0")
		ms := make([]Message, 300)
		for i := range ms {
			// Many buffers each, so that both limits of a chunk are met.
			bufs := make([][]byte, i%40)
			for j := range bufs {
				bufs[j] = []byte{byte(i), byte(j)}
			}
			ms[i] = message(addrOf(u), bufs...)
		}
		if sent := c.WriteBatch(ms); sent != len(ms) {
			t.Fatalf("sent %d of %d", sent, len(ms))
		}
		for i := range ms {
			if got, _ := receive(t, u); !bytes.Equal(got, bytes.Join(ms[i].Buffers, nil)) {
				t.Fatalf("message %d arrived as %v", i, got)
			}
		}
		if sent := c.WriteBatch(nil); sent != 0 {
			t.Errorf("sent %d of none", sent)
		}
	})
}

func TestSegmentsWithoutOffload(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		checkSegments(t, p.open(t, "127.0.0.1:0"))
	})
}

// checkSegments sends messages to be cut, in buffers that end at other places.
func checkSegments(t *testing.T, c *Conn) {
	t.Helper()
	u := client(t, "127.0.0.1:0")
	for _, tc := range []struct {
		segment int
		buffers []int
	}{
		{100, []int{1000}},
		{100, []int{1001}},
		{100, []int{999}},
		{100, []int{50, 100, 150, 7}},
		{100, []int{100, 0, 100, 0}},
		{100, []int{100, 100, 0}},
		{100, []int{99}},
		{100, []int{0}},
		{1200, []int{1200, 1200, 1200, 600}},
		{1, []int{70}},                // more than the kernel would cut
		{1400, []int{40_000, 40_000}}, // more than fits one IP packet
		{70_000, []int{100}},
	} {
		var bufs [][]byte
		total := 0
		for _, n := range tc.buffers {
			total += n
		}
		whole := pattern(total)
		rest := whole
		for _, n := range tc.buffers {
			bufs = append(bufs, rest[:n])
			rest = rest[n:]
		}
		ms := []Message{
			message(addrOf(u), []byte("before")),
			{Buffers: bufs, To: addrOf(u), Segment: tc.segment},
			message(addrOf(u), []byte("after")),
		}
		before := c.Stats().Sent
		if sent := c.WriteBatch(ms); sent != 3 {
			t.Fatalf("%v: sent %d: %v", tc, sent, ms[1].Err)
		}
		var want [][]byte
		for b := whole; ; {
			n := min(tc.segment, len(b))
			want = append(want, b[:n])
			if b = b[n:]; len(b) == 0 {
				break
			}
		}
		want = append(append([][]byte{[]byte("before")}, want...), []byte("after"))
		for i := range want {
			if got, _ := receive(t, u); !bytes.Equal(got, want[i]) {
				t.Fatalf("%v: datagram %d has %d bytes, want %d", tc, i, len(got), len(want[i]))
			}
		}
		if n := c.Stats().Sent - before; n != uint64(len(want)) {
			t.Errorf("%v: %d datagrams counted, want %d", tc, n, len(want))
		}
	}
}

func TestWriteAfterCloseFails(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		c, u := p.open(t, "127.0.0.1:0"), client(t, "127.0.0.1:0")
		for range 2 {
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
		ms := []Message{message(addrOf(u), []byte("x")), message(addrOf(u), []byte("y"))}
		if sent := c.WriteBatch(ms); sent != 0 {
			t.Errorf("sent %d", sent)
		}
		for i := range ms {
			if !errors.Is(ms[i].Err, net.ErrClosed) {
				t.Errorf("message %d: %v", i, ms[i].Err)
			}
		}
		if got := c.Stats().WriteErrors.Closed; got != 2 {
			t.Errorf("counted %d", got)
		}
	})
}

func TestClassOfUnknownErrorIsOther(t *testing.T) {
	if got := classify(errors.New("anything")); got != classOther {
		t.Errorf("got %d", got)
	}
}

// TestTotalCoversEveryClass fails when a class is added and forgotten in a sum.
func TestTotalCoversEveryClass(t *testing.T) {
	var e errCounters
	for c := range numClasses {
		e.add(c)
	}
	if got := e.snapshot().Total(); got != uint64(numClasses) {
		t.Errorf("total %d of %d classes", got, numClasses)
	}
}
