package transceiver

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pion/webrtc/v4"

	"github.com/usher-rtc/usher/internal/icelite"
	"github.com/usher-rtc/usher/internal/race"
	"github.com/usher-rtc/usher/internal/stun"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/internal/udpbatch"
	"github.com/usher-rtc/usher/ufrag"
)

func TestConfigErrorsNameTheField(t *testing.T) {
	keys := testKeys(t)
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	in := Ingress{ID: 1, Advertise: netip.MustParseAddrPort("203.0.113.10:3478")}
	for name, c := range map[string]struct {
		change func(*Config)
		field  string
	}{
		"no codec":           {func(c *Config) { c.Codec = nil }, "Codec"},
		"no keys":            {func(c *Config) { c.TrunkKeys = nil }, "TrunkKeys"},
		"no relays":          {func(c *Config) { c.AllowRelays = nil }, "AllowRelays"},
		"bad prefix":         {func(c *Config) { c.AllowRelays = append(c.AllowRelays, netip.Prefix{}) }, "AllowRelays[1]"},
		"no listen":          {func(c *Config) { c.Listen = netip.AddrPort{} }, "Listen"},
		"listen and conns":   {func(c *Config) { c.Conns = []net.PacketConn{conn} }, "Conns"},
		"nil conn":           {func(c *Config) { c.Listen, c.Conns = netip.AddrPort{}, []net.PacketConn{nil} }, "Conns[0]"},
		"conn twice":         {func(c *Config) { c.Listen, c.Conns = netip.AddrPort{}, []net.PacketConn{conn, conn} }, "Conns[1]"},
		"sockets":            {func(c *Config) { c.Sockets = -1 }, "Sockets"},
		"host id":            {func(c *Config) { c.HostID = 1 << 48 }, "HostID"},
		"cluster":            {func(c *Config) { c.Cluster = 4096 }, "Cluster"},
		"no ingress":         {func(c *Config) { c.Ingresses = nil }, "Ingresses"},
		"ingress id":         {func(c *Config) { c.Ingresses = []Ingress{{Advertise: in.Advertise}} }, "Ingresses[0].ID"},
		"ingress id twice":   {func(c *Config) { c.Ingresses = []Ingress{in, in} }, "Ingresses[1].ID"},
		"ingress addr twice": {func(c *Config) { c.Ingresses = []Ingress{in, {2, in.Advertise}} }, "Ingresses[1].Advertise"},
		"ingress port":       {func(c *Config) { c.Ingresses = []Ingress{{1, netip.MustParseAddrPort("203.0.113.10:0")}} }, "Ingresses[0].Advertise"},
		"ingress wildcard":   {func(c *Config) { c.Ingresses = []Ingress{{1, netip.MustParseAddrPort("0.0.0.0:1")}} }, "Ingresses[0].Advertise"},
		"ingress zone":       {func(c *Config) { c.Ingresses = []Ingress{{1, netip.MustParseAddrPort("[fe80::1%eth0]:1")}} }, "Ingresses[0].Advertise"},
		"max sessions":       {func(c *Config) { c.MaxSessions = -1 }, "MaxSessions"},
		"max offer":          {func(c *Config) { c.MaxOfferBytes = -1 }, "MaxOfferBytes"},
		"connect timeout":    {func(c *Config) { c.ConnectTimeout = -1 }, "ConnectTimeout"},
		"dtls timeout":       {func(c *Config) { c.DTLSTimeout = -1 }, "DTLSTimeout"},
		"consent timeout":    {func(c *Config) { c.ConsentTimeout = -1 }, "ConsentTimeout"},
		"certificate":        {func(c *Config) { c.CertificateLifetime = -1 }, "CertificateLifetime"},
		"mtu":                {func(c *Config) { c.TrunkMTU = 100 }, "TrunkMTU"},
		"read buffer":        {func(c *Config) { c.ReadBuffer = -1 }, "ReadBuffer"},
		"wildcard":           {func(c *Config) { c.Listen = netip.MustParseAddrPort("0.0.0.0:0") }, "AdvertiseTrunk"},
		"IPv6 without id":    {func(c *Config) { c.AdvertiseTrunk = netip.MustParseAddrPort("[2001:db8::1]:9000") }, "AdvertiseTrunk"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{
				Listen: netip.MustParseAddrPort("127.0.0.1:0"), Codec: ufrag.NewCodec(keys), TrunkKeys: keys,
				AllowRelays: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Ingresses: []Ingress{in},
			}
			c.change(&cfg)
			h, err := NewHost(cfg)
			var ce *ConfigError
			if !errors.As(err, &ce) || ce.Field != c.field {
				t.Errorf("got %v, want an error about %s", err, c.field)
			}
			if h != nil {
				_ = h.Close()
			}
		})
	}
}

