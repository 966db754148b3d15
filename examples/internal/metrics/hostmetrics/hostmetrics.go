// Package hostmetrics serves the counters of a transceiver in Prometheus's text
// format. It is apart from package metrics, so that a relay is not linked with
// what a transceiver needs.
package hostmetrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/usher-rtc/usher/examples/internal/metrics"
	"github.com/usher-rtc/usher/transceiver"
)

var counters = metrics.SetOf[transceiver.Stats]("usher_host", nil, "Live", "Connected", "Sockets")

// Host collects a transceiver's statistics. It may be used concurrently if stats
// may.
func Host(stats func() transceiver.Stats) prometheus.Collector {
	return metrics.Collector(stats, func(s transceiver.Stats, emit metrics.Emit) { emit(counters, s) }, counters)
}
