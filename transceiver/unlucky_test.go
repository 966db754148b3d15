package transceiver

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pion/webrtc/v4"

	"github.com/usher-rtc/usher/internal/stun"
	"github.com/usher-rtc/usher/internal/trunk"
)

// A client restarts ICE while its DTLS handshake is stuck half-way: both get
// through.
func TestRestartDuringTheHandshake(t *testing.T) {
	host, relay := setup(t, withEcho)
	var stuck atomic.Bool
	var held atomic.Int32
	stuck.Store(true)
	lose := func(f *trunk.Frame) bool {
		// The client's hello is answered by nothing.
		if stuck.Load() && stun.Classify(f.Payload) == stun.ClassDTLS {
			held.Add(1)
			return true
		}
		return false
	}
	relay.dropOut.Store(&lose)
	c := newClient(t, nil)
	ch := c.channel()
	s := c.call(host, AcceptOptions{})
	eventually(t, "a proven path", func() bool { return s.Stats().Validated })
	eventually(t, "DTLS to be lost", func() bool { return held.Load() > 0 })
	answer, err := s.Renegotiate(context.Background(), c.offer(&webrtc.OfferOptions{ICERestart: true}))
	if err != nil {
		t.Fatal(err)
	}
	c.answer(answer)
	eventually(t, "a check of the restart", func() bool { return currentGeneration(s) == 2 })
	stuck.Store(false)
	ch.echo(t, "after both")
}

// currentGeneration is that of the path in use, if it is proven.
func currentGeneration(s *Session) int {
	s.front.mu.Lock()
	defer s.front.mu.Unlock()
	for _, p := range s.front.agent.Paths() {
		if p.Current && p.Validated {
			return p.Generation
		}
	}
	return 0
}

// Two restarts in a row of which the first brought no check, and one whose
// answer was lost, so that the client asks again with the same offer.
func TestRestartsWithoutAnythingBetween(t *testing.T) {
	host, relay := setup(t, withEcho)
	c := newClient(t, nil)
	ch := c.channel()
	s := c.call(host, AcceptOptions{})
	ch.echo(t, "before")
	deaf := func(b []byte) bool { return stun.Classify(b) == stun.ClassSTUN }
	relay.dropIn.Store(&deaf)
	restart := func(again bool) string {
		t.Helper()
		offer := c.offer(&webrtc.OfferOptions{ICERestart: true})
		answer, err := s.Renegotiate(context.Background(), offer)
		if err != nil {
			t.Fatal(err)
		}
		if again {
			ufrag, restarts := s.Ufrag(), host.Stats().Restarts
			second, err := s.Renegotiate(context.Background(), offer)
			if err != nil {
				t.Fatal(err)
			}
			if s.Ufrag() != ufrag || host.Stats().Restarts != restarts {
				t.Error("the same offer restarted ICE twice")
			}
			if a, b := sdpLines(answer, "a=ice-"), sdpLines(second, "a=ice-"); strings.Join(a, " ") != strings.Join(b, " ") {
				t.Errorf("the same offer was answered with other credentials: %v, %v", a, b)
			}
			answer = second
		}
		c.answer(answer)
		return s.Ufrag()
	}
	first := s.Ufrag()
	second := restart(false)
	third := restart(true)
	hear := func([]byte) bool { return false }
	relay.dropIn.Store(&hear)
	ch.echo(t, "after two restarts")
	eventually(t, "the newest generation in use", func() bool { return currentGeneration(s) == 3 })
	// Credentials of old generations are gone once the new path is in use, but for
	// the one before, which a client may fall back to.
	eventually(t, "the first ufrag to be forgotten", func() bool { return host.sessions.find([]byte(first)) == nil })
	if first == second || second == third || host.sessions.find([]byte(third)) != s {
		t.Error("no fresh ufrags")
	}
}

// The client's checks come from another port from the middle of the handshake on.
func TestAddressChangesDuringTheHandshake(t *testing.T) {
	host, relay := setup(t, withEcho)
	c := newClient(t, nil)
	ch := c.channel()
	s, answer, err := host.Accept(context.Background(), c.offer(nil), AcceptOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var moved atomic.Bool
	lose := func(f *trunk.Frame) bool {
		if stun.Classify(f.Payload) != stun.ClassDTLS || moved.Load() {
			return false
		}
		if from := s.ClientAddr(); moved.CompareAndSwap(false, true) {
			relay.rebind(from, netip.AddrPortFrom(from.Addr(), from.Port()^0x0101))
		}
		return true
	}
	relay.dropOut.Store(&lose)
	c.answer(answer)
	ch.echo(t, "after the move")
	if !moved.Load() {
		t.Error("nothing moved")
	}
}

// Twenty sections, some of them rejected or of a kind that is not taken, and 20
// candidates that hide behind names. C93, C97.
func TestOfferWithManySections(t *testing.T) {
	host, _ := setup(t, withEcho)
	c := newClient(t, nil)
	ch := c.channel()
	back := c.microphone()
	for i := range 18 {
		kind := webrtc.RTPCodecTypeAudio
		if i%3 == 0 {
			kind = webrtc.RTPCodecTypeVideo
		}
		if _, err := c.pc.AddTransceiverFromKind(kind, webrtc.RTPTransceiverInit{Direction: webrtc.RTPTransceiverDirectionRecvonly}); err != nil {
			t.Fatal(err)
		}
	}
	var names strings.Builder
	for i := range 20 {
		fmt.Fprintf(&names, "a=candidate:%d 1 udp 2113937151 4f7f3a3e-0000-4000-8000-0000000000%02d.local 50000 typ host\r\n", i, i)
	}
	offer := strings.Replace(c.offer(nil), "a=mid:0\r\n", "a=mid:0\r\n"+names.String(), 1)
	if n := len(sdpLines(offer, "m=")); n != 20 {
		t.Fatalf("%d sections", n)
	}
	_, answer, err := host.Accept(context.Background(), offer, AcceptOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(sdpLines(answer, "m=")); n != 20 {
		t.Errorf("%d sections in the answer", n)
	}
	c.answer(answer)
	ch.echo(t, "among twenty")
	receive(t, "audio among twenty", back)
}

// Channels that close and open again, empty messages, and the largest.
func TestDataChannelsComeAndGo(t *testing.T) {
	host, _ := setup(t, func(c *Config) {
		c.OnSession = func(s *Session) error {
			s.OnDataChannel(func(d *webrtc.DataChannel) {
				d.OnMessage(func(m webrtc.DataChannelMessage) {
					defer s.Recover()
					_ = d.Send(m.Data)
				})
			})
			return nil
		}
	})
	c := newClient(t, nil)
	d, err := c.pc.CreateDataChannel("first", nil)
	if err != nil {
		t.Fatal(err)
	}
	s := c.call(host, AcceptOptions{})
	for i := range 4 {
		open, got := make(chan struct{}), make(chan int, 4)
		d.OnMessage(func(m webrtc.DataChannelMessage) { got <- len(m.Data) })
		d.OnOpen(func() { close(open) })
		wait(t, "the channel", open)
		for _, size := range []int{0, 1, 64 << 10, 256 << 10} {
			if err := d.Send(make([]byte, size)); err != nil {
				t.Fatal(err)
			}
			if n := receive(t, "the message back", got); n != size {
				t.Errorf("%d bytes came back of %d", n, size)
			}
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		if d, err = c.pc.CreateDataChannel(fmt.Sprintf("again %d", i), nil); err != nil {
			t.Fatal(err)
		}
	}
	if s.CloseReason() != ReasonNone {
		t.Errorf("ended: %v", s.Err())
	}
}
