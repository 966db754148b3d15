package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/stun"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/ufrag"
)

// The kit: a relay, Hosts that record what they get, and clients at loopback
// addresses of their own.

// patience is how long a test waits for what must come; it is no expectation of
// speed.
const patience = time.Minute

func keyring(t testing.TB, ids string) *ufrag.Keyring {
	t.Helper()
	var keys []ufrag.Key
	for i := range len(ids) {
		k := ufrag.Key{ID: ids[i]}
		k.Secret[0], k.Secret[31] = 7, ids[i]
		keys = append(keys, k)
	}
	ring, err := ufrag.NewKeyring(ids[0], keys...)
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

type bench struct {
	t    testing.TB
	ring *ufrag.Keyring
	srv  *Server
	done chan error
}

func config4(ring *ufrag.Keyring) Config {
	return Config{
		Ingresses:     []Ingress{{ID: 7, Listen: netip.MustParseAddrPort("127.0.0.1:0")}},
		Trunk:         netip.MustParseAddrPort("127.0.0.1:0"),
		Workers:       1,
		Codec:         ufrag.NewCodec(ring),
		TrunkKeys:     ring,
		AllowUpstream: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/24"), netip.MustParsePrefix("::1/128")},
		MaxFlows:      1 << 12,
		ReadBuffer:    1 << 18,
		Logger:        slog.New(slog.DiscardHandler),
	}
}

func newBench(t testing.TB, change func(*Config)) *bench {
	t.Helper()
	return newBenchWith(t, change, func(*Server) {})
}

// newBenchWith lets a test at the relay before it serves.
func newBenchWith(t testing.TB, change func(*Config), before func(*Server)) *bench {
	t.Helper()
	ring := keyring(t, "a")
	cfg := config4(ring)
	if change != nil {
		change(&cfg)
	}
	srv, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	before(srv)
	done := make(chan error, 1)
	b := &bench{t: t, ring: ring, srv: srv, done: done}
	go func() { done <- srv.Serve() }()
	t.Cleanup(func() {
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
		if err := <-b.done; !errors.Is(err, ErrServerClosed) {
			t.Errorf("Serve returned %v", err)
		}
	})
	return b
}

func (b *bench) ingress(i int) netip.AddrPort { return b.srv.Ingresses()[i].Listen }

// drops waits until a reason has been counted n times.
func (b *bench) drops(reason string, n uint64) {
	b.t.Helper()
	b.eventually(func() error {
		if got := b.srv.Stats().Drops[reason]; got != n {
			return fmt.Errorf("%q: %d drops, want %d; all: %v", reason, got, n, b.allDrops())
		}
		return nil
	})
}

func (b *bench) allDrops() map[string]uint64 {
	m := b.srv.Stats().Drops
	for k, v := range m {
		if v == 0 {
			delete(m, k)
		}
	}
	return m
}

func (b *bench) totalDrops() (n uint64) {
	for _, v := range b.srv.Stats().Drops {
		n += v
	}
	return n
}

func (b *bench) eventually(check func() error) {
	b.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
}

// alive is the case log's check after every test.
func (b *bench) alive() {
	b.t.Helper()
	h := b.host(nil)
	c := b.client("127.0.1.77", 0)
	id := h.mint()
	c.send(id.check())
	h.want(c.addr())
}

// host is a stand-in for a transceiver.
type host struct {
	b    *bench
	ring *ufrag.Keyring
	conn *net.UDPConn
	link *trunk.Link

	mu      sync.Mutex
	session uint32
	got     chan received
	relay   netip.AddrPort // where the latest datagram came from
	sizes   []int          // frames in each datagram
	goodbye trunk.Reason   // the latest
	alive   uint32         // token of the latest answer to a keepalive
}

type received struct {
	trunk.Frame
	from netip.AddrPort
}

// host starts a Host; answer, if set, may return frames for each frame.
func (b *bench) host(answer func(*host, received)) *host {
	return b.hostWith(b.ring, answer)
}

func (b *bench) hostWith(ring *ufrag.Keyring, answer func(*host, received)) *host {
	b.t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		b.t.Fatal(err)
	}
	return b.hostOn(conn, ring, answer)
}

// hostOn starts a Host on a socket.
func (b *bench) hostOn(conn *net.UDPConn, ring *ufrag.Keyring, answer func(*host, received)) *host {
	_ = conn.SetReadBuffer(1 << 20)
	h := &host{b: b, ring: ring, conn: conn, link: trunk.NewLink(4711, [16]byte{1}), got: make(chan received, 1<<14)}
	var wg sync.WaitGroup
	wg.Go(func() { h.read(answer) })
	b.t.Cleanup(func() {
		conn.Close()
		wg.Wait()
	})
	return h
}

