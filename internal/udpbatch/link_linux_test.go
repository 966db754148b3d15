package udpbatch

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/usher-rtc/usher/internal/parts"
)

func linuxConn(t testing.TB, cfg SocketConfig) (*Conn, *mmsgConn) {
	t.Helper()
	c, err := Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, c.t.(*mmsgConn)
}

func listenOn(t testing.TB, addr string) (*Conn, *mmsgConn) {
	return linuxConn(t, SocketConfig{Addr: netip.MustParseAddrPort(addr)})
}

// All eight bits of TOS survive there and back, and replies leave from the
// address that was asked.
func TestTOSAndLocalAddress(t *testing.T) {
	for _, tc := range []struct{ server, client, to string }{
		{"0.0.0.0:0", "127.0.0.1:0", "127.0.0.9"},
		{"[::]:0", "127.0.0.1:0", "127.0.0.9"},
		{"[::]:0", "[::1]:0", "::1"},
		{"127.0.0.9:0", "127.0.0.1:0", "127.0.0.9"},
		{"[::1]:0", "[::1]:0", "::1"},
	} {
		t.Run(tc.server+" "+tc.to, func(t *testing.T) {
			c, m := listenOn(t, tc.server)
			h := newCollector()
			h.conns = []*Conn{c}
			serve(t, h, GroupConfig{}, c)
			other, _ := listenOn(t, tc.client)
			back := newCollector()
			serve(t, back, GroupConfig{}, other)
			to := netip.AddrPortFrom(netip.MustParseAddr(tc.to), c.LocalAddr().Port())
			for tos := range 256 {
				ms := []Message{{Buffers: [][]byte{{1}}, To: to, TOS: uint8(tos)}}
				if other.WriteBatch(ms) != 1 {
					t.Fatal(ms[0].Err)
				}
				got := h.next(t)
				if got.TOS != uint8(tos) {
					t.Fatalf("sent TOS %#x, got %#x", tos, got.TOS)
				}
				if m.wildcard && got.Local != to.Addr() || !m.wildcard && got.Local.IsValid() {
					t.Fatalf("Local is %v, sent to %v", got.Local, to)
				}
				reply := back.next(t)
				if reply.TOS != uint8(tos) || reply.From != to {
					t.Fatalf("reply with TOS %#x from %s, want %#x from %s", reply.TOS, reply.From, tos, to)
				}
			}
			if s := c.Stats(); s.TOSRefused != 0 || s.WriteErrors.Total() != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// Both forms of an IPv4 address reach it, from sockets of both families.
func TestMappedDestinations(t *testing.T) {
	u := client(t, "127.0.0.1:0")
	mapped := netip.AddrPortFrom(netip.AddrFrom16(addrOf(u).Addr().As16()), addrOf(u).Port())
	if !mapped.Addr().Is4In6() {
		t.Fatal("the test does not test")
	}
	for _, server := range []string{"0.0.0.0:0", "[::]:0"} {
		c, _ := listenOn(t, server)
		for _, to := range []netip.AddrPort{addrOf(u), mapped} {
			for _, local := range []netip.Addr{{}, netip.MustParseAddr("127.0.0.7"), netip.MustParseAddr("::ffff:127.0.0.7")} {
				ms := []Message{{Buffers: [][]byte{{1}}, To: to, Local: local, TOS: 0xb8}}
				if c.WriteBatch(ms) != 1 {
					t.Fatal(ms[0].Err)
				}
				_, from := receive(t, u)
				if local.IsValid() && from.Addr() != local.Unmap() {
					t.Errorf("from %s, want %s", from, local)
				}
			}
		}
		ms := []Message{{Buffers: [][]byte{{1}}, To: addrOf(u), Local: netip.IPv6Loopback()}}
		if c.WriteBatch(ms) != 0 || ms[0].Err != error(unix.EAFNOSUPPORT) {
			t.Errorf("a source of the other family: %v", ms[0].Err)
		}
	}
}

func TestOffloadThereAndBack(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		in, _ := linuxConn(t, SocketConfig{Addr: netip.MustParseAddrPort(addr), GRO: true})
		out, _ := linuxConn(t, SocketConfig{Addr: netip.MustParseAddrPort(addr), GSO: true})
		if in.Stats().GRO != OffloadOn || out.Stats().GSO != OffloadOn {
			parts.Need(t, fmt.Errorf("GRO is %s and GSO %s: this needs Linux 5.0 or later", in.Stats().GRO, out.Stats().GSO))
		}
		h := &batchSizes{collector: newCollector()}
		serve(t, h, GroupConfig{Batch: 8}, in)
		whole := pattern(30*1200 + 77)
		var ms []Message
		for _, b := range slices.Collect(slices.Chunk(whole, 1200)) {
			ms = append(ms, Message{Buffers: [][]byte{b[:7], b[7:]}, To: in.LocalAddr(), TOS: 0xb9})
		}
		ms = append(ms, message(in.LocalAddr(), []byte("after")))
		writes := out.Stats().Writes
		if out.WriteBatch(ms) != len(ms) {
			t.Fatal(ms[0].Err)
		}
		for rest := whole; len(rest) > 0; {
			n := min(1200, len(rest))
			got := h.next(t)
			if !bytes.Equal(got.Data, rest[:n]) || got.TOS != 0xb9 || got.From != out.LocalAddr() {
				t.Fatalf("got %d bytes with TOS %#x from %s", len(got.Data), got.TOS, got.From)
			}
			rest = rest[n:]
		}
		if got := h.next(t); string(got.Data) != "after" {
			t.Fatalf("got %d bytes", len(got.Data))
		}
		if h.largest > 8 {
			t.Errorf("a batch of %d, want at most 8", h.largest)
		}
		s := out.Stats()
		if s.Sent != 32 || s.Writes-writes != 1 || s.GSORefused != 0 {
			t.Errorf("the kernel did not cut: %+v", s)
		}
		if s := in.Stats(); s.Received != 32 || s.ReceivedBytes != uint64(len(whole)+5) {
			t.Errorf("%+v", s)
		}
	}
}

type batchSizes struct {
	*collector
	largest int
}

func (h *batchSizes) HandleBatch(conn int, pkts []Packet) {
	h.largest = max(h.largest, len(pkts))
	h.collector.HandleBatch(conn, pkts)
}

func TestRunsWithOffload(t *testing.T) {
	c, _ := linuxConn(t, SocketConfig{Addr: netip.MustParseAddrPort("127.0.0.1:0"), GSO: true})
	checkRuns(t, c)
	if s := c.Stats(); s.GSO != OffloadOn || s.GSORefused != 0 {
		t.Errorf("GSO %s, refused %d", s.GSO, s.GSORefused)
	}
}

// A connected socket reports ICMP answers to what it sent to its peer. They
// end no loop, and cost no datagram to anybody else.
func TestICMPErrorsCostNobodyElse(t *testing.T) {
	dead := client(t, "127.0.0.1:0")
	deadAddr := addrOf(dead)
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	live := client(t, "127.0.0.1:0")
	u, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(deadAddr))
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewConn(u)
	if err != nil {
		t.Fatal(err)
	}
	h := newCollector()
	serve(t, h, GroupConfig{}, c)
	for i := range 1000 {
		ms := []Message{message(deadAddr, []byte("x"))}
		c.WriteBatch(ms)
		ms[0] = message(addrOf(live), []byte{byte(i)})
		if c.WriteBatch(ms) != 1 {
			t.Fatalf("%d: %v", i, ms[0].Err)
		}
		if got, _ := receive(t, live); got[0] != byte(i) {
			t.Fatalf("got %d, want %d", got[0], i)
		}
	}
	// Everything that failed was the dead peer's.
	s := c.Stats()
	if s.ReadErrors.Total() != s.ReadErrors.Refused || s.WriteErrors.Total() != s.WriteErrors.Refused {
		t.Errorf("reads: %+v, writes: %+v", s.ReadErrors, s.WriteErrors)
	}
}

// Whoever had the socket before may have set what would hurt here.
func TestTakenOverSocketIsSetUp(t *testing.T) {
	u := client(t, "0.0.0.0:0")
	raw, err := u.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		for _, o := range [][3]int{
			{unix.IPPROTO_IP, unix.IP_RECVERR, 1},
			{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO},
			{unix.IPPROTO_UDP, unix.UDP_GRO, 1},
		} {
			if err := unix.SetsockoptInt(int(fd), o[0], o[1], o[2]); err != nil {
				t.Error(err)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	c, err := NewConn(u)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	m := c.t.(*mmsgConn)
	for _, o := range [][3]int{
		{unix.IPPROTO_IP, unix.IP_RECVERR, 0},
		{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_OMIT},
		{unix.IPPROTO_UDP, unix.UDP_GRO, 0},
	} {
		got, err := unix.GetsockoptInt(m.fd, o[0], o[1])
		if err != nil || got != o[2] {
			t.Errorf("option %d is %d (%v), want %d", o[1], got, err, o[2])
		}
	}
	if _, err := u.Write([]byte("x")); err == nil {
		t.Error("the original is open: the runtime's poller goes on watching it")
	}
}

// What is no UDP socket is refused, and its descriptor is not lost.
func TestFromFileRefusesOtherSockets(t *testing.T) {
	before := descriptors(t)
	for _, s := range [][3]int{
		{unix.AF_INET, unix.SOCK_STREAM, 0},
		{unix.AF_UNIX, unix.SOCK_DGRAM, 0},
		{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP},
	} {
		fd, err := unix.Socket(s[0], s[1]|unix.SOCK_CLOEXEC, s[2])
		if err != nil {
			continue // a raw socket needs privileges
		}
		f := os.NewFile(uintptr(fd), "x")
		if c, err := FromFile(f, SocketConfig{}); err == nil {
			t.Errorf("%v was taken", s)
			_ = c.Close()
		}
		_ = f.Close()
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func TestReusePortAndV6Only(t *testing.T) {
	a, _ := linuxConn(t, SocketConfig{ReusePort: true})
	b, _ := linuxConn(t, SocketConfig{ReusePort: true, Addr: a.LocalAddr()})
	if a.LocalAddr() != b.LocalAddr() {
		t.Errorf("%s and %s", a.LocalAddr(), b.LocalAddr())
	}
	if c, err := Listen(SocketConfig{Addr: a.LocalAddr()}); err == nil {
		_ = c.Close()
		t.Error("a socket without ReusePort shared the port")
	}
	six, _ := linuxConn(t, SocketConfig{V6Only: true})
	port := six.LocalAddr().Port()
	four, err := Listen(SocketConfig{Addr: netip.AddrPortFrom(netip.IPv4Unspecified(), port)})
	if err != nil {
		t.Fatalf("[::] with V6Only took the IPv4 port: %v", err)
	}
	_ = four.Close()
}

// Drops and granted buffers are visible, without a further packet.
func TestKernelDropsAndGrantedBuffers(t *testing.T) {
	c, m := linuxConn(t, SocketConfig{Addr: netip.MustParseAddrPort("127.0.0.1:0"), ReadBuffer: 20_000, WriteBuffer: 30_000})
	s := c.Stats()
	if s.AskedReadBuffer != 20_000 || s.GrantedReadBuffer != 20_000 || s.AskedWriteBuffer != 30_000 || s.GrantedWriteBuffer != 30_000 {
		t.Errorf("%+v", s)
	}
	u := client(t, "127.0.0.1:0")
	const count = 500
	flood := func() {
		for range count {
			if _, err := u.WriteToUDPAddrPort(pattern(1000), c.LocalAddr()); err != nil {
				t.Fatal(err)
			}
		}
	}
	flood()
	drops := c.Stats().KernelDrops
	if drops == 0 {
		t.Fatal("no drops counted")
	}
	h := newCollector()
	g, err := NewGroup([]*Conn{c}, GroupConfig{})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- g.Serve(h) }()
	for range count - int(drops) {
		h.next(t)
	}
	// An old kernel says it with the packets; force that way.
	if err := unix.SetsockoptInt(m.fd, unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1); err != nil {
		t.Fatal(err)
	}
	m.drops.Store(0)
	if _, err := u.WriteToUDPAddrPort([]byte("x"), c.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	h.next(t)
	if got := m.drops.Load(); uint64(got-m.dropsBase) != drops {
		t.Errorf("the control message says %d drops, the socket %d", got, drops)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	<-ended
	if got := c.Stats().KernelDrops; got != drops {
		t.Errorf("after Close %d drops, before %d", got, drops)
	}
}

func TestMixedGroupIsRefused(t *testing.T) {
	a, _ := listenOn(t, "127.0.0.1:0")
	b, err := NewConn(onlyPacketConn{client(t, "127.0.0.1:0")})
	if err != nil {
		t.Fatal(err)
	}
	_, err = NewGroup([]*Conn{b, a}, GroupConfig{})
	wantField(t, err, "conns")
	serve(t, newCollector(), GroupConfig{}, a)
	serve(t, newCollector(), GroupConfig{}, b)
}

func TestWaitsWithoutEpollPwait2(t *testing.T) {
	c, _ := listenOn(t, "127.0.0.1:0")
	g, err := NewGroup([]*Conn{c}, GroupConfig{})
	if err != nil {
		t.Fatal(err)
	}
	s := g.srv.(*epollServer)
	s.coarse = true // as after ENOSYS from a kernel before 5.11
	h := newCollector()
	defer func() { _ = g.Close() }()
	for _, d := range []int64{1, 1_000_001} {
		if n, errno := s.epollWait(1); n != 0 || errno != 0 {
			t.Errorf("wait of %d ns: %d events, %v", d, n, errno)
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- g.Serve(h) }()
	if got := send(t, client(t, "127.0.0.1:0"), c, h, 5); got != 5 {
		t.Error(got)
	}
	_ = g.Close()
	<-ended
}

func TestListenOnAZone(t *testing.T) {
	for _, zone := range []string{"no such interface", "4000000000000"} {
		addr := netip.AddrPortFrom(netip.MustParseAddr("fe80::1").WithZone(zone), 0)
		if c, err := Listen(SocketConfig{Addr: addr}); err == nil {
			_ = c.Close()
			t.Errorf("listening on %s", addr)
		}
	}
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err) // every network namespace has it
	}
	for _, zone := range []string{"", "lo", fmt.Sprint(lo.Index)} {
		n, err := zoneIndex(zone)
		if want := uint32(lo.Index); zone != "" && n != want || err != nil {
			t.Errorf("zone %q is %d, %v", zone, n, err)
		}
	}
}

// A closed Conn whose descriptor lives on in a duplicate must leave the epoll:
// what arrives there would keep the loop awake for ever.
func TestClosedConnLeavesTheEpoll(t *testing.T) {
	c, _ := listenOn(t, "127.0.0.1:0")
	f, err := c.File()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	g, err := NewGroup([]*Conn{c}, GroupConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = g.Close() }()
	if _, err := client(t, "127.0.0.1:0").WriteToUDPAddrPort([]byte("x"), c.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	s := g.srv.(*epollServer)
	if n, _ := s.epollWait(1); n != 1 {
		t.Fatalf("%d events before Close, want 1", n)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if n, _ := s.epollWait(1); n != 0 {
		t.Errorf("%d events after Close", n)
	}
}
