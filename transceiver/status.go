package transceiver

import (
	"encoding/json"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/usher-rtc/usher/ufrag"
)

// maxListed bounds the sessions that one status page lists.
const maxListed = 1000

// StatusHandler returns the Host's health and debug pages, for a port that the
// public does not reach:
//
//	GET /healthz         200 while the sockets are served
//	GET /readyz          200 while new sessions are taken, else 503
//	GET /debug/sessions  JSON: totals, counters, and up to 1,000 sessions
func (h *Host) StatusHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		select {
		case <-h.stop:
			plain(w, http.StatusServiceUnavailable, "closed")
		default:
			plain(w, http.StatusOK, "ok")
		}
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		switch {
		case h.Draining():
			plain(w, http.StatusServiceUnavailable, "draining")
		case h.full():
			plain(w, http.StatusServiceUnavailable, "full")
		default:
			plain(w, http.StatusOK, "ok")
		}
	})
	mux.HandleFunc("GET /debug/sessions", h.debugSessions)
	return mux
}

// plain answers with one line.
func plain(w http.ResponseWriter, status int, line string) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, line+"\n")
}

func (h *Host) full() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.live)+h.reserved >= h.cfg.MaxSessions
}

type sessionStatus struct {
	ID          string         `json:"id"`
	Ufrag       string         `json:"ufrag"` // shortened: a whole one is a credential
	Client      netip.AddrPort `json:"client"`
	Ingress     uint16         `json:"ingress"`
	Validated   bool           `json:"validated"`
	RTTMillis   float64        `json:"rtt_ms"`
	AgeSeconds  float64        `json:"age_s"`
	Connected   bool           `json:"connected"`
	PacketsIn   uint64         `json:"packets_in"`
	PacketsOut  uint64         `json:"packets_out"`
	Dropped     uint64         `json:"dropped"`
	PathChanges uint64         `json:"path_changes"`
}

func (h *Host) debugSessions(w http.ResponseWriter, _ *http.Request) {
	st := h.Stats()
	ended, drops := map[string]uint64{}, map[string]uint64{}
	for r, n := range st.Ended {
		ended[r.String()] = n
	}
	for d, n := range st.Drops {
		drops[d.String()] = n
	}
	all := h.Sessions()
	slices.SortFunc(all, func(a, b *Session) int { return strings.Compare(a.id, b.id) })
	list := make([]sessionStatus, 0, min(len(all), maxListed))
	for _, s := range all[:cap(list)] {
		ss := s.Stats()
		list = append(list, sessionStatus{
			ID: s.id, Ufrag: ufrag.Short(s.Ufrag()), Client: ss.ClientAddr, Ingress: ss.Ingress,
			Validated: ss.Validated, RTTMillis: float64(ss.RTT) / float64(time.Millisecond), AgeSeconds: ss.Age.Seconds(),
			Connected: ss.Connected > 0, PacketsIn: ss.PacketsIn, PacketsOut: ss.PacketsOut,
			Dropped: ss.Dropped, PathChanges: ss.PathChanges,
		})
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"addr": h.addr, "draining": h.Draining(), "live": st.Live, "connected": st.Connected,
		"accepted": st.Accepted, "refused": st.Refused, "restarts": st.Restarts, "contested": st.Contested,
		"limited": st.Limited, "sockets": st.Sockets,
		"ended": ended, "drops": drops, "kernel_drops": st.KernelDrops,
		"frames_in": st.FramesIn, "frames_out": st.FramesOut,
		"datagrams_in": st.DatagramsIn, "datagrams_out": st.DatagramsOut,
		"sessions": list,
	})
}
