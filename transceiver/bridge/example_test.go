package bridge_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"time"

	"github.com/coder/websocket"
	"github.com/pion/webrtc/v4"

	"github.com/usher-rtc/usher/transceiver"
	"github.com/usher-rtc/usher/transceiver/bridge"
	"github.com/usher-rtc/usher/ufrag"
)

// A complete voice agent as a service of its own: it listens, notices the end of
// a turn, says back what it heard, and stops at once when it is interrupted.
func Example_agent() {
	log.Fatal(http.ListenAndServe("127.0.0.1:9000", bridge.Handler(agent)))
}

func agent(ctx context.Context, call *bridge.Call) error {
	page := call.Events()     // the client's data channel
	answer := call.Say()      // what the user hears
	var turn [][]byte         // what the user has said
	var silence time.Duration // since then
	for frame, err := range call.Frames(ctx) {
		switch {
		case err != nil:
			return err // the call is over
		case frame.HasLevel && frame.Level < 50: // louder than -50 dBov: speech
			if len(turn) == 0 { // it may be a barge-in
				cut, err := answer.Stop(ctx)
				if err != nil {
					return err
				}
				page.SendJSON(ctx, map[string]any{"type": "listening", "cut_off": cut.Dropped.String()})
			}
			silence = 0
			turn = append(turn[max(0, len(turn)-1000):], bytes.Clone(frame.Payload))
		case len(turn) > 0:
			if silence += frame.Duration; silence < 600*time.Millisecond {
				continue
			}
			page.SendJSON(ctx, map[string]any{"type": "answering", "frames": len(turn)})
			answer = call.Say()
			for _, packet := range turn { // at once: the transceiver paces it
				if err := answer.Write(ctx, packet); err != nil {
					return err
				}
			}
			turn = nil
		}
	}
	return nil
}

// exampleHost makes a Host for the examples. A real one has the relays' keys
// from a file and their addresses in AllowRelays.
func exampleHost(onSession func(*transceiver.Session) error) *transceiver.Host {
	key, err := ufrag.GenerateKey('a')
	if err != nil {
		panic(err)
	}
	keys, err := ufrag.NewKeyring('a', key)
	if err != nil {
		panic(err)
	}
	host, err := transceiver.NewHost(transceiver.Config{
		Listen: netip.MustParseAddrPort("127.0.0.1:0"), Codec: ufrag.NewCodec(keys), TrunkKeys: keys,
		AllowRelays: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		Ingresses:   []transceiver.Ingress{{ID: 1, Advertise: netip.MustParseAddrPort("203.0.113.10:3478")}},
		OnSession:   onSession,
	})
	if err != nil {
		panic(err)
	}
	return host
}

// voiceOffer is the offer of a page with a microphone.
func voiceOffer() string {
	pc, err := webrtc.NewPeerConnection(webrtc.Configuration{})
	if err != nil {
		panic(err)
	}
	defer func() { _ = pc.Close() }()
	if _, err := pc.AddTransceiverFromKind(webrtc.RTPCodecTypeAudio); err != nil {
		panic(err)
	}
	offer, err := pc.CreateOffer(nil)
	if err != nil {
		panic(err)
	}
	return offer.SDP
}

// Every session of a Host gets a service, and the page hears when the service
// is away.
func ExampleAttach() {
	host := exampleHost(func(s *transceiver.Session) error {
		b, err := bridge.Attach(s, bridge.Config{
			Target: bridge.Target{
				URL:    "wss://agents.internal:9000",
				Header: http.Header{"Authorization": {"Bearer secret"}},
			},
			OnState: func(b *bridge.Bridge, c bridge.Change) {
				if c.State == bridge.StateReconnecting {
					// It waits for the page to open its channel; the bridge goes on.
					_ = b.Events().SendJSON(s.Context(), map[string]any{"type": "service", "state": c.State})
				}
			},
		})
		if err == nil {
			fmt.Println(b.State(), "for the client to connect")
		}
		return err
	})
	defer func() { _ = host.Close() }()
	if _, _, err := host.Accept(context.Background(), voiceOffer(), transceiver.AcceptOptions{}); err != nil {
		panic(err)
	}
	// Output: waiting for the client to connect
}

