package transceiver

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/icelite"
	"github.com/usher-rtc/usher/internal/stun"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/internal/udpbatch"
)

// C28: more sessions on one client address than it has places. Whoever still
// checks gets its place back and is proven; which of them had to go does not matter.
func TestMoreSessionsOnAPathThanItHasPlaces(t *testing.T) {
	host, relay := setup(t, nil)
	conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(relay.addr()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var calls []*rawClient
	for range maxClaimants + 2 {
		s, _, err := host.Accept(context.Background(), browserOffer(), AcceptOptions{})
		if err != nil {
			t.Fatal(err)
		}
		calls = append(calls, &rawClient{t: t, conn: conn, s: s})
	}
	unproven := func() bool {
		return slices.ContainsFunc(calls, func(c *rawClient) bool { return !c.s.Stats().Validated })
	}
	// All at once, so that the last of them push others out before these are proven.
	serial := byte(1)
	for _, c := range calls {
		c.send(c.check(stun.TransactionID{serial}))
	}
	for _, c := range calls {
		eventually(t, "the first checks", func() bool { return c.s.ClientAddr().IsValid() })
	}
	auth, buf := new(stun.Authenticator), make([]byte, 2048)
	for unproven() {
		if serial++; serial == 100 {
			for i, c := range calls {
				t.Errorf("session %d: validated: %v", i, c.s.Stats().Validated)
			}
			return
		}
		for _, c := range calls {
			c.send(c.check(stun.TransactionID{serial}))
			// Its own path's check is answered before the next one comes.
			_ = conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			for {
				n, err := conn.Read(buf)
				if err != nil {
					break
				}
				var m stun.Message
				if stun.Parse(buf[:n], &m) != stun.OK || m.Type != stun.BindingRequest {
					continue
				}
				var b stun.Builder
				b.Reset(nil, stun.BindingSuccess, m.TransactionID)
				b.AddXORMappedAddress(relay.addr())
				b.AddIntegrity(auth, []byte(c.s.ice.remotePassword))
				b.AddFingerprint()
				c.send(b.Bytes())
			}
		}
	}
}

// Whoever knows a ufrag, and nothing more, sends junk by way of every edge that
// there is: the way back to the client is not forgotten.
func TestJunkByManyEdgesLeavesTheWayBack(t *testing.T) {
	host, _ := setup(t, nil)
	client, edge := netip.MustParseAddrPort("203.0.113.66:6666"), netip.MustParseAddrPort("198.51.100.1:4000")
	cluster := netip.MustParseAddrPort("127.0.0.77:7777")
	s, _, err := host.Accept(context.Background(), browserOffer(), AcceptOptions{})
	if err != nil {
		t.Fatal(err)
	}
	sh := &shard{host: host, conn: host.shards[0].conn, group: host.shards[0].group}
	from := func(client, edge netip.AddrPort, payload []byte) {
		f := &trunk.Frame{Ingress: 1, Client: client, Return: edge, Payload: payload}
		sh.HandleBatch(0, []udpbatch.Packet{{Data: frameFor(t, host.cfg.TrunkKeys, f), From: cluster}})
	}
	user := s.Ufrag() + ":" + s.ice.remoteUfrag
	from(client, edge, check(user, s.ice.password))
	if s.ClientAddr() != client {
		t.Fatal("the check does not count")
	}
	for n := range 2 * maxClaims {
		stranger := netip.AddrPortFrom(netip.MustParseAddr("203.0.113.99"), uint16(1000+n))
		from(stranger, netip.AddrPortFrom(netip.MustParseAddr("198.51.100.2"), uint16(4000+n)), check(user, "not the password of the call"))
	}
	fl, ok := s.front.flow()
	if !ok || fl.to != cluster || fl.Return != edge {
		t.Errorf("packets to the client would go to %v, by %v (%v); want %v, by %v", fl.to, fl.Return, ok, cluster, edge)
	}
	s.front.mu.Lock()
	defer s.front.mu.Unlock()
	if n := len(s.front.hops); n > maxClaims {
		t.Errorf("%d edges are remembered", n)
	}
}

// A session that sends with another's SSRC, from the same IP address: nothing of the
// other moves, and when a relay then takes the wrong one for the owner of a
// rebound client's packets, the client's own check sets it right.
func TestSSRCOfAnotherSession(t *testing.T) {
	host, relay := setup(t, withEcho)
	var sessions []*Session
	var heard []<-chan uint16
	for range 2 {
		c := newClient(t, nil)
		heard = append(heard, c.microphone())
		sessions = append(sessions, c.call(host, AcceptOptions{}))
	}
	for i, s := range sessions {
		receive(t, "audio", heard[i])
		eventually(t, "a proven path", func() bool { return s.Stats().Validated })
	}
	victim, thief := sessions[0], sessions[1]
	victim.front.mu.Lock()
	ssrc := victim.front.ssrcs[0]
	victim.front.mu.Unlock()
	rtp := append([]byte{0x80, 111, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0}, make([]byte, 80)...)
	binary.BigEndian.PutUint32(rtp[8:], ssrc)
	relay.toHost(&trunk.Frame{Ingress: 1, Client: thief.ClientAddr(), Payload: rtp})
	eventually(t, "the thief to have the SSRC", func() bool {
		thief.front.mu.Lock()
		defer thief.front.mu.Unlock()
		return slices.Contains(thief.front.ssrcs[:thief.front.nssrc], ssrc)
	})
	before, address := victim.Stats(), victim.ClientAddr()
	for range 20 {
		relay.toHost(&trunk.Frame{Ingress: 1, Client: thief.ClientAddr(), Payload: rtp})
	}
	receive(t, "the victim's audio", heard[0])
	if st := victim.Stats(); victim.ClientAddr() != address || st.PathChanges != before.PathChanges {
		t.Errorf("the victim moved: %+v, before %+v", st, before)
	}
	// The victim's NAT gives it another port, and the relay takes the thief for the owner.
	to := netip.AddrPortFrom(address.Addr(), address.Port()^0x0101)
	own := host.paths.find(icelite.Path{Client: thief.ClientAddr(), Ingress: 1})[0]
	wrong := func(b []byte) bool {
		if stun.Classify(b) == stun.ClassRTP && victim.ClientAddr() != to {
			relay.toHost(&trunk.Frame{Flags: trunk.Unverified, Ingress: 1, Client: to, Route: thief.Route(), Payload: append([]byte(nil), b...)})
			return true
		}
		return false
	}
	relay.dropIn.Store(&wrong)
	relay.rebind(address, to)
	eventually(t, "the victim to move", func() bool { return victim.ClientAddr() == to })
	for len(heard[0]) > 0 {
		<-heard[0]
	}
	receive(t, "the victim's audio from its new address", heard[0])
	if own != thief || thief.ClientAddr() == to || host.paths.find(icelite.Path{Client: to, Ingress: 1})[0] != victim {
		t.Errorf("the thief is at %v, the new address belongs to the victim: %v", thief.ClientAddr(), own == thief)
	}
}

// impatient serves signalling that waits 100 ms for a body.
func impatient(t *testing.T, host *Host) *httptest.Server {
	t.Helper()
	h, err := NewHandler(host, SignallingConfig{})
	if err != nil {
		t.Fatal(err)
	}
	h.(*signalling).bodyLimit = 100 * time.Millisecond
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server
}

// A request whose body does not come is answered and let go of.
func TestBodyThatDoesNotCome(t *testing.T) {
	host, _ := setup(t, nil)
	server := impatient(t, host)
	s, _, err := host.Accept(context.Background(), browserOffer(), AcceptOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, request := range []string{"POST /", "PATCH " + s.Location("/")} {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(patience))
		if _, err := fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: x\r\nIf-Match: *\r\nContent-Type: application/sdp\r\nContent-Length: 1000\r\n\r\nv=0\r\n", request); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil || !strings.Contains(line, " 408 ") {
			t.Errorf("%s: %q %v", request, line, err)
		}
	}
}

