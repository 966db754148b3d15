package transceiver

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pion/webrtc/v4"

	"github.com/usher-rtc/usher/internal/config"
)

const (
	typeSDP      = "application/sdp"
	typeFragment = "application/trickle-ice-sdpfrag"
	typeForm     = "multipart/form-data"
	// formOverhead is what multipart/form-data adds to the two fields.
	formOverhead = 64 << 10

	// bodyLimit is how long a request's body may take to come.
	bodyLimit = 10 * time.Second

	defaultKeepAlive = 20 * time.Second
	allowCalls       = "POST, OPTIONS"
	allowCall        = "PATCH, DELETE, OPTIONS"
)

// SignallingConfig configures NewHandler. The zero value of every field is its
// documented default.
type SignallingConfig struct {
	// Authorize is called for every request except preflights, before the
	// body is read. An error refuses it: 401, or the status of a *StatusError.
	// nil lets everybody in.
	Authorize func(*http.Request) error
	// AllowedOrigins are the origins whose pages may call, "https://example.com"
	// or "*" for any. Requests without an Origin header are not browsers' and
	// pass. Empty means pages of the same origin only. Such a page may send any
	// request header.
	AllowedOrigins []string
	// MaxBody is the longest request body, in bytes. 0 means the Host's
	// MaxOfferBytes plus 64 KiB.
	MaxBody int64
	// Prepare is called for every session before Config.OnSession, with the
	// request that made it. An error refuses the offer: 403, or the status of a
	// *StatusError.
	Prepare func(*http.Request, *Session) error
	// OnEvent takes the events that clients send over a WebSocket, valid JSON,
	// one after the other for each session; a client that sends faster than it
	// returns is held up. nil refuses them. A panic ends the session.
	OnEvent func(*Session, json.RawMessage)

	// Limit bounds the requests of each source. Its zero value is a limit.
	Limit RateLimit
	// TrustedProxies are the addresses of reverse proxies whose X-Forwarded-For
	// is believed. Empty means that the source of a request is who sent it,
	// whatever its headers say: set it behind a proxy, or all clients share
	// the proxy's limit.
	TrustedProxies []netip.Prefix
	// ICEServers go into the Link headers of a 201 (RFC 9725 section 4.6), for
	// clients that should try TURN too. None are needed: ingresses are public.
	ICEServers []webrtc.ICEServer
	// KeepAlive is how often an open WebSocket is pinged, and how long the
	// client may take to answer. 0 means 20 s, less than the time after which
	// proxies close a silent connection.
	KeepAlive time.Duration
}

// StatusError is an error with the HTTP status that a hook wants answered.
type StatusError struct {
	// Status is the HTTP status, 400 to 599.
	Status int
	// Reason goes into the response as one line. Empty means the status's text.
	Reason string
}

// Error implements the error interface.
func (e *StatusError) Error() string {
	if e.Reason == "" {
		return http.StatusText(e.Status)
	}
	return e.Reason
}

// NewHandler returns the signalling of a Host: one HTTP round trip makes a
// call. Mount it where the application wants it, for example
//
//	mux.Handle("/v1/realtime/calls", handler)
//	mux.Handle("/v1/realtime/calls/", handler)
//	mux.Handle("/whip", handler)
//	mux.Handle("/whip/", handler)
//
// POST takes an offer, either as application/sdp or as multipart/form-data
// with the fields sdp and session (JSON for the application: Session.Metadata),
// and answers 201 with the answer and a Location. At the Location, PATCH takes
// a further offer as application/sdp, or new credentials for an ICE restart as
// application/trickle-ice-sdpfrag (RFC 9725 section 4.3.3), and DELETE ends the
// call, for the reason in its query if it has one (?reason=). OPTIONS answers
// preflights. A Location of another Host is 404: see LocationRoute for a proxy
// that finds the right one. Errors are problem details (RFC 9457).
//
// A WebSocket does all of that over one connection, and lets the Host begin:
// Session.Negotiate, RestartICE, Notify, and the reason of the end. At the path
// that takes POST it makes a new call, at a Location it joins that call's.
// docs/signalling.md has its messages.
//
// The handler's own part of a connection that became a WebSocket ends with the
// session or the Host; http.Server.Shutdown does not wait for it, Host.Close does.
//
// A bad configuration is a *ConfigError.
func NewHandler(host *Host, cfg SignallingConfig) (_ http.Handler, err error) {
	if host == nil {
		return nil, config.In("transceiver.NewHandler", config.Errorf("host", "required: what NewHost returned"))
	}
	defer func() { err = config.In("transceiver.SignallingConfig", err) }()
	err = cmp.Or(
		config.Default("MaxBody", &cfg.MaxBody, int64(host.cfg.MaxOfferBytes)+formOverhead),
		cfg.Limit.validate(),
		config.Default("KeepAlive", &cfg.KeepAlive, defaultKeepAlive),
	)
	if err != nil {
		return nil, err
	}
	for i, p := range cfg.TrustedProxies {
		if !p.IsValid() {
			return nil, config.Errorf(fmt.Sprintf("TrustedProxies[%d]", i), "not a valid prefix")
		}
	}
	cfg.TrustedProxies = unmapped(cfg.TrustedProxies)
	links, err := iceLinks(cfg.ICEServers)
	if err != nil {
		return nil, err
	}
	cfg.AllowedOrigins = slices.Clone(cfg.AllowedOrigins)
	for i, o := range cfg.AllowedOrigins {
		if o == "*" {
			continue
		}
		if u, err := url.Parse(o); err != nil || u.Scheme == "" || u.Host == "" || u.Path != "" {
			return nil, config.Errorf("AllowedOrigins", "%q is no origin (number %d): want https://example.com, without a path", o, i)
		}
		cfg.AllowedOrigins[i] = strings.ToLower(o)
	}
	return &signalling{host: host, cfg: cfg, limit: newLimiter(cfg.Limit), links: links, firstOffer: firstOffer, bodyLimit: bodyLimit}, nil
}

