package metrics

import (
	"io"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/usher-rtc/usher/relay"
)

func relayStats() relay.Stats {
	return relay.Stats{
		Workers: []relay.Counters{
			{FromClients: 1, Flows: 2, Drops: map[string]uint64{"no flow": 3}},
			{FromClients: 4, FromClientsBytes: 5, Drops: map[string]uint64{"no flow": 6, "not STUN": 7}},
		},
		Sockets: []relay.SocketStats{
			{Worker: 0, Ingress: 2, KernelDrops: 8, ReadBuffer: 9},
			{Worker: 1, Trunk: true, SendErrors: 10},
		},
		Store: relay.StoreStats{
			Lookups: 11, WriteQueue: 12, LookupBreaker: relay.BreakerOpen, Refused: map[string]uint64{"bad MAC": 13},
		},
	}
}

func TestText(t *testing.T) {
	w := httptest.NewRecorder()
	Handler(Relay(relayStats)).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	body, err := io.ReadAll(w.Result().Body)
	if err != nil || w.Code != 200 {
		t.Fatal(w.Code, err)
	}
	for _, line := range []string{
		`usher_relay_from_clients_total{worker="0"} 1`,
		`usher_relay_from_clients_total{worker="1"} 4`,
		`usher_relay_from_clients_bytes_total{worker="1"} 5`,
		`usher_relay_flows{worker="0"} 2`,
		`usher_relay_drops_total{reason="no flow",worker="0"} 3`,
		`usher_relay_drops_total{reason="not STUN",worker="1"} 7`,
		`usher_relay_socket_kernel_drops_total{socket="ingress 2",worker="0"} 8`,
		`usher_relay_socket_read_buffer{socket="ingress 2",worker="0"} 9`,
		`usher_relay_socket_send_errors_total{socket="trunk",worker="1"} 10`,
		`usher_relay_store_lookups_total 11`,
		`usher_relay_store_write_queue 12`,
		`usher_relay_store_lookup_breaker 1`,
		`usher_relay_store_refused_total{reason="bad MAC"} 13`,
		`# TYPE usher_relay_flows gauge`,
		`# TYPE go_goroutines gauge`,
	} {
		if !strings.Contains(string(body), line+"\n") {
			t.Errorf("no line %q", line)
		}
	}
	if t.Failed() {
		t.Logf("%s", body)
	}
}

// TestNamesAreInOrder holds the names against Prometheus's own rules, and registers
// everything, so that no two fields have one name.
func TestNamesAreInOrder(t *testing.T) {
	problems, err := testutil.CollectAndLint(Relay(relayStats))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}