func (h *host) addr() netip.AddrPort { return h.conn.LocalAddr().(*net.UDPAddr).AddrPort() }

func (h *host) read(answer func(*host, received)) {
	buf := make([]byte, 1<<16)
	var r trunk.Reader
	var hdr trunk.Header
	for {
		n, from, err := h.conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error of an earlier write
		}
		if p := r.Open(buf[:n], h.ring, &hdr); p != trunk.OK {
			h.b.t.Errorf("host got a bad datagram: %v", p)
			continue
		}
		h.mu.Lock()
		h.relay = from
		if !h.link.Observe(&hdr) {
			if nonce, ok := h.link.Hello(time.Now()); ok {
				out := h.link.Header(trunk.TypeHello)
				d, _ := (&trunk.Hello{Nonce: nonce, Role: trunk.RoleHost}).Append(nil, &out, h.ring)
				h.write(d, from)
			}
		}
		h.control(&r, &hdr, from)
		h.mu.Unlock()
		frames := 0
		var f trunk.Frame
		for r.Next(&f) {
			frames++
			f.Payload = append([]byte(nil), f.Payload...)
			got := received{f, from}
			select {
			case h.got <- got:
			default:
				h.b.t.Error("host's record is full")
			}
			if answer != nil {
				answer(h, got)
			}
		}
		if frames > 0 {
			h.mu.Lock()
			h.sizes = append(h.sizes, frames)
			h.mu.Unlock()
		}
	}
}

func (h *host) control(r *trunk.Reader, hdr *trunk.Header, from netip.AddrPort) {
	switch hdr.Type {
	case trunk.TypeHello:
		var m trunk.Hello
		if m.Parse(r.Body()) == trunk.OK {
			h.ack(h.link.OnHello(hdr, &m), from)
		}
	case trunk.TypeHelloAck:
		var m trunk.HelloAck
		if m.Parse(r.Body()) == trunk.OK {
			if ack, reply, _ := h.link.OnHelloAck(hdr, &m); reply {
				h.ack(ack, from)
			}
		}
	case trunk.TypeGoodbye:
		var m trunk.Goodbye
		if m.Parse(r.Body()) == trunk.OK {
			h.goodbye = m.Reason
		}
	case trunk.TypeKeepalive:
		var m trunk.Keepalive
		if m.Parse(r.Body()) == trunk.OK && m.Reply {
			h.alive = m.Token
		}
	}
}

func (h *host) ack(m trunk.HelloAck, to netip.AddrPort) {
	m.Role = trunk.RoleHost
	out := h.link.Header(trunk.TypeHelloAck)
	d, _ := m.Append(nil, &out, h.ring)
	h.write(d, to)
}

func (h *host) write(d []byte, to netip.AddrPort) {
	if _, err := h.conn.WriteToUDPAddrPort(d, to); err != nil && !errors.Is(err, net.ErrClosed) {
		_, _ = h.conn.WriteToUDPAddrPort(d, to) // the first error was an ICMP one
	}
}

// send sends frames to a relay in one datagram.
func (h *host) send(relay netip.AddrPort, frames ...trunk.Frame) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := trunk.NewBuilder(trunk.MaxDatagram)
	hdr := h.link.Header(trunk.TypeData)
	b.Reset(&hdr)
	for i := range frames {
		if !b.Add(&frames[i]) {
			h.b.t.Fatal("frames do not fit")
		}
	}
	if !b.Seal(h.ring) {
		h.b.t.Fatal("seal")
	}
	var d []byte
	for _, p := range b.Buffers() {
		d = append(d, p...)
	}
	h.write(d, relay)
}

// reply sends payload to the client of a frame.
func (h *host) reply(r received, flags trunk.Flags, payload string, ssrcs ...uint32) {
	f := trunk.Frame{Flags: trunk.ToClient | flags, Ingress: r.Ingress, Client: r.Client, Payload: []byte(payload)}
	f.NSSRC = uint8(copy(f.SSRCs[:], ssrcs))
	h.send(r.from, f)
}

// want waits for a frame of a client.
func (h *host) want(client netip.AddrPort) (r received) {
	h.b.t.Helper()
	select {
	case r = <-h.got:
		if r.Client != client {
			h.b.t.Fatalf("host got a packet of %v, want %v", r.Client, client)
		}
	case <-time.After(patience):
		h.b.t.Fatalf("host got nothing; drops: %v", h.b.allDrops())
	}
	return r
}

