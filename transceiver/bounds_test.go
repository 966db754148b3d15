package transceiver

import (
	"errors"
	"testing"

	"github.com/pion/rtcp"
	"github.com/pion/transport/v5/packetio"
	"github.com/pion/webrtc/v4"
)

func TestBoundsCountWhatIsOpen(t *testing.T) {
	exceeded := 0
	b := &bounds{exceeded: func() { exceeded++ }}
	for range 3 * maxStreams { // one after the other is no harm
		m := b.newMediaBuffer(packetio.RTPBufferPacket, 1)
		if _, err := m.Write([]byte("packet")); err != nil {
			t.Fatal(err)
		}
		_, _ = m.Close(), m.Close()
	}
	if n := b.unread.Load(); n != 0 || b.streams.Load() != 0 || exceeded != 0 {
		t.Fatalf("%d bytes, %d streams, %d times too many after all were closed", n, b.streams.Load(), exceeded)
	}
	packet := make([]byte, 1200)
	taken, refused := 0, false
	for n := range maxStreams {
		m := b.newMediaBuffer(packetio.RTPBufferPacket, uint32(n))
		for {
			if _, err := m.Write(packet); errors.Is(err, packetio.ErrFull) {
				refused = refused || n*maxMediaBytes > maxUnread
				break
			} else if err != nil {
				t.Fatal(err)
			}
			taken += len(packet)
		}
	}
	if taken > maxUnread || !refused || exceeded != 0 {
		t.Errorf("%d bytes unread, at most %d; %d times too many", taken, maxUnread, exceeded)
	}
	if b.newMediaBuffer(packetio.RTPBufferPacket, maxStreams); exceeded != 1 {
		t.Errorf("%d times too many with %d streams", exceeded, maxStreams+1)
	}
}

// A client that names ever new SSRCs in its reports ends its own session.
func TestReportsAboutManyStreamsEndTheSession(t *testing.T) {
	host, _ := setup(t, withEcho)
	c := newClient(t, nil)
	if _, err := c.pc.AddTransceiverFromKind(webrtc.RTPCodecTypeAudio); err != nil {
		t.Fatal(err)
	}
	s := c.call(host, AcceptOptions{})
	wait(t, "DTLS", s.Connected())
	eventually(t, "the client's own DTLS", func() bool { return c.pc.ConnectionState() == webrtc.PeerConnectionStateConnected })
	const each = 31
	for next := uint32(1000); s.Err() == nil; next += each {
		var r rtcp.ReceiverReport
		for i := range uint32(each) {
			r.Reports = append(r.Reports, rtcp.ReceptionReport{SSRC: next + i})
		}
		before := s.bounds.streams.Load()
		_ = c.pc.WriteRTCP([]rtcp.Packet{&r}) // fails once the session has ended
		// One after the other: what is on its way at the end counts as well.
		eventually(t, "the report to count", func() bool { return s.Err() != nil || s.bounds.streams.Load() >= before+each })
	}
	if r := s.CloseReason(); r != ReasonTooMany {
		t.Errorf("ended because of %q", r)
	}
	if n := s.bounds.streams.Load(); n > maxStreams+2*each {
		t.Errorf("%d streams", n)
	}
	wait(t, "the end", s.Done())
}

// Data channels: many one after the other are a page's business, many at once
// end the session.
func TestManyDataChannels(t *testing.T) {
	host, _ := setup(t, withEcho)
	c := newClient(t, nil)
	ch := c.channel()
	s := c.call(host, AcceptOptions{})
	ch.echo(t, "first")
	open := func() *webrtc.DataChannel {
		d, err := c.pc.CreateDataChannel("another", nil)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	for range 2 * maxChannels {
		d, opened := open(), make(chan struct{})
		d.OnOpen(func() { close(opened) })
		wait(t, "a channel", opened)
		if err := d.GracefulClose(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Err(); err != nil {
		t.Fatalf("ended by channels that were closed again: %v", err)
	}
	ch.echo(t, "in between")
	for range maxChannels + 1 {
		open()
	}
	wait(t, "the end", s.Done())
	if r := s.CloseReason(); r != ReasonTooMany {
		t.Errorf("ended because of %q", r)
	}
}
