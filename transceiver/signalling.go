package transceiver

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/usher-rtc/usher/internal/config"
	"github.com/usher-rtc/usher/ufrag"
)

const (
	typeSDP      = "application/sdp"
	typeFragment = "application/trickle-ice-sdpfrag"
	typeForm     = "multipart/form-data"
	// retryAfter is what a client that was refused for want of room is told to
	// wait, in seconds. A balancer may send it to another replica at once.
	retryAfter = "2"
	// formOverhead is what multipart/form-data adds to the two fields.
	formOverhead = 64 << 10
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
	// pass. Empty means pages of the same origin only.
	AllowedOrigins []string
	// MaxBody is the longest request body, in bytes. 0 means the Host's
	// MaxOfferBytes plus 64 KiB.
	MaxBody int64
	// Prepare is called for every session before Config.OnSession, with the
	// request that made it. An error refuses the offer: 403, or the status of a
	// *StatusError.
	Prepare func(*http.Request, *Session) error
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
// call. OPTIONS answers preflights. A Location of another Host is 404: see
// LocationRoute for a proxy that finds the right one.
//
// A bad configuration is a *ConfigError.
func NewHandler(host *Host, cfg SignallingConfig) (http.Handler, error) {
	if host == nil {
		return nil, config.Errorf("host", "required")
	}
	if cfg.MaxBody < 0 {
		return nil, config.Errorf("MaxBody", "%d is negative", cfg.MaxBody)
	}
	set(&cfg.MaxBody, int64(host.cfg.MaxOfferBytes)+formOverhead)
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
	return &signalling{host: host, cfg: cfg}, nil
}

type signalling struct {
	host *Host
	cfg  SignallingConfig
}

// ServeHTTP implements http.Handler.
func (g *signalling) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	if !g.cors(w, r) {
		refuse(w, http.StatusForbidden, "origin not allowed")
		return
	}
	if r.Method == http.MethodOptions {
		w.Header().Set("Accept-Post", typeSDP+", "+typeForm)
		w.Header().Set("Accept-Patch", typeSDP+", "+typeFragment)
		w.Header().Set("Allow", "POST, PATCH, DELETE, OPTIONS")
		w.WriteHeader(http.StatusNoContent)
		return
	}
	if g.cfg.Authorize != nil {
		if err := g.cfg.Authorize(r); err != nil {
			refuseError(w, err, http.StatusUnauthorized)
			return
		}
	}
	switch r.Method {
	case http.MethodPost:
		g.post(w, r)
	case http.MethodPatch:
		g.patch(w, r)
	case http.MethodDelete:
		g.remove(w, r)
	default:
		w.Header().Set("Allow", "POST, PATCH, DELETE, OPTIONS")
		refuse(w, http.StatusMethodNotAllowed, "method not allowed")
	}
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
	h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, If-Match")
	h.Set("Access-Control-Expose-Headers", "Location, ETag, Retry-After")
	h.Set("Access-Control-Max-Age", "86400")
	return true
}

func (g *signalling) post(w http.ResponseWriter, r *http.Request) {
	offerSDP, metadata, ok := g.readOffer(w, r)
	if !ok {
		return
	}
	opts := AcceptOptions{Metadata: metadata, Ingresses: g.host.ingressesFor(r)}
	var prepareErr error
	if g.cfg.Prepare != nil {
		opts.Prepare = func(s *Session) error {
			prepareErr = g.cfg.Prepare(r, s)
			return prepareErr
		}
	}
	s, answer, err := g.host.Accept(r.Context(), offerSDP, opts)
	switch {
	case err == nil:
	case prepareErr != nil && errors.Is(err, prepareErr):
		refuseError(w, err, http.StatusForbidden)
		return
	default:
		g.refuseOffer(w, r, err)
		return
	}
	w.Header().Set("Location", s.Location(r.URL.Path))
	w.Header().Set("ETag", s.etag())
	w.Header().Set("Content-Type", typeSDP)
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, answer)
}

