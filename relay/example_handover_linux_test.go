package relay_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/usher-rtc/usher/relay"
	"github.com/usher-rtc/usher/ufrag"
)

// An upgrade: the second relay, usually in another process, takes over from the
// first, with its sockets, flows and epoch. SystemdSockets is for the very first one.
func ExampleErrHandedOver() {
	dir, err := os.MkdirTemp("", "relay")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
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
	sockets, err := relay.SystemdSockets() // none outside systemd
	if err != nil {
		fmt.Println(err)
		return
	}
	config := relay.Config{
		Ingresses:     []relay.Ingress{{ID: 1, Listen: netip.MustParseAddrPort("127.0.0.1:0")}},
		Trunk:         netip.MustParseAddrPort("127.0.0.1:0"),
		Workers:       1,
		Codec:         ufrag.NewCodec(keys),
		TrunkKeys:     keys,
		AllowUpstream: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		ReadBuffer:    64 << 10,
		Sockets:       sockets,
		Handover:      filepath.Join(dir, "relay.sock"),
	}
	first, err := relay.New(config)
	if err != nil {
		fmt.Println(err)
		return
	}
	firstServed := make(chan error, 1)
	go func() { firstServed <- first.Serve() }()

	second, err := relay.New(config)
	if err != nil {
		fmt.Println(err)
		return
	}
	secondServed := make(chan error, 1)
	go func() { secondServed <- second.Serve() }()

	fmt.Println(errors.Is(<-firstServed, relay.ErrHandedOver))
	fmt.Println(first.Ingresses()[0] == second.Ingresses()[0])
	_ = second.Close()
	fmt.Println(errors.Is(<-secondServed, relay.ErrHandedOver))
	// Output:
	// true
	// true
	// false
}
