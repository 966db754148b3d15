package transceiver_test

import (
	"context"
	"fmt"

	"github.com/pion/webrtc/v4"

	"github.com/usher-rtc/usher/transceiver"
)

// voiceOffer is the offer of a page with a microphone and a data channel.
func voiceOffer() string {
	pc, err := webrtc.NewPeerConnection(webrtc.Configuration{})
	if err != nil {
		panic(err)
	}
	defer func() { _ = pc.Close() }()
	if _, err := pc.AddTransceiverFromKind(webrtc.RTPCodecTypeAudio); err != nil {
		panic(err)
	}
	if _, err := pc.CreateDataChannel("oai-events", nil); err != nil {
		panic(err)
	}
	offer, err := pc.CreateOffer(nil)
	if err != nil {
		panic(err)
	}
	return offer.SDP
}

// An agent reads frames, judges by their level whether somebody speaks, and
// stops speaking itself when that happens.
func ExampleAudio() {
	host, _ := exampleHost()
	defer func() { _ = host.Close() }()

	agent := func(s *transceiver.Session) error {
		audio, err := s.OpenAudio(transceiver.AudioConfig{})
		if err != nil {
			return err
		}
		s.Go(func(ctx context.Context) {
			for frame, err := range audio.Frames(ctx) {
				if err != nil {
					return // the call has ended
				}
				if frame.HasLevel && frame.Level < 40 {
					audio.Interrupt()
				}
				_ = frame.Payload // goes to the speech recogniser
			}
		})
		// An answer from a speech synthesiser, as fast as it comes: the Host
		// sends each frame when it is due. Nobody is connected in this example,
		// so all of it waits.
		opusPacket := []byte{0x78, 0x01, 0x02, 0x03} // 20 ms
		for range 50 {
			if err := audio.Write(s.Context(), opusPacket); err != nil {
				return err
			}
		}
		fmt.Println("queued:", audio.Stats().QueuedOut)
		cut := audio.Interrupt()
		fmt.Println("played:", cut.Played, "dropped:", cut.Dropped)
		return nil
	}
	_, _, err := host.Accept(context.Background(), voiceOffer(), transceiver.AcceptOptions{Prepare: agent})
	fmt.Println(err)
	// Output:
	// queued: 1s
	// played: 0s dropped: 1s
	// <nil>
}

func ExampleEvents() {
	host, _ := exampleHost()
	defer func() { _ = host.Close() }()

	session, _, err := host.Accept(context.Background(), voiceOffer(), transceiver.AcceptOptions{
		Prepare: func(s *transceiver.Session) error {
			events, err := s.OpenEvents(transceiver.EventsConfig{Label: "oai-events"})
			if err != nil {
				return err
			}
			s.Go(func(ctx context.Context) {
				// Waits until the client has opened the channel.
				err := events.SendJSON(ctx, map[string]string{"type": "session.created"})
				for err == nil {
					var event transceiver.Event
					if event, err = events.Next(ctx); err == nil {
						fmt.Printf("%s\n", event.Data)
					}
				}
				fmt.Println(err)
			})
			return nil
		},
	})
	if err != nil {
		panic(err)
	}
	_ = session.Close()
	<-session.Done()
	// Output: transceiver: session ended: closed by the server
}