// C32.
func TestSecondHostOnTheSameAddressIsRefused(t *testing.T) {
	host, _ := setup(t, nil)
	cfg := host.cfg
	cfg.Listen = host.Addr()
	for _, sockets := range []int{1, 2} {
		cfg.Sockets = sockets
		if second, err := NewHost(cfg); err == nil {
			_ = second.Close()
			t.Errorf("a second Host with %d sockets was not refused", sockets)
		}
	}
}

// C57.
func TestStartAndStopOnAFixedPort(t *testing.T) {
	host, _ := setup(t, nil)
	cfg := host.cfg
	cfg.Listen = host.Addr()
	if err := host.Close(); err != nil {
		t.Fatal(err)
	}
	files := openFiles(t)
	before := runtime.NumGoroutine()
	for range 50 {
		h, err := NewHost(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		if _, _, err := h.Accept(context.Background(), browserOffer(), AcceptOptions{}); !errors.Is(err, ErrHostClosed) || !errors.Is(err, net.ErrClosed) {
			t.Fatalf("Accept after Close: %v", err)
		}
	}
	eventually(t, "goroutines to be as before", func() bool { return runtime.NumGoroutine() <= before })
	if after := openFiles(t); after > files {
		t.Errorf("%d descriptors, %d before", after, files)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0 // no such list on this system
	}
	return len(entries)
}

// C87.
func TestShutdownWaitsAndThenEndsTheRest(t *testing.T) {
	host, _ := setup(t, withEcho)
	var sessions []*Session
	for range 3 {
		c := newClient(t, nil)
		ch := c.channel()
		s := c.call(host, AcceptOptions{})
		ch.echo(t, "hello")
		sessions = append(sessions, s)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	shut := make(chan error, 1)
	go func() { shut <- host.Shutdown(ctx) }()
	eventually(t, "the drain to begin", host.Draining)
	if _, _, err := host.Accept(ctx, browserOffer(), AcceptOptions{}); !errors.Is(err, ErrDraining) {
		t.Errorf("Accept while draining: %v", err)
	}
	for _, s := range sessions[:2] {
		_ = s.Close()
		wait(t, "a session's end", s.Done())
	}
	select {
	case err := <-shut:
		t.Fatalf("Shutdown returned with a session alive: %v", err)
	default:
	}
	if sessions[2].CloseReason() != ReasonNone {
		t.Error("the last session was ended")
	}
	cancel()
	if err := receive(t, "Shutdown", shut); !errors.Is(err, context.Canceled) {
		t.Errorf("Shutdown: %v", err)
	}
	if r := sessions[2].CloseReason(); r != ReasonDrained {
		t.Errorf("the last session ended because of %q", r)
	}
	if st := host.Stats(); st.Live != 0 || st.Ended[ReasonServer] != 2 || st.Ended[ReasonDrained] != 1 {
		t.Errorf("%+v", st)
	}
}

func TestManySessionsAtOnce(t *testing.T) {
	host, relay := setup(t, withEcho)
	const n = 24
	var wg sync.WaitGroup
	for range n {
		wg.Add(1)
		go func() {
			defer wg.Done()
			c := newClient(t, nil)
			d, err := c.pc.CreateDataChannel("events", nil)
			if err != nil {
				t.Error(err)
				return
			}
			open := make(chan struct{})
			d.OnOpen(func() { close(open) })
			o, err := c.pc.CreateOffer(nil)
			if err != nil || c.pc.SetLocalDescription(o) != nil {
				t.Error("no offer")
				return
			}
			s, answer, err := host.Accept(context.Background(), o.SDP, AcceptOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			if err := c.pc.SetRemoteDescription(webrtc.SessionDescription{Type: webrtc.SDPTypeAnswer, SDP: answer}); err != nil {
				t.Error(err)
				return
			}
			select {
			case <-open:
			case <-time.After(patience):
				t.Errorf("not open; the client is %v, its ICE %v; the session: %v %+v", c.pc.ConnectionState(), c.pc.ICEConnectionState(), s.Err(), s.Stats())
				return
			}
			pair, err := c.pc.SCTP().Transport().ICETransport().GetSelectedCandidatePair()
			if err != nil || pair == nil {
				t.Error("no pair", err)
				return
			}
			if pair.Local.Port != s.ClientAddr().Port() {
				t.Errorf("the Host sees %v, the client's port is %d", s.ClientAddr(), pair.Local.Port)
			}
		}()
	}
	wg.Wait()
	if st := host.Stats(); st.Connected != n {
		t.Errorf("%d connected, want %d", st.Connected, n)
	}
	_ = relay
}

// What an idle call costs in goroutines, Pion's included, with audio and a
// data channel. Goroutines inherit profiler labels, which tell the Host's half
// of a call from the client's.
func TestGoroutinesOfAnIdleSession(t *testing.T) {
	heard := make(chan struct{})
	host, _ := setup(t, func(c *Config) {
		c.OnSession = func(s *Session) error {
			s.OnTrack(func(track *webrtc.TrackRemote, _ *webrtc.RTPReceiver) {
				close(heard)
				for {
					if _, _, err := track.ReadRTP(); err != nil {
						return
					}
				}
			})
			return nil
		}
	})
	const limit = 18
	c := newClient(t, nil)
	ch := c.channel()
	c.microphone()
	offer := c.offer(nil)
	var s *Session
	var answer string
	var err error
	pprof.Do(context.Background(), pprof.Labels("half", "host"), func(ctx context.Context) {
		s, answer, err = host.Accept(ctx, offer, AcceptOptions{})
	})
	if err != nil {
		t.Fatal(err)
	}
	c.answer(answer)
	wait(t, "DTLS", s.Connected())
	wait(t, "the data channel", ch.open)
	wait(t, "the track", heard)
	count := func() (n int) {
		var b strings.Builder
		if err := pprof.Lookup("goroutine").WriteTo(&b, 1); err != nil {
			t.Fatal(err)
		}
		for _, group := range strings.Split(b.String(), "\n\n") {
			if strings.Contains(group, `"half":"host"`) {
				k, _ := strconv.Atoi(strings.Fields(group)[0])
				n += k
			}
		}
		return n
	}
	n := 0
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if n = count(); n <= limit {
			break
		}
		if time.Now().After(deadline) {
			var b strings.Builder
			_ = pprof.Lookup("goroutine").WriteTo(&b, 1)
			t.Fatalf("%d goroutines, want at most %d\n%s", n, limit, b.String())
		}
	}
	t.Logf("%d goroutines", n)
	if n < 5 {
		t.Errorf("%d goroutines: the count does not see Pion's", n)
	}
}

// frameFor builds a datagram of a relay with one frame.
func frameFor(t testing.TB, keys *ufrag.Keyring, f *trunk.Frame) []byte {
	t.Helper()
	b := trunk.NewBuilder(0)
	b.Reset(&trunk.Header{Hops: 4, Epoch: 7})
	if !b.Add(f) || !b.Seal(keys) {
		t.Fatal("cannot build a frame")
	}
	var out []byte
	for _, p := range b.Buffers() {
		out = append(out, p...)
	}
	return out
}

func check(username, password string) []byte {
	var b stun.Builder
	b.Reset(nil, stun.BindingRequest, stun.TransactionID{1, 2, 3})
	local, remote, _ := strings.Cut(username, ":")
	b.AddUsername(local, remote)
	b.AddPriority(1)
	b.AddControlling(1)
	b.AddIntegrity(new(stun.Authenticator), []byte(password))
	b.AddFingerprint()
	return b.Bytes()
}

// C17, C39.
func TestHostileDatagramsAreCountedAndReachNobody(t *testing.T) {
	host, _ := setup(t, func(c *Config) { c.AllowRelays = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/16")} })
	keys := host.cfg.TrunkKeys
	c := newClient(t, nil)
	c.channel()
	s, answer, err := host.Accept(context.Background(), c.offer(nil), AcceptOptions{})
	if err != nil {
		t.Fatal(err)
	}
	remote := s.ice.remoteUfrag
	pwd := strings.TrimPrefix(sdpLines(answer, "a=ice-pwd:")[0], "a=ice-pwd:")
	stranger := netip.MustParseAddrPort("203.0.113.66:6666")
	hello := []byte{22, 254, 253, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1}
	frame := func(payload []byte) []byte {
		return frameFor(t, keys, &trunk.Frame{Ingress: 1, Client: stranger, Payload: payload})
	}
	relayAddr := netip.MustParseAddrPort("127.0.0.77:7777")
	for name, d := range map[string]struct {
		from   netip.AddrPort
		data   []byte
		reason DropReason
	}{
		"no relay":          {netip.MustParseAddrPort("127.1.0.1:7777"), frame(hello), DropRelayRefused},
		"wrong key":         {relayAddr, frameFor(t, testKeys(t), &trunk.Frame{Ingress: 1, Client: stranger, Payload: hello}), DropTrunk},
		"empty":             {relayAddr, nil, DropTrunk},
		"to a client":       {relayAddr, frameFor(t, keys, &trunk.Frame{Flags: trunk.ToClient, Ingress: 1, Client: stranger, Payload: hello}), DropDirection},
		"ingress 0":         {relayAddr, frameFor(t, keys, &trunk.Frame{Client: stranger, Payload: hello}), DropIngress},
		"empty packet":      {relayAddr, frame(nil), DropClass},
		"QUIC":              {relayAddr, frame([]byte{0xc0, 0, 0, 1}), DropClass},
		"hello, no check":   {relayAddr, frame(hello), DropUnknownPath},
		"RTP, no check":     {relayAddr, frame(append([]byte{0x80, 111}, make([]byte, 40)...)), DropUnknownPath},
		"broken STUN":       {relayAddr, frame(append([]byte{0, 1, 0, 8, 0x21, 0x12, 0xa4, 0x42}, make([]byte, 12)...)), DropSTUN},
		"no USERNAME":       {relayAddr, frame(append([]byte{0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42}, make([]byte, 12)...)), DropUsername},
		"unknown ufrag":     {relayAddr, frame(check("nobody:"+remote, pwd)), DropUnknownUfrag},
		"unknown answer":    {relayAddr, frame(append([]byte{1, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42}, make([]byte, 12)...)), DropUnknownPath},
		"unverified, alien": {relayAddr, frameFor(t, keys, &trunk.Frame{Flags: trunk.Unverified, Ingress: 1, Client: stranger, Payload: hello, Route: ufrag.Route{Kind: ufrag.KindDirectory, Host: 9, Session: s.Route().Session}}), DropUnknownPath},
		"unverified hello":  {relayAddr, frameFor(t, keys, &trunk.Frame{Flags: trunk.Unverified, Ingress: 1, Client: stranger, Payload: hello, Route: s.Route()}), DropRefused},
	} {
		t.Run(name, func(t *testing.T) {
			before := host.Stats()
			sh := &shard{host: host, conn: host.shards[0].conn, group: host.shards[0].group}
			sh.HandleBatch(0, []udpbatch.Packet{{Data: d.data, From: d.from}})
			for r := range dropCount {
				want := uint64(0)
				if r == d.reason {
					want = 1
				}
				if n := sh.drops[r].Load(); n != want {
					t.Errorf("%d drops for %q, want %d", n, r, want)
				}
			}
			if after := host.Stats(); after.BytesOut != before.BytesOut || after.FramesOut != before.FramesOut {
				t.Error("the Host sent something to a stranger")
			}
		})
	}
	// Wrong integrity is answered, if at all, with an error, and makes no path.
	sh := &shard{host: host, conn: host.shards[0].conn, group: host.shards[0].group}
	sh.HandleBatch(0, []udpbatch.Packet{{Data: frame(check(s.Ufrag()+":"+remote, "wrongwrongwrongwrongwrong")), From: relayAddr}})
	if s.ClientAddr().IsValid() || host.paths.len() != 0 {
		t.Error("a check with a wrong password made a path")
	}
	c.answer(answer)
	wait(t, "DTLS after all that", s.Connected())
}

// Two sessions of a client that uses one socket for both: STUN follows its
// ufrag, so both stay alive; anything else goes to the session whose path was
// proven last. C28.
func TestTwoSessionsOnOnePath(t *testing.T) {
	table := newPathTable()
	p := icelite.Path{Client: netip.MustParseAddrPort("203.0.113.66:6666"), Ingress: 1}
	a, b, c := &Session{}, &Session{}, &Session{}
	owner := func() *Session { return table.find(p)[0] }
	if table.claim(p, a) || owner() != a {
		t.Error("the first claim is contested")
	}
	if !table.claim(p, b) || owner() != a {
		t.Error("a claim alone took the path over")
	}
	if !table.own(p, b) || owner() != b {
		t.Error("a proven path was not taken over")
	}
	if table.own(p, b) {
		t.Error("proven again counts as a change")
	}
	table.claim(p, c)
	n := 0
	found := table.find(p)
	for range found.all() {
		n++
	}
	if n != 3 {
		t.Errorf("%d sessions, want 3", n)
	}
	table.release(p, b)
	if owner() != a {
		t.Error("the path did not fall back to its first owner")
	}
	table.release(p, a)
	table.release(p, b)
	if owner() != c {
		t.Error("release of one that is not there changed something")
	}
	table.release(p, c)
	if table.len() != 0 {
		t.Error("an empty list stays")
	}
}

// checked accepts a session whose client's first check has come from an address.
func checked(t *testing.T, host *Host, client netip.AddrPort) *Session {
	t.Helper()
	s, _, err := host.Accept(context.Background(), browserOffer(), AcceptOptions{})
	if err != nil {
		t.Fatal(err)
	}
	sh := &shard{host: host, conn: host.shards[0].conn, group: host.shards[0].group}
	payload := check(s.Ufrag()+":"+s.ice.remoteUfrag, s.ice.password)
	frame := frameFor(t, host.cfg.TrunkKeys, &trunk.Frame{Ingress: 1, Client: client, Payload: payload})
	sh.HandleBatch(0, []udpbatch.Packet{{Data: frame, From: netip.MustParseAddrPort("127.0.0.77:7777")}})
	return s
}

func TestClientSocketSharedByTwoSessions(t *testing.T) {
	host, _ := setup(t, nil)
	client := netip.MustParseAddrPort("203.0.113.66:6666")
	for i := range 2 {
		if s := checked(t, host, client); s.ClientAddr() != client {
			t.Errorf("session %d is at %v", i, s.ClientAddr())
		}
	}
	if got := host.Stats().Contested; got != 1 {
		t.Errorf("%d contested paths", got)
	}
}

// C110: a client that went before the handshake must not end that of the next one
// at its address and port.
func TestUnprovenSessionIsSilentOnAPathOfAnother(t *testing.T) {
	host, _ := setup(t, nil)
	client := netip.MustParseAddrPort("203.0.113.66:6666")
	path := icelite.Path{Client: client, Ingress: 1}
	sessions := []*Session{checked(t, host, client), checked(t, host, client)}
	gone, next := &sessions[0].front, &sessions[1].front
	if gone.taken(path) || next.taken(path) {
		t.Error("an address that nobody has proven is kept from one of them")
	}
	next.proven.Store(true)
	host.paths.own(path, sessions[1])
	if !gone.taken(path) || next.taken(path) {
		t.Errorf("after the second has proven the path: %v, %v", gone.taken(path), next.taken(path))
	}
	before := sessions[0].Stats()
	sessions[0].fromPion([]byte{21, 254, 253, 0, 0, 0, 0, 0, 0, 0, 9, 0, 2, 1, 0})
	// Its own hello may be among what is dropped.
	if after := sessions[0].Stats(); after.PacketsOut != before.PacketsOut || after.Dropped <= before.Dropped {
		t.Errorf("an alert went out: %+v, before %+v", after, before)
	}
	sessions[1].Close()
	eventually(t, "the path without its owner", func() bool { return !gone.taken(path) })
}

func TestSlowSessionLosesItsOwnPacketsOnly(t *testing.T) {
	conn := newVirtualConn("clnt", "clientPasswordclientPassword", func([]byte) {})
	conn.started.Store(true)
	n := 0
	for conn.deliver([]byte{0x80}) {
		if n++; n > 10*inQueue {
			t.Fatal("the queue has no bound")
		}
	}
	if n != inQueue {
		t.Errorf("%d packets fit, want %d", n, inQueue)
	}
	if conn.deliver(make([]byte, slotSize+1)) {
		t.Error("an oversized packet was taken")
	}
	held := newVirtualConn("clnt", "clientPasswordclientPassword", func([]byte) {})
	for n = 0; held.deliver([]byte{0x80}); n++ {
		if n > heldQueue {
			t.Fatal("no bound before the start")
		}
	}
	_ = conn.Close()
	_ = held.Close()
	if conn.deliver([]byte{0x80}) {
		t.Error("delivered after Close")
	}
}

func TestReceivePathDoesNotAllocate(t *testing.T) {
	race.NoAllocs(t)
	host, relay := setup(t, withEcho)
	c := newClient(t, nil)
	ch := c.channel()
	s := c.call(host, AcceptOptions{})
	ch.echo(t, "hello")
	path := s.front.selected()
	rtp := append([]byte{0x80, 111}, make([]byte, 100)...)
	data := frameFor(t, host.cfg.TrunkKeys, &trunk.Frame{Ingress: 1, Client: path.Client, Payload: rtp})
	sh := &shard{host: host, conn: host.shards[0].conn, group: host.shards[0].group}
	from := relay.trunk.LocalAddr().(*net.UDPAddr).AddrPort()
	pkts := []udpbatch.Packet{{Data: data, From: from}}
	host.peers.add(from, false).hello(time.Now()) // so that none is due
	relay.close()                                 // the other ends of the path allocate, in this process
	_ = c.pc.GracefulClose()
	// Pion's own reading is not part of it: its queue is kept empty here.
	own := newVirtualConn("clnt", "clientPasswordclientPassword", func([]byte) {})
	own.started.Store(true)
	s.front.mu.Lock()
	s.conn, own = own, s.conn
	s.front.mu.Unlock()
	allocs := testing.AllocsPerRun(200, func() {
		pkts[0].Data = data
		sh.HandleBatch(0, pkts)
		if p := <-s.conn.queue; p.n != len(rtp) {
			t.Error("cut")
		} else {
			p.free()
		}
	})
	s.front.mu.Lock()
	s.conn = own
	s.front.mu.Unlock()
	if allocs != 0 {
		t.Errorf("%v allocations per packet", allocs)
	}
}

func TestSendPathDoesNotAllocate(t *testing.T) {
	race.NoAllocs(t)
	host, relay := setup(t, withEcho)
	c := newClient(t, nil)
	ch := c.channel()
	s := c.call(host, AcceptOptions{})
	ch.echo(t, "hello")
	eventually(t, "a proven path", func() bool { return s.Stats().Validated })
	relay.close() // the other ends of the path allocate, in this process
	_ = c.pc.GracefulClose()
	junk := append([]byte{0x80, 111}, make([]byte, 100)...)
	if allocs := testing.AllocsPerRun(200, func() { s.fromPion(junk) }); allocs >= 1 {
		t.Errorf("%v allocations per packet", allocs)
	}
}

// A panic while a session is made is an error, and takes no place for ever.
func TestPanicWhileASessionIsMade(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"SettingEngine": func(c *Config) { c.SettingEngine = func(*webrtc.SettingEngine) { panic("boom") } },
		"NewAPI":        func(c *Config) { c.NewAPI = func(webrtc.SettingEngine) (*webrtc.API, error) { panic("boom") } },
	} {
		t.Run(name, func(t *testing.T) {
			host, _ := setup(t, func(c *Config) { c.MaxSessions = 1; change(c) })
			for range 2 {
				_, _, err := host.Accept(patient(t), browserOffer(), AcceptOptions{})
				if !errors.Is(err, ErrPanic) {
					t.Fatalf("got %v, want ErrPanic", err)
				}
			}
			closed := make(chan struct{})
			go func() {
				defer close(closed)
				if err := host.Close(); err != nil {
					t.Error(err)
				}
			}()
			wait(t, "Close", closed)
		})
	}
}
