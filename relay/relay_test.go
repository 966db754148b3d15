package relay

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/ufrag"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCheckMakesAFlowThatCarriesMediaBothWays(t *testing.T) {
	b := newBench(t, nil)
	h := b.host(nil)
	c := b.client("127.0.1.1", 0)
	id := h.mint()
	check := id.check()
	c.send(check)
	r := h.want(c.addr())
	if !bytes.Equal(r.Payload, check) || r.Ingress != 7 || r.Flags != 0 {
		t.Fatalf("frame %+v", r.Frame)
	}
	h.reply(r, 0, "success")
	c.want("success")
	h.reply(r, trunk.Validated, "validated", 42)
	c.want("validated")

	media := rtp(42, 160)
	c.send(media)
	if r := h.want(c.addr()); !bytes.Equal(r.Payload, media) || r.Flags != 0 {
		t.Fatalf("frame %+v", r.Frame)
	}
	flows := b.srv.Flows(0)
	if len(flows) != 1 {
		t.Fatalf("%d flows", len(flows))
	}
	f := flows[0]
	if f.Key != (flowtable.Key{Client: c.addr(), Ingress: 7}) || f.Route != id.route || f.Upstream != h.addr() ||
		f.State != flowtable.Confirmed || f.NumSSRCs != 1 || f.SSRCs[0] != 42 {
		t.Fatalf("flow %+v", f)
	}
	b.eventually(func() error {
		st := b.srv.Stats()
		if st.FromClients != 2 || st.ToUpstream != 2 || st.FromUpstream != 2 || st.ToClients != 2 ||
			st.ToClientsBytes != uint64(len("success")+len("validated")) || st.Created != 1 || st.Flows != 1 {
			return fmt.Errorf("stats %+v", st.Counters)
		}
		return nil
	})
	b.alive()
}

// C01: every prefix of a valid check.
func TestPrefixesOfACheckAreDroppedAndCounted(t *testing.T) {
	b := newBench(t, nil)
	h := b.host(nil)
	c := b.client("127.0.1.1", 0)
	golden, _ := hex.DecodeString("000100482112a4420102030405060708090a0b0c00060009616263643a65666768000000002400046e0001ff" +
		"802a00080011223344556677002500000008001455f2a391102497de895c6e77ebe2a5c3fe3d2d9580280004409fb021")
	for n := range golden {
		c.send(golden[:n])
	}
	b.eventually(func() error {
		if n := b.totalDrops(); n != uint64(len(golden)) {
			return fmt.Errorf("%d drops: %v", n, b.allDrops())
		}
		return nil
	})
	if n := len(b.srv.Flows(0)); n != 0 {
		t.Fatalf("%d flows", n)
	}
	c.silence()
	check := h.mint().check()
	c.send(check)
	if r := h.want(c.addr()); !bytes.Equal(r.Payload, check) {
		t.Fatal("not byte for byte")
	}
	b.alive()
}

// C03 and C09: length fields, trailing bytes, fingerprints.
func TestDamagedChecks(t *testing.T) {
	b := newBench(t, nil)
	h := b.host(nil)
	id := h.mint()
	valid := id.check()
	length := len(valid) - 20
	mutate := func(f func([]byte) []byte) []byte { return f(bytes.Clone(valid)) }
	setLength := func(n int) []byte {
		return mutate(func(p []byte) []byte { p[2], p[3] = byte(n>>8), byte(n); return p })
	}
	cases := []struct {
		name   string
		packet []byte
		reason string // "": delivered
	}{
		{"length-1", setLength(length - 1), "malformed stun"},
		{"length-2", setLength(length - 2), "malformed stun"},
		{"length+1", setLength(length + 1), "malformed stun"},
		{"length+4", setLength(length + 4), "malformed stun"},
		{"trailing 1", append(bytes.Clone(valid), 0xff), ""},
		{"trailing 4", append(bytes.Clone(valid), 0xff, 0xff, 0xff, 0xff), ""},
		{"fingerprint", mutate(func(p []byte) []byte { p[len(p)-1] ^= 1; return p }), "wrong stun fingerprint"},
		{"integrity", id.checkFrom("cfrg", "not the password"), "wrong message integrity"},
		{"truncated ufrag", identity{ufrag: id.ufrag[:8], password: id.password}.check(), "foreign ufrag"},
		{"unknown key", identity{ufrag: "z" + id.ufrag[1:], password: id.password}.check(), "unknown ufrag key"},
		{"guess", identity{ufrag: "a0123456789012345678901", password: id.password}.check(), "ufrag check failed"},
	}
	for i, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			c := b.client(fmt.Sprintf("127.0.1.%d", 10+i), 0)
			before := b.srv.Stats().Drops[tc.reason]
			c.send(tc.packet)
			if tc.reason == "" {
				if r := h.want(c.addr()); !bytes.Equal(r.Payload, tc.packet) {
					t.Fatal("not forwarded whole")
				}
				return
			}
			b.drops(tc.reason, before+1)
			h.nothing()
			c.silence()
		})
	}
	b.alive()
}

// C05 and C14: what does not name a session goes by flow, or nowhere.
//
// C18 is the third of them: answers have no USERNAME.
func TestPacketsWithoutUsernameFollowTheFlow(t *testing.T) {
	b := newBench(t, nil)
	h := b.host(nil)
	known, unknown := b.client("127.0.1.1", 0), b.client("127.0.1.2", 0)
	known.send(h.mint().check())
	h.want(known.addr())
	var packets [][]byte
	for _, s := range []string{
		"000100002112a4420102030405060708090a0b0c",
		"001100082112a4420102030405060708090a0b0c802800044862c2c6",
		"010100142112a4420102030405060708090a0b0c002000080001a147e112a643802800045089d898",
		"020000202112a4420102030405060708090a0b0c00080014be6b95d5b28c906d229f1fa10bc4fe0ad44451e080280004cf6d26e2",
	} {
		p, _ := hex.DecodeString(s)
		packets = append(packets, p)
	}
	for first := range 256 {
		p := make([]byte, 40)
		p[0] = byte(first)
		packets = append(packets, p)
	}
	for _, p := range packets {
		known.send(p)
		if r := h.want(known.addr()); !bytes.Equal(r.Payload, p) {
			t.Fatalf("got %x, want %x", r.Payload, p)
		}
		unknown.send(p)
	}
	b.drops("no flow", uint64(len(packets)))
	h.nothing()
	unknown.silence()
	b.alive()
}

// C07: user names of all lengths.
func TestLongUsernames(t *testing.T) {
	b := newBench(t, nil)
	h := b.host(nil)
	id := h.mint()
	c := b.client("127.0.1.1", 0)
	for _, total := range []int{35, 128, 289, 508} {
		p := rawCheck(id, total)
		c.send(p)
		if r := h.want(c.addr()); !bytes.Equal(r.Payload, p) {
			t.Fatalf("%d: not forwarded whole", total)
		}
	}
	for i, total := range []int{509, 512, 513, 763, 1200, 60000} {
		c.send(rawCheck(id, total))
		b.drops("stun username too long", uint64(i+1))
	}
	h.nothing()
	b.alive()
}

// C11: packets of all sizes arrive whole or are counted.
func TestLargePackets(t *testing.T) {
	b := newBench(t, nil)
	h := b.host(nil)
	c := b.client("127.0.1.1", 0)
	c.send(h.mint().check())
	h.want(c.addr())
	for _, size := range []int{1472, 1473, 2048, 8192, 8193, 9000, 60000} {
		p := make([]byte, size)
		for i := range p {
			p[i] = byte(i % 251)
		}
		p[0] = 0x80
		c.send(p)
		if r := h.want(c.addr()); !bytes.Equal(r.Payload, p) {
			t.Fatalf("%d bytes became %d", size, len(r.Payload))
		}
	}
	p := make([]byte, 65507)
	p[0] = 0x80
	c.send(p)
	b.drops("too large for a frame", 1)
	c.send([]byte{})
	b.drops("empty datagram", 1)
	b.alive()
}

// C28: two sessions on one client socket.
func TestChecksFollowTheirOwnUfragOnASharedAddress(t *testing.T) {
	b := newBench(t, nil)
	h1, h2 := b.host(nil), b.host(nil)
	c := b.client("127.0.1.1", 0)
	id1, id2 := h1.mint(), h2.mint()
	c.send(id1.check())
	r1 := h1.want(c.addr())
	h1.reply(r1, trunk.Validated, "1")
	c.want("1")
	for range 5 {
		c.send(id2.check())
		h2.want(c.addr())
		c.send(id1.check())
		h1.want(c.addr())
		c.send(rtp(1, 50))
		h1.want(c.addr())
	}
	if st := b.srv.Stats(); st.Moved != 0 {
		t.Fatalf("moved %d times", st.Moved)
	}
	b.eventually(func() error {
		if n := b.srv.Stats().Contested; n != 5 {
			return fmt.Errorf("%d contests", n)
		}
		return nil
	})
	b.alive()
}

// C39: strangers, and peers that are none.
func TestNobodyElseUsesAFlow(t *testing.T) {
	b := newBench(t, nil)
	h := b.host(nil)
	c, attacker := b.client("127.0.1.1", 0), b.client("127.0.1.9", 0)
	c.send(h.mint().check())
	r := h.want(c.addr())
	h.reply(r, trunk.Validated, "hello", 5)
	c.want("hello")
	const n = 100 // fits into the receive buffer
	for range n {
		attacker.send(rtp(5, 60))
		attacker.send([]byte{22, 254, 253, 0, 0, 0})
	}
	b.drops("no flow", 2*n)
	h.nothing()
	attacker.silence()

	forger := b.hostWith(keyring(t, "b"), nil) // allowed network, other keys
	forger.reply(r, trunk.Validated, "forged")
	b.drops("unknown trunk key", 1)
	wrong := keyring(t, "b")
	var k ufrag.Key
	k.ID, k.Secret[1] = 'a', 1
	if err := wrong.Replace('a', k); err != nil {
		t.Fatal(err)
	}
	b.hostWith(wrong, nil).reply(r, trunk.Validated, "forged")
	b.drops("wrong trunk tag", 1)
	outside := b.client("127.0.1.9", 0)
	if _, err := outside.conn.WriteToUDPAddrPort([]byte("anything"), b.srv.TrunkAddrs()[0]); err != nil {
		t.Fatal(err)
	}
	b.drops("peer not allowed", 1)
	c.silence()
	if f := b.srv.Flows(0); len(f) != 1 || f[0].Upstream != h.addr() {
		t.Fatalf("flows %+v", f)
	}
	b.alive()
}

// C46: the allow-list and how addresses are written.
func TestUpstreamOutsideTheAllowListIsRefused(t *testing.T) {
	targets := map[uint64]netip.AddrPort{
		1: netip.MustParseAddrPort("[::ffff:169.254.169.254]:80"),
		2: netip.MustParseAddrPort("[::127.0.0.1]:80"),
		3: netip.MustParseAddrPort("[64:ff9b::7f00:1]:80"),
		4: netip.MustParseAddrPort("[fe80::1%lo]:80"),
		5: netip.MustParseAddrPort("127.0.2.1:80"),
	}
	h := (&bench{t: t, ring: keyring(t, "a")}).host(nil)
	targets[9] = netip.AddrPortFrom(netip.AddrFrom16(h.addr().Addr().As16()), h.addr().Port())
	b := newBench(t, func(c *Config) { c.Resolver = mapResolver(targets) })
	c := b.client("127.0.1.1", 0)
	for id := range uint64(6) {
		route, err := ufrag.DirectoryRoute(0, id+1, 1)
		if err != nil {
			t.Fatal(err)
		}
		c.send(mint(t, b.srv.cfg.Codec, route).check())
	}
	b.drops("upstream not allowed", 5)
	b.drops("unknown upstream host", 1)

	route, _ := ufrag.DirectoryRoute(0, 9, 1)
	c.send(mint(t, b.srv.cfg.Codec, route).check())
	h.want(c.addr())
	b.alive()
}

type mapResolver map[uint64]netip.AddrPort

func (m mapResolver) Resolve(r ufrag.Route) (netip.AddrPort, bool) {
	if a, ok := m[r.Host]; ok {
		return a, true
	}
	return ufrag.EmbeddedIPv4{}.Resolve(r)
}

func TestOtherClustersUfragIsDropped(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Cluster = 3 })
	c := b.client("127.0.1.1", 0)
	route, _ := ufrag.IPv4Route(4, netip.MustParseAddrPort("127.0.0.1:9"), 1)
	c.send(mint(t, b.srv.cfg.Codec, route).check())
	b.drops("ufrag of another cluster", 1)
	b.alive()
}

