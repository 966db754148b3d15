// Package echo is the application of the examples: whatever a client sends comes
// back to it, audio as the same RTP packets and data-channel messages as they
// are. It stands where a voice service would.
package echo

import (
	"context"
	"fmt"
	"strings"

	"github.com/pion/webrtc/v4"

	"github.com/usher-rtc/usher/transceiver"
)

// Attach makes a session an echo. It is a transceiver.Config.OnSession.
func Attach(s *transceiver.Session) error {
	s.OnDataChannel(func(channel *webrtc.DataChannel) {
		channel.OnMessage(func(m webrtc.DataChannelMessage) {
			defer s.Recover()
			if m.IsString {
				_ = channel.SendText(string(m.Data)) // an error means that the call has ended
			} else {
				_ = channel.Send(m.Data)
			}
		})
	})
	codec, offered := audioCodec(s.PeerConnection())
	if !offered {
		return nil
	}
	back, err := webrtc.NewTrackLocalStaticRTP(codec, "audio", "echo")
	if err != nil {
		return err
	}
	sender, err := s.PeerConnection().AddTrack(back)
	if err != nil {
		return fmt.Errorf("add the track: %w", err)
	}
	s.Go(func(context.Context) {
		// Reading is what makes Pion handle the client's RTCP.
		for buf := make([]byte, 1500); ; {
			if _, _, err := sender.Read(buf); err != nil {
				return
			}
		}
	})
	s.OnTrack(func(track *webrtc.TrackRemote, _ *webrtc.RTPReceiver) {
		for {
			packet, _, err := track.ReadRTP()
			if err != nil {
				return
			}
			// Extensions are numbered per direction; these were the client's.
			packet.Extension, packet.Extensions = false, nil
			if back.WriteRTP(packet) != nil {
				return
			}
		}
	})
	return nil
}

// audioCodec returns the first codec that both sides have for the first audio
// section of the offer.
func audioCodec(pc *webrtc.PeerConnection) (codec webrtc.RTPCodecCapability, offered bool) {
	for _, t := range pc.GetTransceivers() {
		if t.Kind() != webrtc.RTPCodecTypeAudio || t.Receiver() == nil {
			continue
		}
		for _, c := range t.Receiver().GetParameters().Codecs {
			if strings.HasPrefix(c.MimeType, "audio/") {
				return c.RTPCodecCapability, true
			}
		}
	}
	return codec, false
}
