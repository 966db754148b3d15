package udpbatch

import (
	"math"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkEcho sends bursts of 160-byte datagrams to an echo on loopback and
// takes them back: one socket call a datagram, and the batched path in several sizes.
func BenchmarkEcho(b *testing.B) {
	b.Run("naive", func(b *testing.B) {
		u := client(b, "127.0.0.1:0")
		go func() {
			buf := make([]byte, 2048)
			for {
				n, from, err := u.ReadFromUDPAddrPort(buf)
				if err != nil {
					return
				}
				if _, err := u.WriteToUDPAddrPort(buf[:n], from); err != nil {
					return
				}
			}
		}()
		echo(b, addrOf(u))
	})
	for _, batch := range []struct {
		name string
		size int
	}{{"batch1", 1}, {"batch8", 8}, {"batch32", 32}, {"batch64", 64}} {
		b.Run(batch.name, func(b *testing.B) {
			c, _ := linuxConn(b, SocketConfig{Addr: netip.MustParseAddrPort("127.0.0.1:0"), ReadBuffer: bigBuffer})
			serve(b, newBenchHandler(c, math.MaxInt), GroupConfig{Batch: batch.size}, c)
			echo(b, c.LocalAddr())
		})
	}
	b.Run("portable", func(b *testing.B) {
		c, err := NewConn(udpMethods{client(b, "127.0.0.1:0")})
		if err != nil {
			b.Fatal(err)
		}
		serve(b, newBenchHandler(c, math.MaxInt), GroupConfig{}, c)
		echo(b, c.LocalAddr())
	})
}

// echo drives an echo with bursts and a batched client, the same for all.
func echo(b *testing.B, to netip.AddrPort) {
	const burst = 64
	c, _ := linuxConn(b, SocketConfig{Addr: netip.MustParseAddrPort("127.0.0.1:0"), ReadBuffer: bigBuffer})
	sink := &sinkHandler{want: burst, done: make(chan struct{}, 1)}
	serve(b, sink, GroupConfig{}, c)
	ms := make([]Message, burst)
	payload := [][]byte{make([]byte, 160)}
	for i := range ms {
		ms[i] = Message{Buffers: payload, To: to}
	}
	b.ReportAllocs()
	for b.Loop() {
		if c.WriteBatch(ms) != burst {
			b.Fatal(ms[0].Err)
		}
		<-sink.done
	}
	packets := float64(b.N * burst)
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/packets, "ns/packet")
	b.ReportMetric(packets/b.Elapsed().Seconds(), "packets/s")
}

type nullHandler struct{}

func (nullHandler) HandleBatch(int, []Packet)    {}
func (nullHandler) Idle(time.Time) time.Duration { return 0 }

// BenchmarkDeliver is what lies between the system call that reads a batch and the
// handler: addresses, control messages and counters of 64 datagrams.
func BenchmarkDeliver(b *testing.B) {
	const batch = 64
	_, m := linuxConn(b, SocketConfig{Addr: netip.MustParseAddrPort("127.0.0.1:0")})
	r := newReceiver(batch)
	b.ReportAllocs()
	for b.Loop() {
		for i := range r.hdrs {
			// What the kernel writes.
			putSockaddr(&r.names[i], unix.AF_INET, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, byte(i)}), 1))
			w := controlWriter{b: r.ctrls[i].bytes()}
			w.addTOS(0xb8, true)
			r.hdrs[i].hdr.SetControllen(w.n)
			r.hdrs[i].n = 160
		}
		r.deliver(m, 0, batch, nullHandler{})
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/packet")
}
