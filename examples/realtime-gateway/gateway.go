package main

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/usher-rtc/usher/examples/pcm"
	"github.com/usher-rtc/usher/transceiver"
)

const (
	callsPath   = "/v1/realtime/calls"
	eventsLabel = "oai-events"

	defaultDialTimeout  = 5 * time.Second
	defaultWriteTimeout = 5 * time.Second
	// sendBuffer is what the kernel may hold back for an upstream server that
	// does not read. By default it would be minutes of audio.
	sendBuffer = 64 << 10
	// maxMessage is the longest event from upstream.
	maxMessage = 4 << 20
	// maxAnswer is how much audio may wait for a client. Servers make it much
	// faster than it is played, so this is the longest answer.
	maxAnswer = 10 * time.Minute
)

// config configures newGateway.
type config struct {
	// Upstream is the server that speaks the Realtime events: ws, wss, http or
	// https. A call's model goes into its query.
	Upstream *url.URL
	// UpstreamToken is its bearer token, if it wants one.
	UpstreamToken string
	// Authorize says whether a client's bearer token is good: allowTokens, or
	// whatever asks your own database. It gets "" when there is none.
	Authorize func(ctx context.Context, token string) bool
	// DialTimeout is how long a client waits for its answer when upstream is
	// dead. 0 means 5 s; browsers give up on a call after 11 to 15 s.
	DialTimeout time.Duration
	// WriteTimeout is how long upstream may read nothing until its call ends. Until
	// then the oldest of the client's audio is dropped and its events wait. 0
	// means 5 s.
	WriteTimeout time.Duration
	// Origins and TrustedProxies are AllowedOrigins and TrustedProxies of
	// transceiver.SignallingConfig.
	Origins        []string
	TrustedProxies []netip.Prefix
}

// gateway is the http.Handler of the calls API.
type gateway struct {
	cfg        config
	host       *transceiver.Host
	signalling http.Handler
	dialer     *http.Client
	stats      counters
}

// counters are what happened since the start. They only grow.
type counters struct {
	calls, dialFailures, audioDropped, eventsDropped, answersCut, interruptions, malformed atomic.Uint64
}

func (c *counters) snapshot() map[string]uint64 {
	return map[string]uint64{
		"calls":          c.calls.Load(),
		"dial_failures":  c.dialFailures.Load(),
		"audio_dropped":  c.audioDropped.Load(),  // packets of clients, because upstream did not read; of calls that have ended
		"events_dropped": c.eventsDropped.Load(), // of upstream, because the client did not read or they were too long for it
		"answers_cut":    c.answersCut.Load(),    // packets of upstream, beyond maxAnswer
		"interruptions":  c.interruptions.Load(), // that cut something
		"malformed":      c.malformed.Load(),     // messages of upstream that are no events
	}
}

// newGateway makes a gateway on a transceiver of its own. Close it when done.
func newGateway(host transceiver.Config, cfg config) (*gateway, error) {
	if s := cfg.Upstream.Scheme; s != "ws" && s != "wss" && s != "http" && s != "https" || cfg.Upstream.Host == "" {
		return nil, fmt.Errorf("-upstream: %q is no ws:// or wss:// URL", cfg.Upstream.Redacted())
	}
	if cfg.DialTimeout == 0 {
		cfg.DialTimeout = defaultDialTimeout
	}
	if cfg.WriteTimeout == 0 {
		cfg.WriteTimeout = defaultWriteTimeout
	}
	g := &gateway{cfg: cfg}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetWriteBuffer(sendBuffer)
		}
		return conn, err
	}
	g.dialer = &http.Client{Transport: transport}
	var err error
	if g.host, err = transceiver.NewHost(host); err != nil {
		return nil, err
	}
	g.signalling, err = transceiver.NewHandler(g.host, transceiver.SignallingConfig{
		Authorize: g.authorize, Prepare: g.prepare,
		AllowedOrigins: cfg.Origins, TrustedProxies: cfg.TrustedProxies,
	})
	if err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

// close ends all calls.
func (g *gateway) close() {
	_ = g.host.Close()
	g.dialer.CloseIdleConnections()
}

