package usher_test

import (
	"log"
	"net/http"
	"net/netip"

	"github.com/pion/webrtc/v4"

	"github.com/usher-rtc/usher/relay"
	"github.com/usher-rtc/usher/transceiver"
	"github.com/usher-rtc/usher/ufrag"
)

// A whole installation in one program: a relay on a public UDP port, and a Host
// behind it that answers offers on HTTP and echoes data channels.
func Example_embed() {
	key, _ := ufrag.GenerateKey('A')
	keys, _ := ufrag.NewKeyring('A', key)
	codec, inside := ufrag.NewCodec(keys), []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	public, trunk := netip.MustParseAddrPort("127.0.0.1:3478"), netip.MustParseAddrPort("127.0.0.1:0")

	front, err := relay.New(relay.Config{
		Ingresses: []relay.Ingress{{ID: 1, Listen: public}}, Trunk: trunk,
		Codec: codec, TrunkKeys: keys, AllowUpstream: inside,
	})
	if err != nil {
		log.Fatal(err)
	}
	go front.Serve()

	host, err := transceiver.NewHost(transceiver.Config{
		Ingresses: []transceiver.Ingress{{ID: 1, Advertise: public}}, Listen: trunk,
		Codec: codec, TrunkKeys: keys, AllowRelays: inside,
		OnSession: func(s *transceiver.Session) error {
			s.OnDataChannel(func(d *webrtc.DataChannel) {
				d.OnMessage(func(m webrtc.DataChannelMessage) { d.SendText(string(m.Data)) })
			})
			return nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	calls, _ := transceiver.NewHandler(host, transceiver.SignallingConfig{})
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", calls))
}
