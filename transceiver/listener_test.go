package transceiver

import (
	"context"
	"testing"
	"time"

	"github.com/pion/rtp"
	"github.com/pion/webrtc/v4"

	"github.com/usher-rtc/usher/ufrag"
)

// talk is a session that sends audio and wants none.
func talk(s *Session) error {
	track, err := webrtc.NewTrackLocalStaticRTP(webrtc.RTPCodecCapability{MimeType: webrtc.MimeTypeOpus}, "audio", "talk")
	if err != nil {
		return err
	}
	if _, err := s.PeerConnection().AddTrack(track); err != nil {
		return err
	}
	s.Go(func(ctx context.Context) {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for n := uint16(1); ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			_ = track.WriteRTP(&rtp.Packet{Header: rtp.Header{Version: 2, SequenceNumber: n, Timestamp: uint32(n) * 960}, Payload: make([]byte, 80)})
		}
	})
	return nil
}

// TestAListenerSurvivesADeadClusterRelay kills the cluster relay that a call's answers
// go by, without a goodbye and for good, under a client that sends nothing at all. The
// edge notices and has the Host answer by the other relay.
func TestAListenerSurvivesADeadClusterRelay(t *testing.T) {
	s := newSite(t, false)
	s.hosts[0].cfg.OnSession = talk
	c, socket := mutableClient(t)
	if _, err := c.pc.AddTransceiverFromKind(webrtc.RTPCodecTypeAudio, webrtc.RTPTransceiverInit{Direction: webrtc.RTPTransceiverDirectionRecvonly}); err != nil {
		t.Fatal(err)
	}
	heard := make(chan uint16, 1000)
	c.pc.OnTrack(func(track *webrtc.TrackRemote, _ *webrtc.RTPReceiver) {
		for {
			p, _, err := track.ReadRTP()
			if err != nil {
				return
			}
			select {
			case heard <- p.SequenceNumber:
			default:
			}
		}
	})
	session := c.call(s.hosts[0], AcceptOptions{})
	wait(t, "DTLS", session.Connected())
	<-heard
	eventually(t, "a proven path", func() bool { return session.Stats().Validated })
	eventually(t, "a confirmed flow", func() bool { st := s.edge.Stats(); return st.Flows == 1 && st.Unconfirmed == 0 })
	socket.muted.Store(true)

	before := [2]uint64{s.clusters[0].Stats().ToEdges, s.clusters[1].Stats().ToEdges}
	dead := -1
	eventually(t, "answers by one of the relays", func() bool {
		for i, c := range s.clusters {
			if c.Stats().ToEdges > before[i]+10 {
				dead = i
			}
		}
		return dead >= 0
	})
	stranger := must(ufrag.GenerateKey('x'))
	silence := gap(t, heard, func() {
		for _, r := range []*ufrag.Keyring{s.clusterKeys[dead], s.clusterLinks[dead]} {
			if err := r.Replace('x', stranger); err != nil {
				t.Error(err)
			}
		}
		eventually(t, "the edge to notice", func() bool { return s.edge.Stats().Redirected > 0 })
	})
	t.Logf("silence for %v", silence)
	other := s.clusters[1-dead].Stats()
	eventually(t, "answers by the other relay", func() bool { return s.clusters[1-dead].Stats().ToEdges > other.ToEdges })
	if st := session.Stats(); st.PathChanges != 0 {
		t.Errorf("the session moved: %+v", st)
	}
}
