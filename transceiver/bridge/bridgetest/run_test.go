package bridgetest_test

import (
	"log/slog"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/usher-rtc/usher/transceiver/bridge"
	"github.com/usher-rtc/usher/transceiver/bridge/bridgetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestGoService(t *testing.T) {
	for _, codec := range []string{"opus", "pcm16/16000", "pcm16/24000"} {
		t.Run(codec, func(t *testing.T) {
			handler, err := bridge.NewHandler(bridge.HandlerConfig{
				Serve: bridgetest.Echo, Codec: codec, Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			bridgetest.Run(t, bridgetest.Service{Handler: handler, Codec: codec})
		})
	}
}

// TestOtherService runs the suite against a service that runs already, in any
// language: USHER_BRIDGE_SERVICE=ws://127.0.0.1:9000 go test -run OtherService .
func TestOtherService(t *testing.T) {
	url := os.Getenv("USHER_BRIDGE_SERVICE")
	if url == "" {
		t.Skip("set USHER_BRIDGE_SERVICE to the address of a service")
	}
	bridgetest.Run(t, bridgetest.Service{URL: url, Codec: os.Getenv("USHER_BRIDGE_CODEC")})
}
