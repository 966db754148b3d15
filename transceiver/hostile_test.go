package transceiver

import (
	"context"
	"encoding/binary"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/stun"
)

// rawClient has passed ICE and speaks DTLS as it likes.
type rawClient struct {
	t    testing.TB
	conn *net.UDPConn
	s    *Session
}

// newRawClient makes a call and answers no DTLS. The Host is DTLS client.
func newRawClient(t testing.TB, host *Host, relay *stubRelay) *rawClient {
	t.Helper()
	s, _, err := host.Accept(context.Background(), browserOffer(), AcceptOptions{})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(relay.addr()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	c := &rawClient{t: t, conn: conn, s: s}
	c.send(c.check(stun.TransactionID{1}))
	eventually(t, "the check to count", func() bool { return s.ClientAddr().IsValid() })
	eventually(t, "Pion to start", s.conn.started.Load)
	return c
}

// check makes a check of the client's.
func (c *rawClient) check(id stun.TransactionID) []byte {
	var b stun.Builder
	b.Reset(nil, stun.BindingRequest, id)
	b.AddUsername(c.s.ice.ufrag, c.s.ice.remoteUfrag)
	b.AddControlling(1)
	b.AddPriority(1)
	b.AddIntegrity(new(stun.Authenticator), []byte(c.s.ice.password))
	b.AddFingerprint()
	return b.Bytes()
}

func (c *rawClient) send(b []byte) {
	c.t.Helper()
	if _, err := c.conn.Write(b); err != nil {
		c.t.Fatal(err)
	}
}

// record makes a DTLS 1.2 record (RFC 6347 section 4.1).
func record(kind byte, seq uint64, body []byte) []byte {
	b := make([]byte, 13, 13+len(body))
	b[0], b[1], b[2] = kind, 254, 253
	binary.BigEndian.PutUint64(b[3:], seq) // epoch 0 above it
	binary.BigEndian.PutUint16(b[11:], uint16(len(body)))
	return append(b, body...)
}

// fragment makes a piece of a handshake message (RFC 6347 section 4.2.2).
func fragment(kind byte, message uint16, length, offset uint32, piece []byte) []byte {
	b := make([]byte, 12, 12+len(piece))
	put := func(at int, v uint32) { b[at], b[at+1], b[at+2] = byte(v>>16), byte(v>>8), byte(v) }
	b[0] = kind
	put(1, length)
	binary.BigEndian.PutUint16(b[4:], message)
	put(6, offset)
	put(9, uint32(len(piece)))
	return append(b, piece...)
}

// Handshake fragments without content, and pieces of a message that would be
// 16 MiB long, cost neither memory nor time, and the session ends by its own
// limit while others live. C106.
func TestHostileHandshakeFragments(t *testing.T) {
	const serverHello = 2
	for name, piece := range map[string]func(n int) []byte{
		"empty": func(n int) []byte { return fragment(serverHello, uint16(n%4), uint32(n%2)*100, 0, nil) },
		"tiny": func(n int) []byte {
			return fragment(serverHello, 0, 1<<24-1, uint32(n), []byte{byte(n)})
		},
		"tiny, of many messages": func(n int) []byte {
			return fragment(serverHello, uint16(n), 1<<24-1, uint32(n), []byte{byte(n)})
		},
	} {
		t.Run(name, func(t *testing.T) {
			host, relay := setup(t, withEcho)
			good := newClient(t, nil)
			ch := good.channel()
			wait(t, "DTLS", good.call(host, AcceptOptions{}).Connected())
			ch.echo(t, "before")
			host.cfg.DTLSTimeout = 2 * time.Second // the good one may take longer
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			c := newRawClient(t, host, relay)
			sent := 0
			for ; sent < 100_000 && c.s.Err() == nil; sent++ {
				c.send(record(22, uint64(sent), piece(sent)))
				if sent%64 == 0 {
					// The session has room for 32 packets: what it drops would prove nothing.
					for len(c.s.conn.queue) > 0 && c.s.Err() == nil {
						runtime.Gosched()
					}
				}
				if sent == 10_000 {
					ch.echo(t, "in between")
				}
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 16<<20 {
				t.Errorf("%d bytes of heap after %d fragments", grown, sent)
			}
			wait(t, "the end", c.s.Done())
			t.Logf("%d fragments, %d delivered; ended: %v", sent, c.s.Stats().PacketsIn, c.s.Err())
			if r := c.s.CloseReason(); r != ReasonDTLSTimeout && r != ReasonDTLSFailed {
				t.Errorf("ended because of %q", r)
			}
			ch.echo(t, "after")
		})
	}
}

// A client that answers every alert with a bad record gets no stream of alerts.
// C108.
func TestHostileRecordsAreNotAnsweredForEver(t *testing.T) {
	const watched, most = 2 * time.Second, 20
	for name, bad := range map[string][]byte{
		"handshake that does not parse": record(22, 1, []byte{2, 0, 0}),
		"hello of nonsense":             record(22, 1, fragment(2, 0, 4, 0, []byte{1, 2, 3, 4})),
		"alert that does not parse":     record(21, 1, []byte{1}),
		"unknown content type":          record(63, 1, []byte{1, 2, 3}),
		"data before the handshake":     record(23, 1, []byte("hello")),
		"change cipher spec":            record(20, 1, []byte{7}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			host, relay := setup(t, func(c *Config) { c.DTLSTimeout = 2 * watched })
			c := newRawClient(t, host, relay)
			for range 10 {
				c.send(bad)
			}
			alerts := 0
			_ = c.conn.SetReadDeadline(time.Now().Add(watched))
			for buf := make([]byte, 2048); ; {
				n, err := c.conn.Read(buf)
				if err != nil {
					break
				}
				if n > 0 && buf[0] == 21 {
					alerts++
					c.send(bad)
				}
			}
			t.Logf("%d alerts", alerts)
			if alerts > most {
				t.Errorf("%d alerts in %v", alerts, watched)
			}
		})
	}
}
