package transceiver_test

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"github.com/usher-rtc/usher/transceiver"
)

// An ingress is to be taken down: every call moves to another one. Those of
// clients that cannot be reached stay until they restart by themselves.
func ExampleSession_RestartICE() {
	moveAll := func(host *transceiver.Host, to transceiver.Ingress) (moved int) {
		for _, s := range host.Sessions() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			if err := s.RestartICE(ctx, to); err == nil {
				moved++
			}
			cancel()
		}
		return moved
	}
	host, _ := exampleHost()
	defer func() { _ = host.Close() }()
	fmt.Println(moveAll(host, transceiver.Ingress{ID: 2, Advertise: netip.MustParseAddrPort("203.0.113.20:3478")}), "calls moved")
	// Output: 0 calls moved
}

// An application with signalling of its own carries the Host's offer itself.
func ExampleSession_Offer() {
	addTrack := func(ctx context.Context, s *transceiver.Session, exchange func(offer string) (answer string)) error {
		offer, err := s.Offer(ctx, transceiver.OfferOptions{})
		if err != nil {
			return err
		}
		return s.SetAnswer(ctx, exchange(offer))
	}
	_ = addTrack
}

// Signalling behind a reverse proxy, with a limit for each client.
func ExampleSignallingConfig() {
	host, _ := exampleHost()
	defer func() { _ = host.Close() }()
	handler, err := transceiver.NewHandler(host, transceiver.SignallingConfig{
		AllowedOrigins: []string{"https://app.example.com"},
		Authorize: func(r *http.Request) error {
			if r.Header.Get("Authorization") != "Bearer secret" {
				return &transceiver.StatusError{Status: http.StatusUnauthorized, Reason: "sign in first"}
			}
			return nil
		},
		Limit:          transceiver.RateLimit{PerSecond: 10, Burst: 30},
		TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
	})
	if err != nil {
		panic(err)
	}
	http.Handle("/calls", handler)
	http.Handle("/calls/", handler)
	fmt.Println("ready")
	// Output: ready
}