// nothing fails if the Host got a frame. Call it after a count has shown that
// the relay is done.
func (h *host) nothing() {
	h.b.t.Helper()
	select {
	case r := <-h.got:
		h.b.t.Fatalf("host got a packet of %v: %x", r.Client, r.Payload)
	case <-time.After(20 * time.Millisecond):
	}
}

// identity is a session's credentials.
type identity struct {
	ufrag, password string
	route           ufrag.Route
}

func (h *host) mint() identity {
	h.b.t.Helper()
	h.mu.Lock()
	h.session++
	session := h.session
	h.mu.Unlock()
	return h.b.mintFor(h.addr(), session)
}

func (b *bench) mintFor(addr netip.AddrPort, session uint32) identity {
	b.t.Helper()
	route, err := ufrag.IPv4Route(b.srv.cfg.Cluster, addr, session)
	if err != nil {
		b.t.Fatal(err)
	}
	return mint(b.t, b.srv.cfg.Codec, route)
}

func mint(t testing.TB, codec ufrag.Codec, route ufrag.Route) identity {
	t.Helper()
	u, err := codec.Encode(route)
	if err != nil {
		t.Fatal(err)
	}
	pw, err := codec.AppendPassword(nil, []byte(u))
	if err != nil {
		t.Fatal(err)
	}
	return identity{u, string(pw), route}
}

var transactions uint32

// check is the case log's BR(U).
func (id identity) check() []byte { return id.checkFrom("cfrg", id.password) }

func (id identity) checkFrom(remote, password string) []byte {
	transactions++
	tid := stun.TransactionID{byte(transactions >> 8), byte(transactions), 9}
	var b stun.Builder
	var a stun.Authenticator
	b.Reset(nil, 0x0001, tid)
	b.AddUsername(id.ufrag, remote)
	b.AddPriority(0x6e0001ff)
	b.AddControlling(0x0011223344556677)
	b.AddUseCandidate()
	b.AddIntegrity(&a, []byte(password))
	b.AddFingerprint()
	return b.Bytes()
}

// rtp is a packet that looks like SRTP.
func rtp(ssrc uint32, size int) []byte {
	p := make([]byte, size)
	p[0], p[1] = 0x80, 111
	p[8], p[9], p[10], p[11] = byte(ssrc>>24), byte(ssrc>>16), byte(ssrc>>8), byte(ssrc)
	return p
}

type client struct {
	b    *bench
	conn *net.UDPConn
	to   netip.AddrPort
}

// client opens a socket on a loopback address, towards the i-th ingress.
func (b *bench) client(ip string, i int) *client {
	b.t.Helper()
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(ip), 0)))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { conn.Close() })
	to := b.ingress(i)
	if to.Addr().IsUnspecified() {
		to = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), to.Port())
	}
	return &client{b, conn, to}
}

func (c *client) addr() netip.AddrPort { return c.conn.LocalAddr().(*net.UDPAddr).AddrPort() }

func (c *client) send(p []byte) {
	c.b.t.Helper()
	if _, err := c.conn.WriteToUDPAddrPort(p, c.to); err != nil {
		c.b.t.Fatal(err)
	}
}

func (c *client) want(payload string) {
	c.b.t.Helper()
	buf := make([]byte, 1<<16)
	_ = c.conn.SetReadDeadline(time.Now().Add(patience))
	n, from, err := c.conn.ReadFromUDPAddrPort(buf)
	if err != nil {
		c.b.t.Fatalf("client got nothing: %v; drops: %v", err, c.b.allDrops())
	}
	if string(buf[:n]) != payload {
		c.b.t.Fatalf("client got %q, want %q", buf[:n], payload)
	}
	if from != c.to {
		c.b.t.Fatalf("answer from %v, want %v", from, c.to)
	}
}

func (c *client) silence() {
	c.b.t.Helper()
	buf := make([]byte, 1<<16)
	_ = c.conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, _, err := c.conn.ReadFromUDPAddrPort(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		c.b.t.Fatalf("client got %d bytes (%v), want nothing", n, err)
	}
}

func testContext(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// stunWithoutUsername is a STUN message of a type, with a fingerprint only.
func stunWithoutUsername(typ stun.Type) []byte {
	var b stun.Builder
	b.Reset(nil, typ, stun.TransactionID{3})
	b.AddFingerprint()
	return b.Bytes()
}
