package udpbatch

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// descriptors counts the process's open descriptors, or returns 0 where that
// is not known.
func descriptors(t *testing.T) int {
	if runtime.GOOS != "linux" {
		return 0
	}
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

func TestStartStopOnOnePortLeaksNothing(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		first := p.open(t, "127.0.0.1:0")
		addr := first.LocalAddr()
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		u := client(t, "127.0.0.1:0")
		// The first use of a socket opens descriptors of the Go runtime.
		before, goroutines := descriptors(t), runtime.NumGoroutine()
		for i := range 200 {
			c, err := p.listen(addr)
			if err != nil {
				t.Fatalf("start %d: %v", i, err)
			}
			h := newCollector()
			g, err := NewGroup([]*Conn{c}, GroupConfig{Batch: 2})
			if err != nil {
				t.Fatal(err)
			}
			var served sync.WaitGroup
			served.Go(func() {
				if err := g.Serve(h); err != nil {
					t.Error(err)
				}
			})
			if i%2 == 0 { // every other stop comes as early as can be
				send(t, u, c, h, byte(i))
			}
			if err := g.Close(); err != nil {
				t.Fatalf("stop %d: %v", i, err)
			}
			served.Wait()
		}
		if after := descriptors(t); after != before {
			t.Errorf("%d descriptors before, %d after", before, after)
		}
		for deadline := time.Now().Add(patience); runtime.NumGoroutine() > goroutines; runtime.Gosched() {
			if time.Now().After(deadline) {
				t.Fatalf("%d goroutines before, %d after", goroutines, runtime.NumGoroutine())
			}
		}
	})
}

// Stop at a random moment under load: everything ends, nobody panics.
func TestCloseUnderLoad(t *testing.T) {
	const rounds = 15
	eachPath(t, func(t *testing.T, p path) {
		rng := rand.New(rand.NewPCG(1, 2))
		for range rounds {
			conns := []*Conn{p.open(t, "127.0.0.1:0"), p.open(t, "127.0.0.1:0")}
			h := &echoHandler{conns: conns, seen: make(chan struct{}, 1)}
			g, stop := serve(t, h, GroupConfig{Batch: 4}, conns...)
			quit := make(chan struct{})
			var clients sync.WaitGroup
			for i := range 4 {
				u := client(t, "127.0.0.1:0")
				clients.Go(func() {
					for {
						select {
						case <-quit:
							return
						default:
						}
						if _, err := u.WriteToUDPAddrPort([]byte("load"), conns[i%2].LocalAddr()); err != nil && classify(err) != classRefused {
							t.Error(err)
							return
						}
						g.Wake()
						runtime.Gosched()
					}
				})
			}
			clients.Go(func() { // a writer outside the Group
				ms := []Message{message(conns[1].LocalAddr(), []byte("outside"))}
				for {
					select {
					case <-quit:
						return
					default:
						conns[0].WriteBatch(ms)
						runtime.Gosched()
					}
				}
			})
			wait(t, h.seen, "load")
			for range rng.IntN(20) {
				runtime.Gosched()
			}
			var closers sync.WaitGroup
			closers.Go(func() { _ = conns[rng.IntN(2)].Close() })
			closers.Go(stop)
			closers.Wait()
			close(quit)
			clients.Wait()
		}
	})
}

type echoHandler struct {
	conns []*Conn
	seen  chan struct{}
	msgs  []Message
}

func (h *echoHandler) HandleBatch(conn int, pkts []Packet) {
	h.msgs = h.msgs[:0]
	for i := range pkts {
		h.msgs = append(h.msgs, message(pkts[i].From, pkts[i].Data))
	}
	h.conns[conn].WriteBatch(h.msgs)
	select {
	case h.seen <- struct{}{}:
	default:
	}
}

func (h *echoHandler) Idle(time.Time) time.Duration { return time.Millisecond }

// A descriptor number that was freed by Close soon belongs to another file. A
// writer that is late must not write there.
func TestNoSendAfterCloseOnAReusedDescriptor(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		dest := client(t, "127.0.0.1:0")
		if err := dest.SetReadBuffer(20_000); err != nil { // enough, and quick to drain
			t.Fatal(err)
		}
		for round := range 25 {
			c := p.open(t, "127.0.0.1:0")
			var quit atomic.Bool
			started := make(chan struct{})
			var writer sync.WaitGroup
			writer.Go(func() {
				ms := []Message{message(addrOf(dest), []byte("late"))}
				for n := 0; !quit.Load(); n++ {
					c.WriteBatch(ms)
					if n == 0 {
						close(started)
					}
					runtime.Gosched() // the others may have one processor to share
				}
			})
			<-started
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			// From here on only these sockets can send to dest. They take the
			// free number and their port is not c's.
			var heirs []*net.UDPConn
			for range 3 {
				u, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
				if err != nil {
					t.Fatal(err)
				}
				heirs = append(heirs, u)
			}
			for range 100 {
				runtime.Gosched()
			}
			quit.Store(true)
			writer.Wait()
			end := fmt.Sprint("end ", round)
			for {
				// Its queue may have no room at first.
				if _, err := heirs[0].WriteToUDPAddrPort([]byte(end), addrOf(dest)); err != nil {
					t.Fatal(err)
				}
				b, from := receive(t, dest)
				if string(b) == end {
					break
				}
				if string(b) == "late" && from != c.LocalAddr() {
					t.Fatalf("%q came from %s, a socket opened after Close", b, from)
				}
			}
			for _, u := range heirs {
				_ = u.Close()
			}
		}
	})
}

// failingConn reports an error for each read until it is closed.
type failingConn struct {
	net.PacketConn
	reads  atomic.Int64
	closed atomic.Bool
	// noDeadlines makes SetReadDeadline fail, and reads block.
	noDeadlines bool
	done        chan struct{}
}

func (f *failingConn) ReadFrom([]byte) (int, net.Addr, error) {
	f.reads.Add(1)
	if f.noDeadlines {
		<-f.done
	}
	if f.closed.Load() {
		return 0, nil, net.ErrClosed
	}
	return 0, nil, errors.New("broken for good")
}

func (f *failingConn) SetReadDeadline(t time.Time) error {
	if f.noDeadlines {
		return errors.ErrUnsupported
	}
	return nil
}

func (f *failingConn) Close() error {
	if !f.closed.Swap(true) {
		close(f.done)
	}
	return nil
}

func (f *failingConn) LocalAddr() net.Addr { return &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }
