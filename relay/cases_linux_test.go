package relay

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/ufrag"
)

// hello13 begins like a DTLS ClientHello.
var hello13 = append([]byte{22, 254, 253, 0, 0, 0, 0, 0, 0, 0, 0, 0, 90, 1}, make([]byte, 90)...)

// C17, C42, C88: port scanners, health probes and those who look for a reflector get no
// byte, leave no flow, and disturb nobody.
func TestStrangersGetNoByte(t *testing.T) {
	b := newBench(t, nil)
	h := b.host(nil)
	noise := make([]byte, 1400)
	rnd := rand.NewChaCha8([32]byte{1})
	_, _ = rnd.Read(noise)
	id, foreign := h.mint(), mint(t, ufrag.NewCodec(keyring(t, "b")), h.mint().route)
	probes := [][]byte{
		nil, {0}, []byte("PING"), noise, hello13, rtp(1, 60),
		stunWithoutUsername(0x0001),                        // a bare Binding request
		stunWithoutUsername(0x0003),                        // Allocate
		foreign.check(),                                    // a ufrag of another fleet
		id.checkFrom("cfrg", "not the password at all!"),   // a stolen ufrag
		[]byte("\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00"), // DNS status
		[]byte("OPTIONS sip:nm SIP/2.0\r\nVia: SIP/2.0/UDP nm\r\n\r\n"),
		{0x1b, 1, 2, 3},                               // NTP
		{0xc0, 0, 0, 0, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8}, // QUIC
	}
	const times = 70 // 14 kinds: about 1,000 datagrams
	c := b.client("127.0.1.2", 0)
	for range times {
		for _, p := range probes {
			c.send(p)
		}
		b.eventually(func() error { // or the receive buffer is full
			if st := b.srv.Stats(); st.FromClients%uint64(len(probes)) != 0 || b.totalDrops() != st.FromClients {
				return fmt.Errorf("%d of %d datagrams are counted as dropped", b.totalDrops(), st.FromClients)
			}
			return nil
		})
	}
	c.silence()
	h.nothing()
	if st := b.srv.Stats(); st.ToClients != 0 || st.Flows != 0 || st.FromClients != times*uint64(len(probes)) {
		t.Errorf("%d datagrams came, %d went to clients, %d flows", st.FromClients, st.ToClients, st.Flows)
	}
	b.alive()
}

// C15: a DTLS hello ahead of the first check is dropped without an answer, and arrives
// when it is sent again after it.
func TestHelloBeforeTheFirstCheck(t *testing.T) {
	b := newBench(t, nil)
	h := b.host(nil)
	c := b.client("127.0.1.1", 0)
	c.send(hello13)
	b.drops("no flow", 1)
	c.silence()
	c.send(h.mint().check())
	h.want(c.addr())
	c.send(hello13)
	if r := h.want(c.addr()); string(r.Payload) != string(hello13) {
		t.Errorf("the Host got %x", r.Payload)
	}
	b.alive()
}

// C44: flows have no sockets of their own.
func TestFlowsCostNoDescriptors(t *testing.T) {
	count := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	b := newBench(t, nil)
	h := b.host(nil)
	id := h.mint()
	const clients = 50
	var all []*client
	for i := range clients {
		all = append(all, b.client(fmt.Sprintf("127.0.1.%d", 1+i), 0))
	}
	before := count()
	for _, c := range all {
		c.send(id.check())
		h.want(c.addr())
	}
	if n := b.srv.flows(); n != clients {
		t.Fatalf("%d flows", n)
	}
	if n := count(); n > before+clients/2 { // others of this process come and go
		t.Errorf("%d descriptors, %d before %d flows", n, before, clients)
	}
	b.alive()
}

