// Package metrics serves the counters of relays and Hosts in Prometheus's text
// format. It owns names and labels, which follow the fields of relay.Stats and
// transceiver.Stats: FromClients of a worker is
// usher_relay_from_clients_total{worker="0"}. It refuses to count anything of its
// own.
package metrics
