package relay_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"time"

	"github.com/usher-rtc/usher/relay"
	"github.com/usher-rtc/usher/ufrag"
)

// A relay inside a program of one's own. In production the key comes from a key
// file that relays and Hosts share, and the addresses are fixed.
func ExampleServer() {
	key, err := ufrag.GenerateKey('a')
	if err != nil {
		fmt.Println(err)
		return
	}
	keys, err := ufrag.NewKeyring('a', key)
	if err != nil {
		fmt.Println(err)
		return
	}
	srv, err := relay.New(relay.Config{
		Ingresses:     []relay.Ingress{{ID: 1, Listen: netip.MustParseAddrPort("127.0.0.1:0")}},
		Trunk:         netip.MustParseAddrPort("127.0.0.1:0"),
		Workers:       1,
		Codec:         ufrag.NewCodec(keys),
		TrunkKeys:     keys,
		AllowUpstream: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		ReadBuffer:    64 << 10,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve() }()

	// Serve srv.Handler() on a private address for health and flows.

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil {
		fmt.Println(err)
	}
	fmt.Println(errors.Is(<-served, relay.ErrServerClosed))
	// Output: true
}

// A bad configuration is refused with the name of the field.
func ExampleNew() {
	_, err := relay.New(relay.Config{})
	var ce *relay.ConfigError
	if errors.As(err, &ce) {
		fmt.Println(ce.Field)
	}
	// Output: Codec
}

// testConfig is a relay on the loopback interface.
func testConfig() relay.Config {
	key, _ := ufrag.GenerateKey('a')
	keys, _ := ufrag.NewKeyring('a', key)
	return relay.Config{
		Ingresses:     []relay.Ingress{{ID: 1, Listen: netip.MustParseAddrPort("127.0.0.1:0")}},
		Trunk:         netip.MustParseAddrPort("127.0.0.1:0"),
		Workers:       1,
		Codec:         ufrag.NewCodec(keys),
		TrunkKeys:     keys,
		AllowUpstream: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		ReadBuffer:    64 << 10,
	}
}

// Stats has a counter for each reason to drop a packet, Trace shows single
// ones.
func ExampleServer_Stats() {
	dropped := make(chan string, 1)
	cfg := testConfig()
	cfg.Trace = &relay.Trace{Drop: func(reason string, _ netip.AddrPort, ingress uint16) {
		select {
		case dropped <- fmt.Sprintf("%s at ingress %d", reason, ingress):
		default: // a worker must not wait
		}
	}}
	srv, err := relay.New(cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve() }()

	client, err := net.Dial("udp", srv.Ingresses()[0].Listen.String())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	_, _ = client.Write([]byte("hello"))
	fmt.Println(<-dropped)

	_ = srv.Close()
	<-served
	fmt.Println(srv.Stats().Drops["no flow"])
	// Output:
	// no flow at ingress 1
	// 1
}

// Health for an orchestrator, on an address that the public does not reach.
func ExampleServer_Handler() {
	srv, err := relay.New(testConfig())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer srv.Close()
	rec := httptest.NewRecorder()
	srv.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	fmt.Println(rec.Code) // nobody has called Serve yet
	// Output: 503
}
