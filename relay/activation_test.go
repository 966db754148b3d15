package relay

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/internal/udpbatch"
)

// opened returns a socket as systemd would have opened it.
func opened(t *testing.T, name, addr string, reuse bool) Socket {
	t.Helper()
	conn, err := udpbatch.Listen(udpbatch.SocketConfig{Addr: netip.MustParseAddrPort(addr), ReusePort: reuse})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	f, err := conn.File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return Socket{File: f, Name: name}
}

func addrOf(t *testing.T, s Socket) netip.AddrPort {
	t.Helper()
	addr, err := boundTo(s.File)
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// TestSocketsFromBefore serves sockets that were opened before, one for each worker,
// with a packet that came before the relay.
func TestSocketsFromBefore(t *testing.T) {
	workers := workersForTest()
	first := opened(t, "relayd.socket", "127.0.0.1:0", workers > 1)
	at := addrOf(t, first)
	all := []Socket{first}
	for len(all) < workers {
		all = append(all, opened(t, "relayd.socket", at.String(), true))
	}
	named := opened(t, "ingress-9", "127.0.0.1:0", workers > 1)
	all = append(all, named)
	for len(all) < 2*workers {
		all = append(all, opened(t, "ingress-9", addrOf(t, named).String(), true))
	}
	trunkSocket := opened(t, "", "127.0.0.1:0", false)
	early := &client{b: &bench{t: t}, to: at}
	var err error
	if early.conn, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 1, 5)}); err != nil {
		t.Fatal(err)
	}
	defer early.conn.Close()

	b := newBench(t, func(c *Config) {
		c.Workers, c.Sockets = workers, append(all, trunkSocket)
		c.Ingresses[0].Listen = at
		c.Ingresses = append(c.Ingresses, Ingress{ID: 9, Listen: netip.MustParseAddrPort("127.0.0.1:0")})
		c.Trunk = addrOf(t, trunkSocket)
	})
	if got := b.ingress(1); got != addrOf(t, named) {
		t.Errorf("ingress 9 is at %v, want %v", got, addrOf(t, named))
	}
	if got := b.srv.TrunkAddrs()[0]; got != addrOf(t, trunkSocket) {
		t.Errorf("the trunk is at %v, want %v", got, addrOf(t, trunkSocket))
	}
	h := b.host(nil)
	early.send(h.mint().check())
	h.reply(h.want(early.addr()), trunk.Validated, "hello")
	early.b = b
	early.want("hello")
}

func TestSocketsThatDoNotFit(t *testing.T) {
	udp := opened(t, "one", "127.0.0.1:0", workersForTest() > 1)
	other := opened(t, "other", "127.0.0.1:0", false)
	tcp, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	stream, err := tcp.File()
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	for _, tt := range []struct {
		name    string
		sockets []Socket
		workers int
		want    string
	}{
		{"another address", []Socket{udp, other}, 1, `Sockets[1]: "other" is bound to ` + addrOf(t, other).String()},
		{"too few", []Socket{udp}, 2, "Sockets: Ingresses[0]"},
		{"too many", []Socket{udp, udp}, 1, "Sockets: Ingresses[0]"},
		{"a stream", []Socket{{File: stream, Name: "tcp"}}, 1, `Sockets[0]: "tcp"`},
		{"nothing", []Socket{{Name: "none"}}, 1, "no descriptor"},
		{"no such ingress", []Socket{{File: udp.File, Name: "ingress-8"}}, 1, "there is no ingress 8"},
		{"no ingress id", []Socket{{File: udp.File, Name: "ingress-x"}}, 1, "no ingress id"},
		{"the wrong name", []Socket{{File: other.File, Name: "ingress-7"}}, 1, "not to " + addrOf(t, udp).String()},
	} {
		if tt.workers > workersForTest() {
			continue
		}
		cfg := config4(keyring(t, "a"))
		cfg.Ingresses[0].Listen = addrOf(t, udp)
		cfg.Workers, cfg.Sockets = tt.workers, tt.sockets
		srv, err := New(cfg)
		var ce *ConfigError
		if !errors.As(err, &ce) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
		if srv != nil {
			_ = srv.Close()
		}
	}
}

// TestSurplusSocketIsNotAShare checks that a successor refuses a socket of its own
// at an ingress: the kernel would give it clients that nobody serves.
func TestSurplusSocketIsNotAShare(t *testing.T) {
	if workersForTest() < 2 {
		t.Skip("a relay has one worker on this system: sockets share an address on Linux only")
	}
	b := handoverBench(t, func(c *Config) { c.Workers = 2 })
	at := b.ingress(0).String()
	cfg := b.successor()
	cfg.Sockets = []Socket{opened(t, "", at, true), opened(t, "", at, true)}
	var ce *ConfigError
	if _, err := New(cfg); !errors.As(err, &ce) || ce.Field != "Sockets[0]" {
		t.Errorf("%v, want an error about Sockets[0]", err)
	}
	for _, surplus := range cfg.Sockets {
		_ = surplus.File.Close() // they have their share already
	}
	b.alive()
	cfg.Sockets = nil
	for _, w := range b.srv.workers {
		f, err := w.conns[0].File()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		cfg.Sockets = append(cfg.Sockets, Socket{File: f})
	}
	b.eventually(func() error {
		if b.srv.handover.busy.Load() {
			return errors.New("busy")
		}
		return nil
	})
	b.upgrade(cfg)
	b.alive()
}

func TestSystemdSockets(t *testing.T) {
	own := strconv.Itoa(os.Getpid())
	for _, tt := range []struct {
		name, pid, fds, names string
		want                  string // of the error
		n                     int
	}{
		{name: "none"},
		{name: "for another process", pid: "1", fds: "2"},
		{name: "no number", pid: own, fds: "many", want: "LISTEN_FDS"},
		{name: "negative", pid: own, fds: "-1", want: "LISTEN_FDS"},
		{name: "names", pid: own, fds: "2", names: "a", want: "LISTEN_FDNAMES"},
		{name: "no sockets", pid: own, fds: "0"},
	} {
		t.Setenv("LISTEN_PID", tt.pid)
		t.Setenv("LISTEN_FDS", tt.fds)
		t.Setenv("LISTEN_FDNAMES", tt.names)
		got, err := SystemdSockets()
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) || len(got) != tt.n {
			t.Errorf("%s: %v, %v; want %d and %q", tt.name, got, err, tt.n, tt.want)
		}
		if _, set := os.LookupEnv("LISTEN_PID"); set && tt.pid == own {
			t.Errorf("%s: the variables are still there", tt.name)
		}
	}
}
