package transceiver_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"

	"github.com/pion/webrtc/v4"

	"github.com/usher-rtc/usher/transceiver"
	"github.com/usher-rtc/usher/ufrag"
)

// exampleHost makes a Host for the examples. A real one has the relays' keys
// from a file and their addresses in AllowRelays.
func exampleHost() (*transceiver.Host, *ufrag.BlockCodec) {
	key, err := ufrag.GenerateKey('a')
	if err != nil {
		panic(err)
	}
	keys, err := ufrag.NewKeyring('a', key)
	if err != nil {
		panic(err)
	}
	codec := ufrag.NewCodec(keys)
	host, err := transceiver.NewHost(transceiver.Config{
		Listen:      netip.MustParseAddrPort("127.0.0.1:0"),
		Codec:       codec,
		TrunkKeys:   keys,
		AllowRelays: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		Ingresses:   []transceiver.Ingress{{ID: 1, Advertise: netip.MustParseAddrPort("203.0.113.10:3478")}},
	})
	if err != nil {
		panic(err)
	}
	return host, codec
}

// clientOffer is what a browser sends in one request: no candidates needed.
func clientOffer() string {
	pc, err := webrtc.NewPeerConnection(webrtc.Configuration{})
	if err != nil {
		panic(err)
	}
	defer func() { _ = pc.Close() }()
	if _, err := pc.CreateDataChannel("events", nil); err != nil {
		panic(err)
	}
	offer, err := pc.CreateOffer(nil)
	if err != nil {
		panic(err)
	}
	return offer.SDP
}

func ExampleHost() {
	host, codec := exampleHost()
	defer func() { _ = host.Close() }()

	session, answer, err := host.Accept(context.Background(), clientOffer(), transceiver.AcceptOptions{})
	if err != nil {
		panic(err)
	}
	route, err := codec.Decode([]byte(session.Ufrag()))
	if err != nil {
		panic(err)
	}
	addr, _ := route.AddrPort()
	fmt.Println("the ufrag leads here:", addr == host.Addr())
	for line := range strings.Lines(answer) {
		if strings.HasPrefix(line, "a=candidate:") {
			fmt.Println(strings.TrimSpace(line))
		}
	}
	// Output:
	// the ufrag leads here: true
	// a=candidate:1 1 udp 2130706431 203.0.113.10 3478 typ host
}

func ExampleSession() {
	host, _ := exampleHost()
	defer func() { _ = host.Close() }()

	session, _, err := host.Accept(context.Background(), clientOffer(), transceiver.AcceptOptions{
		Metadata: []byte(`{"voice":"calm"}`),
		Prepare: func(s *transceiver.Session) error {
			s.OnDataChannel(func(d *webrtc.DataChannel) {
				d.OnMessage(func(m webrtc.DataChannelMessage) {
					defer s.Recover() // a panic here ends this session only
					_ = d.SendText("you said " + string(m.Data))
				})
			})
			return nil
		},
	})
	if err != nil {
		panic(err)
	}
	session.Go(func(ctx context.Context) { <-ctx.Done() })
	_ = session.Close()
	<-session.Done()
	fmt.Println(string(session.Metadata()), session.CloseReason())
	// Output: {"voice":"calm"} closed by the server
}

func ExampleNewHandler() {
	host, codec := exampleHost()
	defer func() { _ = host.Close() }()
	handler, err := transceiver.NewHandler(host, transceiver.SignallingConfig{
		Authorize: func(r *http.Request) error {
			if r.Header.Get("Authorization") == "" {
				return errors.New("no token")
			}
			return nil
		},
		AllowedOrigins: []string{"https://app.example.com"},
	})
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/v1/realtime/calls", handler)
	mux.Handle("/v1/realtime/calls/", handler)

	call := func(method, target, body string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, target, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/sdp")
		r.Header.Set("Authorization", "Bearer token")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		return w
	}
	made := call("POST", "/v1/realtime/calls", clientOffer())
	location := made.Header().Get("Location")
	fmt.Println(made.Code, made.Header().Get("Content-Type"))

	// A proxy in front of several Hosts finds the owner in the Location.
	route, err := transceiver.LocationRoute(codec, &url.URL{Path: location})
	fmt.Println(route.SameHost(host.Route()), err)
	fmt.Println(call("DELETE", location, "").Code)
	// Output:
	// 201 application/sdp
	// true <nil>
	// 200
}

func ExampleOfferError() {
	host, _ := exampleHost()
	defer func() { _ = host.Close() }()
	_, _, err := host.Accept(context.Background(), "hello", transceiver.AcceptOptions{})
	var bad *transceiver.OfferError
	fmt.Println(errors.As(err, &bad), errors.Is(err, transceiver.ErrNotSDP), err)
	// Output: true true not an SDP offer: does not begin with v=0
}

func ExampleConfigError() {
	_, err := transceiver.NewHost(transceiver.Config{})
	var bad *transceiver.ConfigError
	fmt.Println(errors.As(err, &bad), bad.Field)
	// Output: true Codec
}