// C29: a NAT gives the client a new port.
func TestReboundClientReachesItsOwnerUnverified(t *testing.T) {
	b := newBench(t, nil)
	h, other := b.host(nil), b.host(nil)
	old, fresh, neighbour := b.client("127.0.1.1", 0), b.client("127.0.1.1", 0), b.client("127.0.1.1", 0)
	neighbour.send(other.mint().check())
	other.reply(other.want(neighbour.addr()), trunk.Validated, "n", 6)
	neighbour.want("n")
	id := h.mint()
	old.send(id.check())
	h.reply(h.want(old.addr()), trunk.Validated, "o", 5)
	old.want("o")

	fresh.send(rtp(5, 80))
	r := h.want(fresh.addr())
	if r.Flags != trunk.Unverified|trunk.HasRoute || r.Route != id.route {
		t.Fatalf("flags %v, route %v; want that of the flow with this SSRC, %v", r.Flags, r.Route, id.route)
	}
	// The Host checks the new path itself; the answer has neither USERNAME nor
	// SSRC and yet goes to the right one of two owners.
	h.reply(r, 0, "check")
	fresh.want("check")
	answer, _ := hex.DecodeString("010100002112a4420102030405060708090a0b0c")
	fresh.send(answer)
	if r := h.want(fresh.addr()); r.Flags != trunk.Unverified|trunk.HasRoute {
		t.Fatalf("flags %v", r.Flags)
	}
	other.nothing()
	h.reply(r, trunk.Validated, "media", 5)
	fresh.want("media")
	fresh.send(rtp(5, 80))
	if r := h.want(fresh.addr()); r.Flags != 0 {
		t.Fatalf("flags %v: the flow was not learned", r.Flags)
	}
	b.eventually(func() error {
		if st := b.srv.Stats(); st.Unverified != 2 || st.Learned != 1 || st.Flows != 3 {
			return fmt.Errorf("stats %+v", st.Counters)
		}
		return nil
	})
	b.alive()
}

// A relay that has just started delivers answers, and learns flows only from
// validated ones.
func TestRestartedRelayLearnsFromValidatedFrames(t *testing.T) {
	b := newBench(t, nil)
	h := b.host(nil)
	c := b.client("127.0.1.1", 0)
	relay := b.srv.TrunkAddrs()[0]
	f := trunk.Frame{Flags: trunk.ToClient, Ingress: 7, Client: c.addr(), Payload: []byte("x")}
	h.send(relay, f)
	c.want("x")
	c.send(rtp(1, 50))
	b.drops("no flow", 1)
	f.Flags |= trunk.Validated
	h.send(relay, f)
	c.want("x")
	c.send(rtp(1, 50))
	h.want(c.addr())

	for _, tc := range []struct {
		change func(*trunk.Frame)
		reason string
	}{
		{func(f *trunk.Frame) { f.Ingress = 8 }, "frame for another ingress"},
		{func(f *trunk.Frame) { f.Ingress = 65535 }, "frame for another ingress"},
		{func(f *trunk.Frame) { f.Flags &^= trunk.ToClient }, "unexpected trunk datagram"},
		{func(f *trunk.Frame) { f.Client = netip.MustParseAddrPort("[2001:db8::1]:9") }, "frame for an unusable client address"},
		{func(f *trunk.Frame) { f.Client = netip.MustParseAddrPort("224.0.0.1:9") }, "frame for an unusable client address"},
	} {
		bad := f
		tc.change(&bad)
		before := b.srv.Stats().Drops[tc.reason]
		h.send(relay, bad)
		b.drops(tc.reason, before+1)
	}
	c.silence()
	b.alive()
}

// A Host announces its flows to a relay that has no packet of them.
func TestAnnouncedFlowsAreLearned(t *testing.T) {
	ring := keyring(t, "a")
	probe := &bench{t: t, ring: ring}
	h := probe.host(nil)
	b := newBench(t, func(c *Config) { c.Peers = []netip.AddrPort{h.addr()} })
	probe.srv = b.srv
	c := b.client("127.0.1.1", 0)
	relay := b.srv.TrunkAddrs()[0]
	b.eventually(func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		epoch, ok := h.link.Peer()
		if !ok {
			return fmt.Errorf("no handshake")
		}
		hdr := h.link.Header(trunk.TypeAnnounce)
		d, _, ok := (&trunk.Announce{To: epoch, Token: 5, Flows: []trunk.Frame{
			{Flags: trunk.Validated, Ingress: 7, Client: c.addr(), Route: h.mintLocked().route},
			{Flags: trunk.Validated, Ingress: 9, Client: c.addr(), Route: h.mintLocked().route},
		}}).Append(nil, &hdr, ring, 0)
		if !ok {
			t.Fatal("announce")
		}
		h.write(d, relay)
		return nil
	})
	b.eventually(func() error {
		if n := b.srv.Stats().Learned; n != 1 {
			return fmt.Errorf("%d learned", n)
		}
		return nil
	})
	c.send(rtp(1, 60))
	h.want(c.addr())
	b.alive()
}

