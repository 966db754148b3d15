package transceiver

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pion/logging"
	"github.com/pion/webrtc/v4"
	"go.uber.org/goleak"

	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/ufrag"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for an event that must come; it is no
// expectation of speed.
const patience = time.Minute

func testKeys(t testing.TB) *ufrag.Keyring {
	t.Helper()
	key, err := ufrag.GenerateKey('a')
	if err != nil {
		t.Fatal(err)
	}
	keys, err := ufrag.NewKeyring('a', key)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// stubRelay is a relay that knows one Host and keeps no flows: every datagram
// of a client goes to the Host, every frame of the Host to its client.
type stubRelay struct {
	t       testing.TB
	keys    *ufrag.Keyring
	host    atomic.Value // netip.AddrPort
	id      uint16
	ingress *net.UDPConn
	trunk   *net.UDPConn
	link    *trunk.Link
	linkMu  sync.Mutex
	wg      sync.WaitGroup

	nat      sync.Map // a client's true address -> the one it is given out to have
	natBack  sync.Map // the reverse; the zero address: forgotten
	dropIn   atomic.Pointer[func([]byte) bool]
	dropOut  atomic.Pointer[func(*trunk.Frame) bool]
	deaf     atomic.Int32 // how many announcements it leaves unanswered
	epoch    atomic.Uint64
	framesMu sync.Mutex
	frames   []trunk.Frame // to clients, with the first byte of their payloads
	// what came in control datagrams
	announced []trunk.Frame
	replies   []uint32
}

func newStubRelay(t testing.TB, keys *ufrag.Keyring, id uint16) *stubRelay {
	t.Helper()
	listen := func() *net.UDPConn {
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	r := &stubRelay{t: t, keys: keys, id: id, ingress: listen(), trunk: listen()}
	r.epoch.Store(uint64(time.Now().UnixNano()))
	r.link = trunk.NewLink(r.epoch.Load(), [16]byte{1, byte(id)})
	r.wg.Add(2)
	go r.fromClients()
	go r.fromHost()
	t.Cleanup(r.close)
	return r
}

func (r *stubRelay) close() {
	_ = r.ingress.Close()
	_ = r.trunk.Close()
	r.wg.Wait()
}

func (r *stubRelay) addr() netip.AddrPort {
	return r.ingress.LocalAddr().(*net.UDPAddr).AddrPort()
}

func (r *stubRelay) fromClients() {
	defer r.wg.Done()
	buf := make([]byte, 65536)
	for {
		n, from, err := r.ingress.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		if f := r.dropIn.Load(); f != nil && (*f)(buf[:n]) {
			continue
		}
		if v, ok := r.nat.Load(from); ok {
			from = v.(netip.AddrPort)
		}
		r.toHost(&trunk.Frame{Ingress: r.id, Client: from, Payload: buf[:n]})
	}
}

// toHost sends one frame by itself.
func (r *stubRelay) toHost(f *trunk.Frame) {
	host, ok := r.host.Load().(netip.AddrPort)
	if !ok {
		return
	}
	r.linkMu.Lock()
	h := r.link.Header(trunk.TypeData)
	r.linkMu.Unlock()
	b := trunk.NewBuilder(0)
	b.Reset(&h)
	if !b.Add(f) || !b.Seal(r.keys) {
		r.t.Error("a frame could not be built")
		return
	}
	var out []byte
	for _, p := range b.Buffers() {
		out = append(out, p...)
	}
	_, _ = r.trunk.WriteToUDPAddrPort(out, host)
}

func (r *stubRelay) fromHost() {
	defer r.wg.Done()
	buf := make([]byte, 65536)
	var reader trunk.Reader
	for {
		n, from, err := r.trunk.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		var h trunk.Header
		if p := reader.Open(buf[:n], r.keys, &h); p != trunk.OK {
			r.t.Errorf("the Host sent a bad datagram: %v", p)
			continue
		}
		r.linkMu.Lock()
		r.link.Observe(&h)
		r.linkMu.Unlock()
		if h.Type != trunk.TypeData {
			r.control(&h, reader.Body(), from)
			continue
		}
		var f trunk.Frame
		for reader.Next(&f) {
			if f.Flags&trunk.ToClient == 0 || f.Ingress != r.id {
				r.t.Errorf("a frame for ingress %d with flags %b", f.Ingress, f.Flags)
				continue
			}
			r.framesMu.Lock()
			note := f
			note.Payload = append([]byte(nil), f.Payload[:min(1, len(f.Payload))]...)
			r.frames = append(r.frames, note)
			r.framesMu.Unlock()
			if d := r.dropOut.Load(); d != nil && (*d)(&f) {
				continue
			}
			to := f.Client
			if v, ok := r.natBack.Load(to); ok {
				to = v.(netip.AddrPort)
				if !to.IsValid() {
					continue // a binding that the NAT has forgotten
				}
			}
			_, _ = r.ingress.WriteToUDPAddrPort(f.Payload, to)
		}
	}
}

// control proves the relay's epoch to the Host and answers keepalives.
func (r *stubRelay) control(h *trunk.Header, body []byte, from netip.AddrPort) {
	r.linkMu.Lock()
	defer r.linkMu.Unlock()
	send := func(b []byte, ok bool) {
		if ok {
			_, _ = r.trunk.WriteToUDPAddrPort(b, from)
		}
	}
	switch h.Type {
	case trunk.TypeHello:
		var m trunk.Hello
		if m.Parse(body) == trunk.OK {
			ack := r.link.OnHello(h, &m)
			ack.Role, ack.Ingresses = trunk.RoleRelay, []uint16{r.id}
			out := r.link.Header(trunk.TypeHelloAck)
			send(ack.Append(nil, &out, r.keys))
		}
	case trunk.TypeHelloAck:
		var m trunk.HelloAck
		if m.Parse(body) == trunk.OK {
			ack, reply, _ := r.link.OnHelloAck(h, &m)
			ack.Role, ack.Ingresses = trunk.RoleRelay, []uint16{r.id}
			out := r.link.Header(trunk.TypeHelloAck)
			if reply {
				send(ack.Append(nil, &out, r.keys))
			}
		}
	case trunk.TypeAnnounce:
		var m trunk.Announce
		if m.Parse(body) == trunk.OK && r.deaf.Add(-1) < 0 {
			out := r.link.Header(trunk.TypeAnnounce)
			b, _, ok := (&trunk.Announce{To: h.Epoch, Token: m.Token, Reply: true}).Append(nil, &out, r.keys, 0)
			send(b, ok)
		}
		r.onControl(h, body)
	default:
		r.onControl(h, body)
	}
}

// onControl keeps what a test looks at. The link's lock is held.
func (r *stubRelay) onControl(h *trunk.Header, body []byte) {
	r.framesMu.Lock()
	defer r.framesMu.Unlock()
	switch h.Type {
	case trunk.TypeAnnounce:
		var m trunk.Announce
		if p := m.Parse(body); p != trunk.OK || !r.link.Accept(h, m.To) {
			r.t.Errorf("an announcement that is not acceptable: %v", p)
			return
		}
		r.announced = append(r.announced, m.Flows...)
	case trunk.TypeKeepalive:
		var m trunk.Keepalive
		if m.Parse(body) == trunk.OK && m.Reply {
			r.replies = append(r.replies, m.Token)
		}
	case trunk.TypeGoodbye:
		var m trunk.Goodbye
		if m.Parse(body) == trunk.OK && m.Reply {
			r.replies = append(r.replies, m.Token)
		}
	default:
	}
}

// restart makes the relay another process on the same addresses.
func (r *stubRelay) restart() {
	r.linkMu.Lock()
	defer r.linkMu.Unlock()
	r.link = trunk.NewLink(r.epoch.Add(1), [16]byte{2, byte(r.id)})
}

// send puts a control datagram on the way to the Host.
func (r *stubRelay) send(build func(l *trunk.Link, peer uint64) ([]byte, bool)) {
	r.t.Helper()
	r.linkMu.Lock()
	defer r.linkMu.Unlock()
	peer, _ := r.link.Peer()
	b, ok := build(r.link, peer)
	if !ok {
		r.t.Fatal("cannot build a control datagram")
	}
	host, _ := r.host.Load().(netip.AddrPort)
	_, _ = r.trunk.WriteToUDPAddrPort(b, host)
}

func (r *stubRelay) hello() {
	r.send(func(l *trunk.Link, _ uint64) ([]byte, bool) {
		nonce, _ := l.Hello(time.Now())
		h := l.Header(trunk.TypeHello)
		return (&trunk.Hello{Nonce: nonce, Role: trunk.RoleRelay, Ingresses: []uint16{r.id}}).Append(nil, &h, r.keys)
	})
}

func (r *stubRelay) proven() bool {
	r.linkMu.Lock()
	defer r.linkMu.Unlock()
	_, ok := r.link.Peer()
	return ok
}

// has reports whether a flow was announced, or a token answered.
func (r *stubRelay) has(flow func(trunk.Frame) bool) bool {
	r.framesMu.Lock()
	defer r.framesMu.Unlock()
	return slices.ContainsFunc(r.announced, flow)
}

func (r *stubRelay) answered(token uint32) bool {
	r.framesMu.Lock()
	defer r.framesMu.Unlock()
	return slices.Contains(r.replies, token)
}

// rebind makes a client that was known as one address appear as another one
// from now on; packets to the old one are lost.
func (r *stubRelay) rebind(from, to netip.AddrPort) {
	r.nat.Store(from, to)
	r.natBack.Store(to, from)
	r.natBack.Store(from, netip.AddrPort{})
}

func quietLogger() *slog.Logger { return slog.New(slog.DiscardHandler) }

// setup makes a Host behind a stub relay.
func setup(t testing.TB, change func(*Config)) (*Host, *stubRelay) {
	t.Helper()
	keys := testKeys(t)
	relay := newStubRelay(t, keys, 1)
	cfg := Config{
		Listen:      netip.MustParseAddrPort("127.0.0.1:0"),
		Codec:       ufrag.NewCodec(keys),
		TrunkKeys:   keys,
		AllowRelays: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		Ingresses:   []Ingress{{ID: 1, Advertise: relay.addr()}},
		Logger:      quietLogger(),
		// Many handshakes at once take their time under the race detector.
		ConnectTimeout: patience, DTLSTimeout: patience,
	}
	if change != nil {
		change(&cfg)
	}
	host, err := NewHost(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := host.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	relay.host.Store(host.Addr())
	return host, relay
}

// client is a stock Pion peer.
type client struct {
	t  testing.TB
	pc *webrtc.PeerConnection
}

// calm keeps a client from giving up on a busy machine before the test does.
func calm(se *webrtc.SettingEngine) {
	se.SetICEMaxBindingRequests(1000)
	se.SetICETimeouts(patience, patience, 2*time.Second)
	se.SetDTLSConnectContextMaker(func() (context.Context, func()) {
		return context.WithTimeout(context.Background(), patience)
	})
}

type nullLoggers struct{}

func (nullLoggers) NewLogger(string) logging.LeveledLogger { return &pionLogger{to: quietLogger()} }

func newClient(t testing.TB, change func(*webrtc.SettingEngine)) *client {
	t.Helper()
	se := webrtc.SettingEngine{LoggerFactory: nullLoggers{}}
	se.SetNetworkTypes([]webrtc.NetworkType{webrtc.NetworkTypeUDP4})
	se.SetIncludeLoopbackCandidate(true)
	calm(&se)
	se.SetIPFilter(func(ip net.IP) bool { return ip.IsLoopback() })
	if change != nil {
		change(&se)
	}
	m := &webrtc.MediaEngine{}
	if err := m.RegisterDefaultCodecs(); err != nil {
		t.Fatal(err)
	}
	pc, err := webrtc.NewAPI(webrtc.WithSettingEngine(se), webrtc.WithMediaEngine(m)).NewPeerConnection(webrtc.Configuration{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pc.GracefulClose() })
	return &client{t: t, pc: pc}
}

// offer makes an offer at once, without waiting for candidates.
func (c *client) offer(opts *webrtc.OfferOptions) string {
	c.t.Helper()
	o, err := c.pc.CreateOffer(opts)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := c.pc.SetLocalDescription(o); err != nil {
		c.t.Fatal(err)
	}
	return o.SDP
}

func (c *client) answer(sdp string) {
	c.t.Helper()
	err := c.pc.SetRemoteDescription(webrtc.SessionDescription{Type: webrtc.SDPTypeAnswer, SDP: sdp})
	if err != nil {
		c.t.Fatalf("the client refuses the answer: %v\n%s", err, sdp)
	}
}

// call offers, accepts and answers.
func (c *client) call(host *Host, opts AcceptOptions) *Session {
	c.t.Helper()
	s, answer, err := host.Accept(context.Background(), c.offer(nil), opts)
	if err != nil {
		c.t.Fatal(err)
	}
	c.answer(answer)
	return s
}

func wait(t testing.TB, what string, ch <-chan struct{}) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(patience):
		t.Fatalf("timed out waiting for %s", what)
	}
}

// receive waits for a value.
func receive[T any](t testing.TB, what string, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(patience):
		t.Fatalf("timed out waiting for %s", what)
	}
	return v
}

// eventually polls a condition that has no channel of its own.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting for %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func sdpLines(sdp, prefix string) (out []string) {
	for line := range strings.Lines(sdp) {
		line = strings.TrimRight(line, "\r\n")
		if strings.HasPrefix(line, prefix) {
			out = append(out, line)
		}
	}
	return out
}
