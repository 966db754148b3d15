package hosts

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"time"
)

// Role is a server process: what is given to it as JSON.
type Role struct {
	Kind    string         `json:"kind"` // usher, relay or stock
	App     App            `json:"app"`
	Stock   StockConfig    `json:"stock"`
	MuxOnly bool           `json:"mux_only"`
	Snap    bool           `json:"snap"`
	Ingress netip.AddrPort `json:"ingress"` // of the relay, for usher
	// HalfOpen bounds sessions that do not connect; 0 is usher's default.
	HalfOpen time.Duration `json:"half_open"`
}

// Args returns the arguments of the command that serves the role.
func (r Role) Args() ([]string, error) {
	b, err := json.Marshal(r)
	return []string{"serve", string(b)}, err
}

// Serve runs a role. Its first line on standard output is the control port's
// address. It returns after SIGTERM.
func Serve(role string) error {
	var r Role
	if err := json.Unmarshal([]byte(role), &r); err != nil {
		return fmt.Errorf("role %q: %w", role, err)
	}
	switch r.Kind {
	case "relay":
		return serveRelay()
	case "usher":
		return serveUsher(UsherConfig{Ingress: r.Ingress, MuxOnly: r.MuxOnly, Snap: r.Snap, HalfOpen: r.HalfOpen}, r.App)
	case "stock":
		r.Stock.MuxOnly, r.Stock.Snap = r.MuxOnly, r.Snap
		return serveStock(r.Stock, r.App)
	}
	return fmt.Errorf("unknown role %q", r.Kind)
}
