package metrics

import (
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/usher-rtc/usher/relay"
)

// Handler serves collectors, and what the Go runtime and the system know about the
// process.
func Handler(list ...prometheus.Collector) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	registry.MustRegister(list...)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// Relay collects a relay's statistics: of each worker, each socket, and the flow
// store. It may be used concurrently if stats may.
func Relay(stats func() relay.Stats) prometheus.Collector {
	return Collector(stats, func(s relay.Stats, emit Emit) {
		for i := range s.Workers {
			emit(relayCounters, s.Workers[i], strconv.Itoa(i))
		}
		for _, socket := range s.Sockets {
			name := "trunk"
			if !socket.Trunk {
				name = "ingress " + strconv.Itoa(int(socket.Ingress))
			}
			emit(relaySockets, socket, strconv.Itoa(socket.Worker), name)
		}
		emit(relayStore, s.Store)
	}, relayCounters, relaySockets, relayStore)
}

var (
	relayCounters = SetOf[relay.Counters]("usher_relay", []string{"worker"}, "Flows", "Unconfirmed", "Peers")
	relaySockets  = SetOf[relay.SocketStats]("usher_relay_socket", []string{"worker", "socket"}, "ReadBuffer")
	relayStore    = SetOf[relay.StoreStats]("usher_relay_store", nil, "WriteQueue", "LookupBreaker", "WriteBreaker")
)

// Set is what the fields of one struct are as metrics.
type Set []metric

type metric struct {
	field   int
	desc    *prometheus.Desc
	kind    prometheus.ValueType
	reasons bool // the field is a map from reasons to numbers
}

// SetOf makes a metric of every field that is a number or counts by reason; those
// that are named are gauges, all others only grow. Fields that say which socket it
// is are labels. A name that no field has is a mistake in the program: it panics.
func SetOf[T any](prefix string, labels []string, gauges ...string) Set {
	var s Set
	isLabel := map[string]bool{"Worker": true, "Ingress": true, "Trunk": true}
	isGauge := make(map[string]bool)
	for _, name := range gauges {
		isGauge[name] = true
	}
	t := reflect.TypeFor[T]()
	for i := range t.NumField() {
		f := t.Field(i)
		m := metric{field: i, kind: prometheus.CounterValue, reasons: f.Type.Kind() == reflect.Map}
		if isLabel[f.Name] || !m.reasons && !isNumber(f.Type.Kind()) {
			continue
		}
		name, labels := prefix+"_"+snake(f.Name), labels
		if m.reasons {
			labels = append(labels[:len(labels):len(labels)], "reason")
		}
		if isGauge[f.Name] {
			m.kind = prometheus.GaugeValue
			delete(isGauge, f.Name)
		} else {
			name += "_total"
		}
		m.desc = prometheus.NewDesc(name, fmt.Sprintf("%s of %s, which documents it.", f.Name, t), labels, nil)
		s = append(s, m)
	}
	if len(isGauge) > 0 {
		panic(fmt.Sprintf("metrics: %s has no fields %v", t, isGauge))
	}
	return s
}

func isNumber(k reflect.Kind) bool { return k >= reflect.Int && k <= reflect.Float64 }

// snake turns FromClients into from_clients.
func snake(name string) string {
	var b strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// Emit takes the struct that a set was made of, and the values of its labels.
type Emit func(s Set, from any, labels ...string)

// Collector makes a collector of statistics: each hands out the structs in them.
// The sets are all that it uses. It may be used concurrently if stats may.
func Collector[T any](stats func() T, each func(T, Emit), sets ...Set) prometheus.Collector {
	return &collector[T]{stats, each, sets}
}

type collector[T any] struct {
	stats func() T
	each  func(T, Emit)
	sets  []Set
}

// Describe implements prometheus.Collector.
func (c *collector[T]) Describe(ch chan<- *prometheus.Desc) {
	for _, s := range c.sets {
		for _, m := range s {
			ch <- m.desc
		}
	}
}

// Collect implements prometheus.Collector.
func (c *collector[T]) Collect(ch chan<- prometheus.Metric) {
	c.each(c.stats(), func(s Set, from any, labels ...string) {
		v := reflect.ValueOf(from)
		for _, m := range s {
			f := v.Field(m.field)
			if !m.reasons {
				ch <- prometheus.MustNewConstMetric(m.desc, m.kind, value(f), labels...)
				continue
			}
			for reasons := f.MapRange(); reasons.Next(); {
				reason := fmt.Sprint(reasons.Key().Interface())
				ch <- prometheus.MustNewConstMetric(m.desc, m.kind, value(reasons.Value()), append(labels[:len(labels):len(labels)], reason)...)
			}
		}
	})
}

func value(v reflect.Value) float64 {
	if v.CanUint() {
		return float64(v.Uint())
	}
	if v.CanInt() {
		return float64(v.Int())
	}
	return v.Float()
}
