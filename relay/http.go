package relay

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/ufrag"
)

// stalled is how long a worker may be without a turn before it counts as dead.
// A healthy one has several a second.
const stalled = 5 * time.Second

// maxFlowLimit bounds /debug/flows.
const maxFlowLimit = 10_000

// Handler serves
//
//	GET /healthz      200 while every worker serves its sockets, else 503
//	GET /readyz       200 while also no drain has begun, else 503
//	GET /debug/flows  flows as JSON; ?limit=, 100 by default, at most 10,000
//
// It has no access control and shows client addresses: serve it on a loopback
// or private address. It depends on nothing but this process.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(rw http.ResponseWriter, _ *http.Request) {
		answer(rw, s.healthy())
	})
	mux.HandleFunc("GET /readyz", func(rw http.ResponseWriter, _ *http.Request) {
		answer(rw, s.healthy() && !s.draining.Load())
	})
	mux.HandleFunc("GET /debug/flows", s.serveFlows)
	return mux
}

func answer(rw http.ResponseWriter, ok bool) {
	rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if !ok {
		rw.WriteHeader(http.StatusServiceUnavailable)
		_, _ = rw.Write([]byte("no\n"))
		return
	}
	_, _ = rw.Write([]byte("ok\n"))
}

// healthy reports whether all workers take their turns.
func (s *Server) healthy() bool {
	if !s.up.Load() || s.isClosing() {
		return false
	}
	now := time.Since(s.start)
	for _, w := range s.workers {
		if now-time.Duration(w.beat.Load()) > stalled {
			return false
		}
	}
	return true
}

// flowJSON is a flow on the debug page. There is no ufrag in it.
type flowJSON struct {
	Client   string   `json:"client"`
	Ingress  uint16   `json:"ingress"`
	Upstream string   `json:"upstream"`
	Route    string   `json:"route,omitempty"`
	State    string   `json:"state"`
	Local    string   `json:"local,omitempty"`
	SSRCs    []uint32 `json:"ssrcs,omitempty"`
	// IdleMS is the time since the upstream last sent, AgeMS that since the
	// owner got the flow.
	IdleMS uint32 `json:"idle_ms"`
	AgeMS  uint32 `json:"age_ms"`
}

func (s *Server) serveFlows(rw http.ResponseWriter, req *http.Request) {
	limit := 100
	if q := req.URL.Query().Get("limit"); q != "" {
		n, err := strconv.Atoi(q)
		if err != nil || n < 1 || n > maxFlowLimit {
			http.Error(rw, "limit must be 1 to "+strconv.Itoa(maxFlowLimit), http.StatusBadRequest)
			return
		}
		limit = n
	}
	now := flowtable.Tick(time.Since(s.start) / time.Millisecond)
	page := struct {
		Total int        `json:"total"`
		Flows []flowJSON `json:"flows"`
	}{Total: s.flows(), Flows: []flowJSON{}}
	for _, f := range s.Flows(limit) {
		j := flowJSON{
			Client: f.Key.Client.String(), Ingress: f.Key.Ingress, Upstream: f.Upstream.String(),
			State: f.State.String(), SSRCs: f.SSRCs[:f.NumSSRCs],
			IdleMS: f.LastUpstream.Age(now), AgeMS: f.Since.Age(now),
		}
		if f.Route != (ufrag.Route{}) {
			j.Route = f.Route.String()
		}
		if f.Local.IsValid() {
			j.Local = f.Local.String()
		}
		page.Flows = append(page.Flows, j)
	}
	rw.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(rw).Encode(page) // the client went away; nothing to do about it
}