// ServeHTTP implements http.Handler: what transceiver.NewHandler serves, and the
// API's own way to hang up.
func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if call, ok := strings.CutSuffix(r.URL.Path, "/hangup"); ok && r.Method == http.MethodPost {
		r = r.Clone(r.Context())
		r.Method, r.URL.Path, r.URL.RawPath = http.MethodDelete, call, ""
	}
	g.signalling.ServeHTTP(challenge{w}, r)
}

// challenge says with a 401 how clients have to authorize themselves.
type challenge struct{ http.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (c challenge) WriteHeader(status int) {
	if status == http.StatusUnauthorized {
		c.Header().Set("WWW-Authenticate", "Bearer") // RFC 6750 section 3
	}
	c.ResponseWriter.WriteHeader(status)
}

// Unwrap lets a WebSocket take the connection over.
func (c challenge) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (g *gateway) authorize(r *http.Request) error {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		token = ""
	}
	if g.cfg.Authorize(r.Context(), strings.TrimSpace(token)) {
		return nil
	}
	return &transceiver.StatusError{
		Status: http.StatusUnauthorized,
		Reason: "send \"Authorization: Bearer TOKEN\" with a token that this gateway knows",
	}
}

// allowTokens is a config.Authorize that knows a list. Hashes are compared, all
// of them each time, so that the time it takes tells nothing of a token.
func allowTokens(tokens []string) func(context.Context, string) bool {
	known := make([][sha256.Size]byte, len(tokens))
	for i, t := range tokens {
		known[i] = sha256.Sum256([]byte(t))
	}
	return func(_ context.Context, token string) bool {
		sum, good := sha256.Sum256([]byte(token)), 0
		for i := range known {
			good |= subtle.ConstantTimeCompare(sum[:], known[i][:])
		}
		return good == 1 && token != ""
	}
}

// prepare connects a call to upstream before its offer is answered, so that a
// client whose call cannot work hears of it from its one request.
func (g *gateway) prepare(r *http.Request, s *transceiver.Session) error {
	update, model, err := firstUpdate(s.Metadata())
	if err != nil {
		return &transceiver.StatusError{Status: http.StatusBadRequest, Reason: err.Error()}
	}
	audio, err := s.OpenAudio(transceiver.AudioConfig{SendQueue: maxAnswer})
	if errors.Is(err, transceiver.ErrNoOpus) {
		return &transceiver.StatusError{Status: http.StatusUnprocessableEntity, Reason: "the offer needs an audio section with Opus"}
	}
	if err != nil {
		return err
	}
	events, err := s.OpenEvents(transceiver.EventsConfig{Label: eventsLabel})
	if err != nil {
		return err
	}
	c := &call{g: g, s: s, audio: audio, events: events}
	if c.decoder, err = pcm.Rate24k.NewDecoder(); err != nil {
		return err
	}
	if c.speaker.encoder, err = pcm.Rate24k.NewEncoder(); err != nil {
		return err
	}
	if q := r.URL.Query().Get("model"); q != "" {
		model = q
	}
	if c.upstream, err = g.dial(r.Context(), model); err != nil {
		g.stats.dialFailures.Add(1)
		slog.Warn("upstream cannot be reached", "session", s.ID(), "err", err)
		return &transceiver.StatusError{Status: http.StatusBadGateway, Reason: "the speech server behind this gateway did not take the call: try again later"}
	}
	g.stats.calls.Add(1)
	c.start(update)
	return nil
}

// dial connects to upstream for one call.
func (g *gateway) dial(ctx context.Context, model string) (*websocket.Conn, error) {
	to := *g.cfg.Upstream
	if model != "" {
		query := to.Query()
		query.Set("model", model)
		to.RawQuery = query.Encode()
	}
	header := make(http.Header)
	if g.cfg.UpstreamToken != "" {
		header.Set("Authorization", "Bearer "+g.cfg.UpstreamToken)
	}
	ctx, cancel := context.WithTimeout(ctx, g.cfg.DialTimeout)
	defer cancel()
	conn, response, err := websocket.Dial(ctx, to.String(), &websocket.DialOptions{HTTPClient: g.dialer, HTTPHeader: header})
	if response != nil && response.Body != nil {
		_ = response.Body.Close()
	}
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(maxMessage)
	return conn, nil
}