// The limit of the body is none of what the application does after it.
func TestBodyLimitEndsWithTheBody(t *testing.T) {
	host, _ := setup(t, func(c *Config) {
		c.OnSession = func(s *Session) error {
			time.Sleep(200 * time.Millisecond) // longer than the limit
			return nil
		}
	})
	server := impatient(t, host)
	if r := do(t, http.MethodPost, server.URL, typeSDP, browserOffer()); r.StatusCode != http.StatusCreated {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
}

// Answers that nobody asked for are not even read: a client may send as many as it likes.
func TestAnswerThatNobodyAskedFor(t *testing.T) {
	host, _ := setup(t, nil)
	s, _, err := host.Accept(context.Background(), browserOffer(), AcceptOptions{})
	if err != nil {
		t.Fatal(err)
	}
	answer := browserOffer() + strings.Repeat("a=x:y\r\n", 400)
	n := testing.AllocsPerRun(100, func() {
		if err := s.SetAnswer(context.Background(), answer); !errors.Is(err, ErrNoOffer) {
			t.Fatal(err)
		}
	})
	if n > 100 { // Pion's, to look up where negotiation is
		t.Errorf("%v allocations", n)
	}
}

// What is no UTF-8 is no JSON for those who get it next.
func TestMetadataThatIsNoText(t *testing.T) {
	host, _ := setup(t, nil)
	bad := "\"\xff\""
	var field *ConfigError
	if _, _, err := host.Accept(context.Background(), browserOffer(), AcceptOptions{Metadata: []byte(bad)}); !errors.As(err, &field) || field.Field != "Metadata" {
		t.Errorf("Accept: %v", err)
	}
	server := serve(t, host, SignallingConfig{})
	kind, body := form(t, browserOffer(), bad, false)
	if r := do(t, http.MethodPost, server.URL+"/whip", kind, body); r.StatusCode != http.StatusBadRequest {
		t.Errorf("POST: %d %s", r.StatusCode, r.body)
	}
}

// A clock that is set in the middle of a call changes no time span: sources use the
// monotonic part of time.Now only, which these conversions lose.
func TestClockStepsChangeNothing(t *testing.T) {
	for _, pattern := range []string{"*.go", "bridge/*.go", "../internal/icelite/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") || name == "audio_reports.go" { // NTP is wall time
				continue
			}
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, lossy := range []string{".UnixNano()", ".UnixMilli()", ".Unix()", "time.Unix(", ".Round(0)", ".UTC()"} {
				if strings.Contains(string(b), lossy) {
					t.Errorf("%s: %s", name, lossy)
				}
			}
		}
	}
}
