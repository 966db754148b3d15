package hostmetrics

import (
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/usher-rtc/usher/examples/internal/metrics"
	"github.com/usher-rtc/usher/relay"
	"github.com/usher-rtc/usher/transceiver"
)

func hostStats() transceiver.Stats {
	return transceiver.Stats{
		Live: 1, Accepted: 2, FramesIn: 3,
		Ended: map[transceiver.Reason]uint64{transceiver.ReasonConsentLost: 4},
		Drops: map[transceiver.DropReason]uint64{transceiver.DropRelayRefused: 5},
	}
}

func TestText(t *testing.T) {
	w := httptest.NewRecorder()
	metrics.Handler(Host(hostStats)).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	body := w.Body.String()
	for _, line := range []string{
		`usher_host_live 1`,
		`usher_host_accepted_total 2`,
		`usher_host_ended_total{reason="` + transceiver.ReasonConsentLost.String() + `"} 4`,
		`usher_host_drops_total{reason="` + transceiver.DropRelayRefused.String() + `"} 5`,
		`# TYPE usher_host_frames_in_total counter`,
	} {
		if !strings.Contains(body, line+"\n") {
			t.Errorf("no line %q in\n%s", line, body)
		}
	}
	problems, err := testutil.CollectAndLint(Host(hostStats))
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

// TestMetricsInDocsExist compares the page for operators with what is served.
func TestMetricsInDocsExist(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	stats := func() relay.Stats {
		return relay.Stats{
			Workers: []relay.Counters{{Drops: map[string]uint64{"empty datagram": 1}}},
			Sockets: make([]relay.SocketStats, 1),
		}
	}
	w := httptest.NewRecorder()
	metrics.Handler(Host(hostStats), metrics.Relay(stats)).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	names := regexp.MustCompile("`(usher_[a-z_]+)`").FindAllStringSubmatch(string(page), -1)
	if len(names) == 0 {
		t.Error("the page has no metrics")
	}
	for _, name := range names {
		if !strings.Contains(w.Body.String(), "# TYPE "+name[1]+" ") {
			t.Errorf("there is no metric %s", name[1])
		}
	}
}
