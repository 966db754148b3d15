package udpbatch

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
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

func TestRunsWithoutOffload(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		checkRuns(t, p.open(t, "127.0.0.1:0"))
	})
}

// runs are sizes of messages to one place, which the kernel may take together.
var runs = [][]int{
	{100, 100, 100},
	{100, 100, 99, 100},
	{100, 0, 100},
	{100, 101, 100, 1},
	{0, 0, 7},
	{1200, 1200, 1200, 600, 1200, 1200},
	{1452, 1452, 1453, 1453, 1452},
	slices.Repeat([]int{1}, 70),    // more than the kernel would cut
	slices.Repeat([]int{1400}, 60), // more than fits one IP packet
	slices.Repeat([]int{1452}, 150),
	{40_000, 40_000},
}

// checkRuns sends runs, in buffers that end anywhere, between two other messages.
func checkRuns(t *testing.T, c *Conn) {
	t.Helper()
	u, other := client(t, "127.0.0.1:0"), client(t, "127.0.0.1:0")
	for i, sizes := range runs {
		ms := []Message{message(addrOf(other), []byte("before"))}
		for j, n := range sizes {
			b := pattern(n + j)[j:]
			ms = append(ms, message(addrOf(u), b[:n/3], b[n/3:n/2], b[n/2:]))
		}
		ms = append(ms, message(addrOf(other), []byte("after")))
		before := c.Stats().Sent
		if sent := c.WriteBatch(ms); sent != len(ms) {
			t.Fatalf("run %d: sent %d of %d: %v", i, sent, len(ms), ms[1].Err)
		}
		for j, n := range sizes {
			if got, _ := receive(t, u); !bytes.Equal(got, pattern(n + j)[j:]) {
				t.Fatalf("run %d: message %d came with %d bytes, want %d", i, j, len(got), n)
			}
		}
		for _, want := range []string{"before", "after"} {
			if got, _ := receive(t, other); string(got) != want {
				t.Fatalf("run %d: %q, want %q", i, got, want)
			}
		}
		if n := c.Stats().Sent - before; n != uint64(len(ms)) {
			t.Errorf("run %d: %d datagrams counted, want %d", i, n, len(ms))
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
