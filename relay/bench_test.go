package relay

import (
	"net"
	"net/netip"
	"testing"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/race"
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
	race.NoAllocs(t)
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

// benchmark reports what one of the packets of a turn costs, in time and memory. The
// time of a whole turn would only be read for that, and is left out.
func benchmark(b *testing.B, packets int, turn func()) {
	b.Helper()
	b.ReportAllocs()
	for b.Loop() {
		turn()
	}
	perPacket := float64(b.Elapsed().Nanoseconds()) / float64(b.N) / float64(packets)
	b.ReportMetric(perPacket, "ns/packet")
	b.ReportMetric(1e9/perPacket, "packets/s")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkUplink is a batch of 64 packets of 160 bytes from 64 clients to one
// Host: decisions, bundles and the system call that sends them, but not the one
// that received them. B/op and allocs/op are those of the batch, here as below.
func BenchmarkUplink(b *testing.B) {
	r := newRig(b)
	benchmark(b, rigClients, func() { r.w.HandleBatch(0, r.up) })
}

// BenchmarkDownlink is 64 packets of 160 bytes in eight trunk datagrams, each
// to another client: here the kernel sends 64 datagrams where it sent 8 before.
func BenchmarkDownlink(b *testing.B) {
	r := newRig(b)
	benchmark(b, rigClients, func() { r.w.HandleBatch(1, r.down) })
}

// BenchmarkClusterRelay is what a cluster relay passes on between an edge and a Host:
// 64 packets of 160 bytes up and as many down.
func BenchmarkClusterRelay(b *testing.B) {
	r := newTunnelRig(b)
	benchmark(b, 2*rigClients, r.turn)
}

// BenchmarkRefused is a batch of what a stranger can send: nothing leaves.
func BenchmarkRefused(b *testing.B) {
	r := newRig(b)
	for name, data := range map[string][]byte{
		"media": rtp(1, 160),
		"check": (&bench{t: b, ring: r.srv.cfg.TrunkKeys, srv: r.srv}).mintFor(r.sink, 1).checkFrom("x", "wrong"),
	} {
		b.Run(name, func(b *testing.B) {
			pkts := strangers(data)
			benchmark(b, rigClients, func() { r.w.HandleBatch(0, pkts) })
		})
	}
	// With a flow store that has been asked about these clients and has nothing.
	b.Run("media with a store", func(b *testing.B) {
		store, err := flowtable.NewMemoryStore(flowtable.MemoryConfig{})
		if err != nil {
			b.Fatal(err)
		}
		r := newRigWith(b, func(c *Config) { c.Store = store })
		pkts := strangers(rtp(9, 160))
		benchmark(b, rigClients, func() {
			r.w.HandleBatch(0, pkts)
			r.w.Idle(r.w.now)
		})
	})
}

// strangers sends the same from 64 addresses that have no flow.
func strangers(data []byte) (pkts []udpbatch.Packet) {
	for i := range rigClients {
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 3, byte(i + 1)}), 9)
		pkts = append(pkts, udpbatch.Packet{Data: data, From: from})
	}
	return pkts
}