func (h *host) mintLocked() identity {
	h.session++
	return h.b.mintFor(h.addr(), h.session)
}

func TestPacketsThatArriveTogetherShareADatagram(t *testing.T) {
	b := newBench(t, func(c *Config) { c.MaxBatchDelay = maxBatchDelay })
	h := b.host(nil)
	const n = 8
	var clients []*client
	for i := range n {
		c := b.client(fmt.Sprintf("127.0.1.%d", i+1), 0)
		c.send(h.mint().check())
		clients = append(clients, c)
	}
	for _, c := range clients {
		h.want(c.addr())
	}
	h.mu.Lock()
	frames, datagrams := 0, len(h.sizes)
	for _, s := range h.sizes {
		frames += s
	}
	h.mu.Unlock()
	if frames != n || datagrams >= n {
		t.Fatalf("%d frames in %d datagrams", frames, datagrams)
	}
	b.alive()
}

// C58: one client, two ways to write its address.
func TestDualStackListenerSeesIPv4ClientsAsSuch(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Ingresses[0].Listen = netip.MustParseAddrPort("[::]:0") })
	h := b.host(nil)
	for _, ip := range []string{"127.0.1.1", "::1"} {
		c := b.client(ip, 0)
		to := "127.0.0.2" // not the address a route to the client would choose
		if ip == "::1" {
			to = ip
		}
		c.to = netip.AddrPortFrom(netip.MustParseAddr(to), c.to.Port())
		c.send(h.mint().check())
		r := h.want(c.addr())
		h.reply(r, 0, "back")
		c.want("back") // from the address it sent to
	}
	b.alive()
}

// Control moves flows, so it may not be replayed: an announcement acts only
// between peers that have proven their epochs, and once.
func TestStaleAnnouncementsTeachNothing(t *testing.T) {
	b := newBench(t, func(c *Config) { c.IdleTimeout = 100 * time.Millisecond })
	h := b.host(nil)
	c := b.client("127.0.1.1", 0)
	relay := b.srv.TrunkAddrs()[0]
	announce := func(to uint64) []byte {
		hdr := h.link.Header(trunk.TypeAnnounce)
		d, _, ok := (&trunk.Announce{To: to, Flows: []trunk.Frame{
			{Flags: trunk.Validated, Ingress: 7, Client: c.addr(), Route: h.mintLocked().route},
		}}).Append(nil, &hdr, b.ring, 0)
		if !ok {
			t.Fatal("announce")
		}
		h.write(d, relay)
		return d
	}
	settled := func(control uint64, learned uint64) {
		t.Helper()
		b.eventually(func() error {
			if st := b.srv.Stats(); st.TrunkControl < control || st.Flows != 0 || st.Learned != learned {
				return fmt.Errorf("%d control datagrams, %d learned, %d flows", st.TrunkControl, st.Learned, st.Flows)
			}
			return nil
		})
	}
	h.mu.Lock()
	announce(1) // before any handshake
	h.mu.Unlock()
	settled(1, 0)

	var valid []byte
	b.eventually(func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		epoch, ok := h.link.Peer()
		if !ok {
			return errors.New("no handshake")
		}
		valid = announce(epoch)
		return nil
	})
	b.eventually(func() error {
		if n := b.srv.Stats().Learned; n != 1 {
			return fmt.Errorf("%d learned", n)
		}
		return nil
	})
	before := b.srv.Stats().TrunkControl
	for range 10 { // by somebody who recorded it
		h.mu.Lock()
		h.write(valid, relay)
		h.mu.Unlock()
	}
	settled(before+10, 1) // and the flow, learned once, has expired
	b.alive()
}
