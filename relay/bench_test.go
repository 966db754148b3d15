package relay

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/internal/udpbatch"
)

// rig is a worker that is driven by hand: batches in, system calls out. Host and
// clients are one socket that nobody reads; the kernel drops what does not fit.
type rig struct {
	w        *worker
	srv      *Server
	sink     netip.AddrPort
	up, down []udpbatch.Packet
}

const rigClients = 64

func newRig(tb testing.TB) *rig { return newRigWith(tb, nil) }

func newRigWith(tb testing.TB, change func(*Config)) *rig {
	tb.Helper()
	ring := keyring(tb, "a")
	cfg := config4(ring)
	if change != nil {
		change(&cfg)
	}
	srv, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = srv.Close() })
	sink, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4zero})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = sink.Close() })
	r := &rig{w: srv.workers[0], srv: srv, sink: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(sink.LocalAddr().(*net.UDPAddr).Port))}
	b := &bench{t: tb, ring: ring, srv: srv}
	var checks []udpbatch.Packet
	for i := range rigClients {
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 1, byte(i + 1)}), r.sink.Port())
		id := b.mintFor(r.sink, uint32(i))
		checks = append(checks, udpbatch.Packet{Data: id.check(), From: from})
		r.up = append(r.up, udpbatch.Packet{Data: rtp(uint32(i), 160), From: from})
	}
	r.w.HandleBatch(0, checks)
	link := trunk.NewLink(1, [16]byte{})
	for i := 0; i < rigClients; i += 8 { // as a Host bundles answers
		bundle := trunk.NewBuilder(trunk.MaxDatagram)
		h := link.Header(trunk.TypeData)
		bundle.Reset(&h)
		for j := range 8 {
			bundle.Add(&trunk.Frame{
				Flags: trunk.ToClient | trunk.Validated, Ingress: 7, Client: r.up[i+j].From,
				SSRCs: [4]uint32{uint32(i + j)}, NSSRC: 1, Payload: r.up[i+j].Data,
			})
		}
		bundle.Seal(ring)
		var d []byte
		for _, piece := range bundle.Buffers() {
			d = append(d, piece...)
		}
		r.down = append(r.down, udpbatch.Packet{Data: d, From: r.sink})
	}
	r.w.HandleBatch(1, r.down)
	r.w.counts.publish()
	if st := srv.Stats(); st.Created != rigClients || st.ToUpstream != rigClients || st.ToClients != rigClients {
		tb.Fatalf("the rig does not forward: %+v", st.Counters)
	}
	return r
}

func (r *rig) turn() {
	r.w.HandleBatch(0, r.up)
	r.w.HandleBatch(1, r.down)
	r.w.Idle(r.w.now)
}

func TestNothingAllocatesPerPacket(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	r := newRig(t)
	for range 10 {
		r.turn()
	}
	if n := testing.AllocsPerRun(200, r.turn); n != 0 {
		t.Errorf("%v allocations for %d packets", n, 2*rigClients)
	}
	if n := (&bench{t: t, srv: r.srv}).allDrops(); len(n) != 0 {
		t.Errorf("drops: %v", n)
	}
}

func benchmark(b *testing.B, packets int, turn func(*rig)) {
	r := newRig(b)
	b.ReportAllocs()
	for b.Loop() {
		turn(r)
	}
	perPacket := float64(b.Elapsed().Nanoseconds()) / float64(b.N) / float64(packets)
	b.ReportMetric(perPacket, "ns/packet")
	b.ReportMetric(1e9/perPacket, "packets/s")
}

// BenchmarkUplink is a batch of 64 packets of 160 bytes from 64 clients to one
// Host: decisions, bundles and the system call that sends them, but not the one
// that received them.
func BenchmarkUplink(b *testing.B) {
	benchmark(b, rigClients, func(r *rig) { r.w.HandleBatch(0, r.up) })
}

// BenchmarkDownlink is 64 packets of 160 bytes in eight trunk datagrams, each
// to another client.
func BenchmarkDownlink(b *testing.B) {
	benchmark(b, rigClients, func(r *rig) { r.w.HandleBatch(1, r.down) })
}

// BenchmarkRefused is a batch of what a stranger can send: nothing leaves.
func BenchmarkRefused(b *testing.B) {
	r := newRig(b)
	for name, data := range map[string][]byte{
		"media": rtp(1, 160),
		"check": (&bench{t: b, ring: r.srv.cfg.TrunkKeys, srv: r.srv}).mintFor(r.sink, 1).checkFrom("x", "wrong"),
	} {
		b.Run(name, func(b *testing.B) {
			var pkts []udpbatch.Packet
			for i := range rigClients {
				pkts = append(pkts, udpbatch.Packet{Data: data, From: netip.MustParseAddrPort(fmt.Sprintf("127.0.3.%d:9", i+1))})
			}
			b.ReportAllocs()
			for b.Loop() {
				r.w.HandleBatch(0, pkts)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/rigClients, "ns/packet")
		})
	}
}
