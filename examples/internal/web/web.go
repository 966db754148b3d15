// Package web is the HTTP side of the examples: a page to talk from, the calls'
// signalling spread over one or more transceivers, and what an operator looks at.
// It owns the page and the spreading; answering offers is the transceiver
// package's business.
package web

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"net/netip"
	"sync/atomic"

	"github.com/usher-rtc/usher/transceiver"
	"github.com/usher-rtc/usher/ufrag"
)

//go:embed static
var static embed.FS

// Site is the HTTP side of a process with at least one transceiver.
type Site struct {
	Codec ufrag.Codec
	// TrustedProxies may name the client of a request in X-Forwarded-For.
	TrustedProxies []netip.Prefix

	owners []owner
	next   atomic.Uint64
}

type owner struct {
	name       string
	host       *transceiver.Host
	signalling http.Handler
}

// Call is what the page and /debug/sessions show about a call. The ufrag itself
// is left out: it is half of the call's credentials.
type Call struct {
	Owner   string `json:"owner"`
	ID      string `json:"id"`
	KeyID   string `json:"key_id"`
	Cluster uint16 `json:"cluster"`
	Host    string `json:"host"`
	Session uint32 `json:"session"`
	Client  string `json:"client,omitempty"`
	Ingress uint16 `json:"ingress,omitempty"` // through which the client comes
	State   string `json:"state"`
	// Packets that came through the relay, and packets sent to it.
	ToOwner  uint64 `json:"to_owner"`
	ToClient uint64 `json:"to_client"`
}

// Add gives the site another transceiver, before Handler is called. The site
// closes it.
func (s *Site) Add(name string, host *transceiver.Host) error {
	signalling, err := transceiver.NewHandler(host, transceiver.SignallingConfig{TrustedProxies: s.TrustedProxies})
	if err != nil {
		return err
	}
	s.owners = append(s.owners, owner{name, host, signalling})
	return nil
}

// Shutdown makes /readyz fail, so that a load balancer sends no further offers,
// and waits until the calls have ended or the context has.
func (s *Site) Shutdown(ctx context.Context) error {
	ended := make(chan error)
	for _, o := range s.owners {
		go func() { ended <- o.host.Shutdown(ctx) }()
	}
	var errs []error
	for range s.owners {
		errs = append(errs, <-ended)
	}
	return errors.Join(errs...)
}

// Close ends the calls and the transceivers.
func (s *Site) Close() {
	for _, o := range s.owners {
		_ = o.host.Close()
	}
}

// Handler serves the page, POST /v1/realtime/calls and POST /whip (spread over
// the owners in turn), PATCH and DELETE of a call (at its owner), GET /healthz,
// GET /readyz and GET /debug/sessions.
func (s *Site) Handler() http.Handler {
	files, err := fs.Sub(static, "static")
	if err != nil {
		panic(err) // the directory is part of the program
	}
	mux := http.NewServeMux()
	mux.Handle("/", http.FileServerFS(files))
	mux.HandleFunc("GET /api/call", s.call)
	for _, path := range []string{"/v1/realtime/calls", "/whip"} {
		mux.HandleFunc(path, s.offer)
		mux.HandleFunc(path+"/", s.resource)
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, map[string]string{"status": "ok"}) })
	mux.HandleFunc("GET /readyz", s.ready)
	mux.HandleFunc("GET /debug/sessions", s.sessions)
	return mux
}

// offer gives each new call to the next owner. Any other rule would do: the
// answer's ufrag tells the relay where the call went.
func (s *Site) offer(w http.ResponseWriter, r *http.Request) {
	s.owners[(s.next.Add(1)-1)%uint64(len(s.owners))].signalling.ServeHTTP(w, r)
}

// resource finds a call's owner by the route in its URL, as a signalling proxy in
// front of many processes would.
func (s *Site) resource(w http.ResponseWriter, r *http.Request) {
	route, err := transceiver.LocationRoute(s.Codec, r.URL)
	if err == nil {
		for _, o := range s.owners {
			if o.host.Route().SameHost(route) {
				o.signalling.ServeHTTP(w, r)
				return
			}
		}
	}
	http.NotFound(w, r)
}

func (s *Site) call(w http.ResponseWriter, r *http.Request) {
	route, err := s.Codec.Decode([]byte(r.URL.Query().Get("ufrag")))
	if err == nil {
		for _, o := range s.owners {
			for _, session := range o.host.Sessions() {
				if session.Route() == route {
					writeJSON(w, describe(o, session))
					return
				}
			}
		}
	}
	http.NotFound(w, r)
}

func (s *Site) ready(w http.ResponseWriter, _ *http.Request) {
	for _, o := range s.owners {
		if o.host.Draining() {
			http.Error(w, "draining", http.StatusServiceUnavailable)
			return
		}
	}
	writeJSON(w, map[string]string{"status": "ready"})
}

func (s *Site) sessions(w http.ResponseWriter, _ *http.Request) {
	type host struct {
		Name      string         `json:"name"`
		Addr      netip.AddrPort `json:"addr"`
		Live      int            `json:"live"`
		Connected int            `json:"connected"`
		Accepted  uint64         `json:"accepted"`
		Contested uint64         `json:"contested"`
		FramesIn  uint64         `json:"frames_in"`
		FramesOut uint64         `json:"frames_out"`

		Ended map[transceiver.Reason]uint64     `json:"ended"`
		Drops map[transceiver.DropReason]uint64 `json:"drops"`
	}
	page := struct {
		Hosts    []host `json:"hosts"`
		Sessions []Call `json:"sessions"`
	}{Sessions: []Call{}} // never null in JSON
	for _, o := range s.owners {
		stats := o.host.Stats()
		page.Hosts = append(page.Hosts, host{
			o.name, o.host.Addr(), stats.Live, stats.Connected, stats.Accepted, stats.Contested,
			stats.FramesIn, stats.FramesOut, stats.Ended, stats.Drops,
		})
		for _, session := range o.host.Sessions() {
			page.Sessions = append(page.Sessions, describe(o, session))
		}
	}
	writeJSON(w, page)
}

func describe(o owner, session *transceiver.Session) Call {
	route, stats := session.Route(), session.Stats()
	c := Call{
		Owner: o.name, ID: session.ID(), KeyID: session.Ufrag()[:1],
		Cluster: route.Cluster, Session: route.Session,
		State:   session.PeerConnection().ConnectionState().String(),
		ToOwner: stats.PacketsIn, ToClient: stats.PacketsOut,
	}
	if host, ok := route.AddrPort(); ok {
		c.Host = host.String()
	}
	if stats.ClientAddr.IsValid() {
		c.Client = stats.ClientAddr.String()
		c.Ingress = stats.Ingress
	}
	return c
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(v)
}