// C68: all eight bits of DSCP and ECN survive, in both directions.
func TestMarksSurvive(t *testing.T) {
	for _, family := range []struct{ name, listen, from string }{
		{"IPv4", "127.0.0.1:0", "127.0.1.1"}, {"IPv6", "[::1]:0", "::1"}, {"IPv4 on a listener for both", "[::]:0", "127.0.1.1"},
	} {
		t.Run(family.name, func(t *testing.T) {
			b := newBench(t, func(c *Config) { c.Ingresses[0].Listen = netip.MustParseAddrPort(family.listen) })
			h := b.host(nil)
			c := b.client(family.from, 0)
			raw, err := c.conn.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			level, set, get := unix.IPPROTO_IP, unix.IP_TOS, unix.IP_RECVTOS
			if c.addr().Addr().Is6() {
				level, set, get = unix.IPPROTO_IPV6, unix.IPV6_TCLASS, unix.IPV6_RECVTCLASS
			}
			option := func(name, value int) {
				t.Helper()
				var failed error
				if err := raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), level, name, value) }); err != nil || failed != nil {
					t.Fatal(err, failed)
				}
			}
			option(get, 1)
			id := h.mint()
			buf, oob := make([]byte, 100), make([]byte, 100)
			for _, mark := range []uint8{0xb8 | 1, 0xb8 | 3, 0xb8, 2, 0} {
				option(set, int(mark))
				c.send(id.check())
				r := h.want(c.addr())
				if r.TOS != mark {
					t.Errorf("%#x became %#x on the way to the Host", mark, r.TOS)
				}
				h.send(r.from, trunk.Frame{Flags: trunk.ToClient, TOS: mark, Ingress: r.Ingress, Client: r.Client, Payload: []byte("x")})
				_ = c.conn.SetReadDeadline(time.Now().Add(10 * time.Second))
				_, n, _, _, err := c.conn.ReadMsgUDPAddrPort(buf, oob)
				if err != nil {
					t.Fatal(err)
				}
				messages, err := unix.ParseSocketControlMessage(oob[:n])
				if err != nil || len(messages) != 1 || messages[0].Data[0] != mark {
					t.Errorf("%#x became %v on the way to the client (%v)", mark, messages, err)
				}
			}
		})
	}
}

// C73: a new limit holds for flows that were there before, by way of an upgrade.
func TestNewIdleTimeoutHoldsForOldFlows(t *testing.T) {
	b := handoverBench(t, func(c *Config) { c.IdleTimeout, c.UnconfirmedTimeout = time.Hour, time.Hour })
	fill(t, b.srv, 500)
	cfg := b.successor()
	cfg.IdleTimeout, cfg.UnconfirmedTimeout = 300*time.Millisecond, 300*time.Millisecond
	b.upgrade(cfg)
	b.eventually(func() error {
		if n := b.srv.flows(); n > 0 {
			return fmt.Errorf("%d flows are left", n)
		}
		return nil
	})
	b.alive()
}

// C90: keys that change a thousand times under traffic, to none and back, cost packets
// of those moments and nothing else.
func TestKeysChangeUnderTraffic(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Workers = workersForTest() })
	h := b.hostWith(keyring(t, "ab"), nil) // it rotates later than the relay
	id := h.mint()
	keys := func(ids string) (all []ufrag.Key) {
		for i := range len(ids) {
			k := ufrag.Key{ID: ids[i]}
			k.Secret[0], k.Secret[31] = 7, ids[i]
			all = append(all, k)
		}
		return all
	}
	var traffic sync.WaitGroup
	stop := make(chan struct{})
	for i := range 4 {
		c := b.client(fmt.Sprintf("127.0.1.%d", 1+i), 0)
		check := id.check()
		traffic.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond): // the pace
					_, _ = c.conn.WriteToUDPAddrPort(check, c.to)
					_, _ = c.conn.WriteToUDPAddrPort(rtp(1, 60), c.to)
				}
			}
		})
	}
	traffic.Go(func() {
		for {
			select {
			case <-stop:
				return
			case r := <-h.got:
				h.reply(r, trunk.Validated, "x")
			}
		}
	})
	for i := range 1000 {
		mint, ids := byte('a'), "ab"
		switch i % 4 {
		case 1:
			mint = 'b'
		case 2:
			mint, ids = 'b', "b" // id's key is gone
		}
		if err := b.ring.Replace(mint, keys(ids)...); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.ring.Replace('a', keys("ab")...); err != nil {
		t.Fatal(err)
	}
	close(stop)
	traffic.Wait()
	b.alive()
}