// What goes over the wire: a service that echoes audio, and a transceiver by
// hand.
func ExampleHandler() {
	service := httptest.NewServer(bridge.Handler(func(ctx context.Context, call *bridge.Call) error {
		speech := call.Say()
		for frame, err := range call.Frames(ctx) {
			if err != nil {
				return err
			}
			if err := speech.Write(ctx, frame.Payload); err != nil {
				return err
			}
		}
		return nil
	}))
	defer service.Close()

	ctx := context.Background()
	conn, _, err := websocket.Dial(ctx, service.URL, &websocket.DialOptions{Subprotocols: []string{bridge.Subprotocol}}) //nolint:bodyclose // the package says that there is nothing to close
	if err != nil {
		panic(err)
	}
	say := func(kind websocket.MessageType, message []byte) {
		if err := conn.Write(ctx, kind, message); err != nil {
			panic(err)
		}
	}
	hear := func() []byte {
		_, message, err := conn.Read(ctx)
		if err != nil {
			panic(err)
		}
		return message
	}
	say(websocket.MessageText, []byte(`{"type":"start","token":"…","session":"…","connection":1,"codecs":["opus"],"window_ms":30000}`))
	fmt.Printf("%s\n", hear())
	h := bridge.Header{Kind: bridge.KindAudio, Duration: 20 * time.Millisecond, Time: 3 * time.Second}
	say(websocket.MessageBinary, append(h.Append(nil), 0x78, 1, 2, 3))
	payload, ok := h.Parse(hear())
	fmt.Printf("%x %v\n", payload, ok)
	say(websocket.MessageText, []byte(`{"type":"end","reason":"client closed"}`))
	_, _, err = conn.Read(ctx)
	fmt.Println(websocket.CloseStatus(err))
	// Output:
	// {"type":"ready","codec":"opus"}
	// 78010203 true
	// StatusNormalClosure
}

// An answer that is stopped when three of its five frames have been played. The
// transceiver is by hand.
func ExampleUtterance() {
	service := bridge.Handler(func(ctx context.Context, call *bridge.Call) error {
		answer := call.Say()
		for range 5 {
			if err := answer.Write(ctx, []byte{0x78, 1, 2, 3}); err != nil { // an Opus packet of 20 ms
				return err
			}
		}
		cut, err := answer.Stop(ctx)
		fmt.Println("played", cut.Played, "dropped", cut.Dropped, err)
		fmt.Println(answer.Write(ctx, []byte{0x78, 1, 2, 3}))
		return err
	})
	server := httptest.NewServer(service)
	defer server.Close()

	ctx := context.Background()
	conn, _, err := websocket.Dial(ctx, server.URL, &websocket.DialOptions{Subprotocols: []string{bridge.Subprotocol}}) //nolint:bodyclose // the package says that there is nothing to close
	if err != nil {
		panic(err)
	}
	start := `{"type":"start","token":"…","session":"…","connection":1,"codecs":["opus"],"window_ms":30000}`
	if err := conn.Write(ctx, websocket.MessageText, []byte(start)); err != nil {
		panic(err)
	}
	for {
		_, message, err := conn.Read(ctx)
		if err != nil {
			break // the service has hung up
		}
		if !bytes.Contains(message, []byte(`"interrupt"`)) {
			continue
		}
		answer := `{"type":"interrupted","id":1,"played_ms":60,"dropped_ms":40,"position_ms":60}`
		if err := conn.Write(ctx, websocket.MessageText, []byte(answer)); err != nil {
			panic(err)
		}
	}
	// Output:
	// played 60ms dropped 40ms <nil>
	// transceiver: interrupted
}

// A service that is told to stop hands its calls to another instance.
func ExampleService_Shutdown() {
	service := bridge.Handler(agent)
	server := &http.Server{Addr: "127.0.0.1:9000", Handler: service, ReadHeaderTimeout: 10 * time.Second}
	// … server.ListenAndServe, until a signal comes. Then:
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	fmt.Println(service.Shutdown(ctx), server.Shutdown(ctx))
	// Output: <nil> <nil>
}

// A mistake in a configuration shows at the start, and not with the first call.
func ExampleConfig_Validate() {
	cfg := bridge.Config{Target: bridge.Target{URL: "127.0.0.1:9000"}}
	fmt.Println(cfg.Validate())
	// Output: bridge.Config.Target.URL: parse "127.0.0.1:9000": first path segment in URL cannot contain colon
}

func ExampleHeader() {
	h := bridge.Header{
		Kind: bridge.KindAudio, Flags: bridge.FlagLevel | bridge.FlagVoice, Level: 38,
		Duration: 20 * time.Millisecond, Lost: 2, Time: 61240 * time.Millisecond,
	}
	fmt.Printf("% x\n", h.Append(nil))
	// Output: 01 03 26 28 00 00 00 02 00 00 00 00 03 a6 72 c0
}

func ExampleNewHandler() {
	_, err := bridge.NewHandler(bridge.HandlerConfig{
		Serve: func(context.Context, *bridge.Call) error { return nil },
		Codec: "pcm16/8000",
	})
	var bad *bridge.ConfigError
	fmt.Println(errors.As(err, &bad), err)
	// Output: true bridge.HandlerConfig.Codec: "pcm16/8000" is none of opus, pcm16/16000, pcm16/24000
}