// readOffer reads the two forms of a POST.
func (g *signalling) readOffer(w http.ResponseWriter, r *http.Request) (offerSDP string, metadata json.RawMessage, ok bool) {
	r.Body = http.MaxBytesReader(w, r.Body, g.cfg.MaxBody)
	switch kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind {
	case typeSDP:
		offerSDP, ok = readBody(w, r)
		return offerSDP, nil, ok
	case typeForm:
		if err := r.ParseMultipartForm(g.cfg.MaxBody); err != nil {
			refuseBody(w, err)
			return "", nil, false
		}
		defer func() { _ = r.MultipartForm.RemoveAll() }()
		offerSDP, found := formField(r, "sdp")
		if !found {
			refuse(w, http.StatusBadRequest, "no field sdp in the form")
			return "", nil, false
		}
		if session, found := formField(r, "session"); found && session != "" {
			metadata = json.RawMessage(session)
			if !json.Valid(metadata) {
				refuse(w, http.StatusBadRequest, "the field session is not valid JSON")
				return "", nil, false
			}
		}
		return offerSDP, metadata, true
	default:
		refuse(w, http.StatusUnsupportedMediaType, "want Content-Type "+typeSDP+" or "+typeForm)
		return "", nil, false
	}
}

// formField returns a field that was sent as a value or as a file: FormData
// makes the latter of a Blob.
func formField(r *http.Request, name string) (string, bool) {
	if v := r.MultipartForm.Value[name]; len(v) > 0 {
		return v[0], true
	}
	files := r.MultipartForm.File[name]
	if len(files) == 0 {
		return "", false
	}
	f, err := files[0].Open()
	if err != nil {
		return "", false
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(f)
	return string(b), err == nil
}

func readBody(w http.ResponseWriter, r *http.Request) (string, bool) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		refuseBody(w, err)
		return "", false
	}
	return string(b), true
}

func refuseBody(w http.ResponseWriter, err error) {
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		refuse(w, http.StatusRequestEntityTooLarge, "request body too large")
		return
	}
	refuse(w, http.StatusBadRequest, "the request body cannot be read")
}

func (g *signalling) patch(w http.ResponseWriter, r *http.Request) {
	s := g.host.resource(r.URL)
	if s == nil {
		refuse(w, http.StatusNotFound, "no such call on this host")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, g.cfg.MaxBody)
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if kind != typeSDP && kind != typeFragment {
		refuse(w, http.StatusUnsupportedMediaType, "want Content-Type "+typeSDP+" or "+typeFragment)
		return
	}
	body, ok := readBody(w, r)
	if !ok {
		return
	}
	if kind == typeFragment {
		g.patchFragment(w, r, s, body)
		return
	}
	answer, err := s.Renegotiate(r.Context(), body)
	if err != nil {
		g.refuseOffer(w, r, err)
		return
	}
	w.Header().Set("ETag", s.etag())
	w.Header().Set("Content-Type", typeSDP)
	w.WriteHeader(http.StatusOK)
	_, _ = io.WriteString(w, answer)
}

// patchFragment handles RFC 9725 section 4.3: candidates alone are accepted
// and not needed; new credentials are an ICE restart.
func (g *signalling) patchFragment(w http.ResponseWriter, r *http.Request, s *Session, body string) {
	remoteUfrag, remotePassword, err := parseFragment(body)
	if err != nil {
		g.refuseOffer(w, r, err)
		return
	}
	// A restart names no generation (If-Match: "*"), a trickle names the one it is for.
	if match := r.Header.Get("If-Match"); match != "" && strings.Trim(match, `"`) != "*" && match != s.etag() {
		refuse(w, http.StatusPreconditionFailed, "the call has been restarted since")
		return
	}
	answer, restarted, err := s.restartFragment(r.Context(), remoteUfrag, remotePassword)
	switch {
	case err != nil:
		g.refuseOffer(w, r, err)
	case !restarted:
		w.WriteHeader(http.StatusNoContent)
	default:
		w.Header().Set("ETag", s.etag())
		w.Header().Set("Content-Type", typeFragment)
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, answer)
	}
}

