package transceiver

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/stun"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/internal/udpbatch"
	"github.com/usher-rtc/usher/ufrag"
)

// sinkConn is a socket that nothing arrives at and that keeps, while looking is set,
// what is written to it.
type sinkConn struct {
	ended   chan struct{}
	once    sync.Once
	keys    *ufrag.Keyring
	looking atomic.Bool

	mu        sync.Mutex
	datagrams [][]trunk.Frame
}

func (c *sinkConn) ReadFrom([]byte) (int, net.Addr, error) {
	<-c.ended
	return 0, nil, os.ErrDeadlineExceeded
}

func (c *sinkConn) WriteTo(b []byte, _ net.Addr) (int, error) {
	if c.looking.Load() {
		c.look(b)
	}
	return len(b), nil
}

func (c *sinkConn) look(b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var r trunk.Reader
	var h trunk.Header
	if r.Open(bytes.Clone(b), c.keys, &h) != trunk.OK || h.Type != trunk.TypeData {
		return
	}
	var frames []trunk.Frame
	for f := (trunk.Frame{}); r.Next(&f); {
		frames = append(frames, f)
	}
	c.datagrams = append(c.datagrams, frames)
}

// take returns the frames that were written, by datagram, and forgets them.
func (c *sinkConn) take() [][]trunk.Frame {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.datagrams
	c.datagrams = nil
	return d
}

func (c *sinkConn) Close() error {
	c.once.Do(func() { close(c.ended) })
	return nil
}

func (c *sinkConn) LocalAddr() net.Addr              { return net.UDPAddrFromAddrPort(benchHost) }
func (c *sinkConn) SetDeadline(time.Time) error      { return c.Close() }
func (c *sinkConn) SetReadDeadline(time.Time) error  { return c.Close() } // it is the one that ends reads
func (c *sinkConn) SetWriteDeadline(time.Time) error { return nil }

var (
	benchHost  = netip.MustParseAddrPort("127.0.0.1:40000")
	benchRelay = netip.MustParseAddrPort("127.0.0.1:50000")
)

// echoBench is a Host with sessions whose packets go back as Pion's ICE agent gets
// them: the Host's own part of a packet's way, without sockets and without Pion.
type echoBench struct {
	shard   *shard
	sink    *sinkConn
	packets []udpbatch.Packet // of audio, one for each session
	sent    uint64
	next    int
}

func newEchoBench(b testing.TB, sessions int) *echoBench {
	b.Helper()
	keys := testKeys(b)
	sink := &sinkConn{ended: make(chan struct{}), keys: keys}
	host, err := NewHost(Config{
		Conns: []net.PacketConn{sink}, Cluster: 1, Codec: ufrag.NewCodec(keys), TrunkKeys: keys,
		AllowRelays: []netip.Prefix{netip.PrefixFrom(benchRelay.Addr(), 32)},
		Ingresses:   []Ingress{{ID: 1, Advertise: netip.MustParseAddrPort("203.0.113.10:3478")}},
		Logger:      quietLogger(),
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := host.Close(); err != nil {
			b.Error(err)
		}
	})
	e := &echoBench{shard: host.shards[0], sink: sink}
	e.shard.group.Stop() // the benchmark is the shard's reader now
	sink.looking.Store(true)
	for i := range sessions {
		e.session(b, host, i)
	}
	sink.looking.Store(false)
	sink.take()
	e.sent = e.shard.frameOut.Load()
	return e
}

// session makes one whose path is proven, without a PeerConnection.
func (e *echoBench) session(b testing.TB, host *Host, i int) {
	b.Helper()
	const remote, password = "user", "a password of the client's"
	local, secret, route, err := host.minter.Mint()
	if err != nil {
		b.Fatal(err)
	}
	s := &Session{host: host, shard: e.shard, created: time.Now()}
	s.ice = credentials{remote, password, local, secret, route}
	s.conn = newVirtualConn(remote, password, s.fromPion)
	s.front.init(s, s.ice)
	s.front.publish()
	client := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i >> 8)}), uint16(10000+i))
	frame := func(payload []byte) udpbatch.Packet {
		data := frameFor(b, host.cfg.TrunkKeys, &trunk.Frame{Ingress: 1, Client: client, Payload: payload})
		return udpbatch.Packet{Data: data, From: benchRelay}
	}
	give := func(payload []byte) {
		e.shard.HandleBatch(0, []udpbatch.Packet{frame(payload)})
		e.shard.flush()
	}
	give(check(local+":"+remote, secret))
	var m stun.Message
	for _, d := range e.sink.take() {
		for _, f := range d {
			if stun.Parse(f.Payload, &m) == stun.OK && m.Type == stun.BindingRequest {
				break
			}
		}
	}
	if m.Type != stun.BindingRequest {
		b.Fatal("the Host sent no check of its own")
	}
	var answer stun.Builder
	answer.Reset(nil, stun.BindingSuccess, m.TransactionID)
	answer.AddXORMappedAddress(client)
	answer.AddIntegrity(new(stun.Authenticator), []byte(password))
	answer.AddFingerprint()
	give(answer.Bytes())
	s.conn.started.Store(true)
	for len(s.conn.queue) > 0 {
		(<-s.conn.queue).free() // checks for Pion
	}
	var done sync.WaitGroup
	done.Go(func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := s.conn.ReadFromAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = s.conn.WriteToAddrPort(buf[:n], from)
		}
	})
	b.Cleanup(func() {
		s.front.close()
		_ = s.conn.Close()
		done.Wait()
	})
	audio := make([]byte, 82)
	audio[0], audio[1] = 0x80, 111
	audio[8], audio[11] = 1, byte(i)
	e.packets = append(e.packets, frame(audio))
}

// round takes a batch of packets of as many sessions and waits until all are back.
func (e *echoBench) round(batch int) {
	if e.next+batch > len(e.packets) {
		e.next = 0
	}
	e.shard.HandleBatch(0, e.packets[e.next:e.next+batch])
	e.next += batch
	e.sent += uint64(batch)
	for e.shard.frameOut.Load() < e.sent {
		runtime.Gosched()
	}
}

// BenchmarkEcho is what packets of 300 sessions cost, in and out again, with as
// many read together as a busy socket has after a millisecond.
func BenchmarkEcho(b *testing.B) {
	for _, batch := range []int{1, 15, 60} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			e := newEchoBench(b, 300)
			b.ReportAllocs()
			for b.Loop() {
				e.round(batch)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(2*batch), "ns/packet")
		})
	}
}
