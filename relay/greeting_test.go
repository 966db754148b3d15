package relay

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/forward"
	"github.com/usher-rtc/usher/internal/trunk"
)

// TestGreetingsAreBounded makes a relay send one packet to an address where nobody
// speaks its language, and keep house for an hour. An old ufrag whose Host's address is
// somebody else's now, or one datagram replayed under a forged address, must not make
// it send that one more than a few small datagrams.
func TestGreetingsAreBounded(t *testing.T) {
	cfg := config4(keyring(t, "a"))
	cfg.Ingresses = cfg.Ingresses[:0]
	for id := range uint16(64) {
		cfg.Ingresses = append(cfg.Ingresses, Ingress{ID: id + 1, Listen: config4(cfg.TrunkKeys).Ingresses[0].Listen})
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	deaf, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	to := deaf.LocalAddr().(*net.UDPAddr).AddrPort()
	count := func() (datagrams, bytes int) {
		buf := make([]byte, 1<<16)
		_ = deaf.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		for {
			n, _, err := deaf.ReadFromUDPAddrPort(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return datagrams, bytes
			}
			if err != nil {
				t.Fatal(err)
			}
			datagrams, bytes = datagrams+1, bytes+n
		}
	}

	w := s.workers[0]
	w.now = time.Now()
	w.frame = trunk.Frame{Ingress: 1, Client: to, Payload: make([]byte, 100)}
	w.forward(&forward.Hop{Addr: to})
	w.flush()
	w.writeControl()
	if n, _ := count(); n != 2 {
		t.Fatalf("%d datagrams for the first packet, want a hello and the packet", n)
	}
	for range 4 * 3600 {
		w.now = w.now.Add(housekeeping)
		w.housekeep()
	}
	n, bytes := count()
	if n != maxGreetings-1 || bytes != 36*n {
		t.Errorf("%d more greetings of %d bytes in all, want %d of 36", n, bytes, maxGreetings-1)
	}

	// Each further packet may bring one more: less than what it is itself.
	for range 100 {
		w.now = w.now.Add(time.Second)
		w.frame = trunk.Frame{Ingress: 1, Client: to, Payload: make([]byte, 20)}
		w.forward(&forward.Hop{Addr: to})
		w.flush()
		w.writeControl()
		w.housekeep()
	}
	if n, bytes := count(); n > 100+silentGrace || bytes > 100*40+1000 {
		t.Errorf("100 packets brought %d datagrams of %d bytes", n, bytes)
	}
}

// silentGrace packets go out before a Host counts as silent, one a second.
const silentGrace = int(silentAfter / time.Second)