func (g *signalling) remove(w http.ResponseWriter, r *http.Request) {
	s := g.host.resource(r.URL)
	if s == nil {
		refuse(w, http.StatusNotFound, "no such call on this host")
		return
	}
	s.finish(ReasonClientClosed, nil)
	w.WriteHeader(http.StatusOK)
}

// refuseOffer maps what Accept and Renegotiate return to a status.
func (g *signalling) refuseOffer(w http.ResponseWriter, r *http.Request, err error) {
	var status *StatusError
	var bad *OfferError
	switch {
	case errors.As(err, &status):
		refuseError(w, err, http.StatusForbidden)
	case errors.Is(err, ErrOfferTooLarge):
		refuse(w, http.StatusRequestEntityTooLarge, err.Error())
	case errors.Is(err, ErrUnsupported), errors.Is(err, ErrChangedIdentity), errors.Is(err, ErrNoAudio):
		refuse(w, http.StatusUnprocessableEntity, err.Error())
	case errors.As(err, &bad):
		refuse(w, http.StatusBadRequest, err.Error())
	case errors.Is(err, ErrFull), errors.Is(err, ErrDraining), errors.Is(err, ErrHostClosed):
		w.Header().Set("Retry-After", retryAfter)
		refuse(w, http.StatusServiceUnavailable, strings.TrimPrefix(err.Error(), "transceiver: "))
	case errors.Is(err, ErrSessionClosed), errors.Is(err, net.ErrClosed):
		refuse(w, http.StatusNotFound, "the call has ended")
	case r.Context().Err() != nil, errors.Is(err, context.Canceled):
		refuse(w, http.StatusRequestTimeout, "the request was given up")
	default:
		// An error of the application's: its text is not for strangers.
		g.host.log.Warn("an offer was refused", "err", err)
		refuse(w, http.StatusInternalServerError, "the call could not be set up")
	}
}

// refuseError answers with the status of a *StatusError, or else with the given one.
func refuseError(w http.ResponseWriter, err error, status int) {
	var se *StatusError
	if errors.As(err, &se) && se.Status >= 400 && se.Status < 600 {
		refuse(w, se.Status, se.Error())
		return
	}
	refuse(w, status, strings.ToLower(http.StatusText(status)))
}

// refuse answers with one line.
func refuse(w http.ResponseWriter, status int, reason string) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, oneLine(reason)+"\n")
}

// etag names the session's ICE generation (RFC 9725 section 4.3.1).
func (s *Session) etag() string {
	return `"` + url.PathEscape(s.Ufrag()) + `"`
}

// Location returns the path of the session's signalling resource below a
// base: base/ufrag-token. The ufrag, the session's first, carries the route,
// so that a proxy can find the Host (LocationRoute); the token makes the
// resource unguessable for those who see STUN on the wire.
func (s *Session) Location(base string) string {
	return strings.TrimSuffix(base, "/") + "/" + url.PathEscape(s.resource) + "-" + s.token
}

// splitLocation takes a Location's last element apart.
func splitLocation(u *url.URL) (resource, token string, ok bool) {
	last := path.Base(u.EscapedPath())
	i := strings.LastIndexByte(last, '-')
	if i < 0 {
		return "", "", false
	}
	resource, err := url.PathUnescape(last[:i])
	return resource, last[i+1:], err == nil
}

// LocationRoute returns the route to the Host of a Location, for a proxy in
// front of several Hosts: forward PATCH and DELETE to the signalling address of
// that Host. It returns the codec's error for a Location that is none of its.
func LocationRoute(codec ufrag.Codec, u *url.URL) (ufrag.Route, error) {
	resource, _, ok := splitLocation(u)
	if !ok {
		return ufrag.Route{}, ufrag.ErrLength
	}
	return codec.Decode([]byte(resource))
}

// resource finds the session of a Location.
func (h *Host) resource(u *url.URL) *Session {
	name, token, ok := splitLocation(u)
	if !ok {
		return nil
	}
	h.mu.Lock()
	s := h.resources[name]
	h.mu.Unlock()
	if s == nil || s.ending.Load() || subtle.ConstantTimeCompare([]byte(token), []byte(s.token)) != 1 {
		return nil
	}
	return s
}