type signalling struct {
	host  *Host
	cfg   SignallingConfig
	limit *limiter
	links []string

	firstOffer time.Duration // the constants, but for tests
	bodyLimit  time.Duration
	warned     atomic.Pointer[time.Time] // of the newest warning
}

// ServeHTTP implements http.Handler.
func (g *signalling) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	if !g.cors(w, r) {
		problemOrigin().write(w)
		return
	}
	if r.Method == http.MethodOptions {
		w.Header().Set("Accept-Post", typeSDP+", "+typeForm)
		w.Header().Set("Accept-Patch", typeSDP+", "+typeFragment)
		w.Header().Set("Allow", "POST, PATCH, DELETE, OPTIONS")
		w.WriteHeader(http.StatusNoContent)
		return
	}
	if p := g.limited(r); p != nil {
		p.write(w)
		return
	}
	if g.cfg.Authorize != nil {
		if err := g.cfg.Authorize(r); err != nil {
			problemOfHook(err, http.StatusUnauthorized).write(w)
			return
		}
	}
	if isUpgrade(r) {
		g.upgrade(w, r)
		return
	}
	s := g.host.resource(r.URL)
	atCall := s != nil || mayBeLocation(r.URL)
	switch {
	case r.Method == http.MethodPost && s == nil && !g.host.isLocation(r.URL):
		g.post(w, r)
	case !atCall || r.Method != http.MethodPatch && r.Method != http.MethodDelete:
		allow := allowCalls
		if atCall {
			allow = allowCall
		}
		w.Header().Set("Allow", allow)
		problemMethod(allow).write(w)
	case s == nil:
		problemNoCall().write(w)
	case r.Method == http.MethodPatch:
		g.patch(w, r, s)
	default:
		s.endByClient(r.URL.Query().Get("reason"))
		w.WriteHeader(http.StatusOK)
	}
}

// limited takes one of the source's tokens, or says that it has none.
func (g *signalling) limited(r *http.Request) *problem {
	ok, wait := g.limit.take(time.Now(), clientAddr(r, g.cfg.TrustedProxies))
	if ok {
		return nil
	}
	g.host.limited.Add(1)
	return problemLimited(wait)
}

// cors sets the headers for a page's request and reports whether its origin is allowed.
func (g *signalling) cors(w http.ResponseWriter, r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	h := w.Header()
	h.Add("Vary", "Origin")
	sameOrigin := false
	if u, err := url.Parse(origin); err == nil {
		sameOrigin = u.Host != "" && strings.EqualFold(u.Host, r.Host)
	}
	if !sameOrigin && !slices.Contains(g.cfg.AllowedOrigins, "*") && !slices.Contains(g.cfg.AllowedOrigins, strings.ToLower(origin)) {
		return false
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Allow-Methods", "POST, PATCH, DELETE, OPTIONS")
	// An origin that may call may send what Authorize and Prepare read.
	allow := "Authorization, Content-Type, If-Match"
	if ask := r.Header.Values("Access-Control-Request-Headers"); len(ask) > 0 {
		allow = strings.Join(ask, ", ")
	}
	h.Set("Access-Control-Allow-Headers", allow)
	h.Set("Access-Control-Expose-Headers", "Location, ETag, Link, Retry-After")
	h.Set("Access-Control-Max-Age", "86400")
	return true
}
