package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/usher-rtc/usher/internal/config"
)

// HandlerConfig configures NewHandler. The zero value of every field that is
// not marked as required is its documented default.
type HandlerConfig struct {
	// Serve is called for every connection. When it returns nil the session is
	// over: the client is hung up on. ErrRestart, any other error and a panic
	// end only the connection, and the transceiver connects again, to this
	// instance or another. Required.
	Serve func(context.Context, *Call) error
	// Codec is the codec of all calls: empty for Opus, "pcm16/16000" or
	// "pcm16/24000". A transceiver that does not have it is refused.
	Codec string
	// Authorize is called for every request. An error refuses it with 401. nil
	// lets everybody in.
	Authorize func(*http.Request) error
	// AllowedOrigins are hosts whose pages may connect, for tests in a
	// browser. Transceivers send no Origin and always may.
	AllowedOrigins []string
	// MaxCalls is how many calls there may be at once; more are refused with
	// 503, and the transceiver tries again. 0 means 4,096.
	MaxCalls int
	// ReceiveQueue is how many frames may wait for Call.Next. A reader that is
	// too slow loses the oldest, which the next frame reports as lost. 0 means
	// 50: 1 s of 20 ms frames.
	ReceiveQueue int
	// SilenceTimeout is how long a transceiver may say nothing, not even a
	// ping, until the connection is taken as dead. 0 means 10 s.
	SilenceTimeout time.Duration
	// Logger gets a line for each call that ended in an error. nil means
	// slog.Default().
	Logger *slog.Logger
}

const (
	defaultMaxCalls       = 4096
	defaultReceiveQueue   = 50
	defaultServiceSilence = 10 * time.Second
	maxReceiveQueue       = 10000
	// maxWaitingEvents and maxWaitingBytes bound the events that wait for
	// Events.Next.
	maxWaitingEvents = 1024
	maxWaitingBytes  = 1 << 20
)

func (c *HandlerConfig) validate() error {
	_, pcm := pcmRate(c.Codec)
	switch {
	case c.Serve == nil:
		return config.Errorf("Serve", "is required")
	case c.Codec != "" && c.Codec != opusName && !pcm:
		return config.Errorf("Codec", "%q is none of opus, pcm16/16000, pcm16/24000", c.Codec)
	case c.MaxCalls < 0:
		return config.Errorf("MaxCalls", "%d is negative", c.MaxCalls)
	case c.ReceiveQueue < 0 || c.ReceiveQueue > maxReceiveQueue:
		return config.Errorf("ReceiveQueue", "%d is outside 0 to %d", c.ReceiveQueue, maxReceiveQueue)
	case c.SilenceTimeout < 0:
		return config.Errorf("SilenceTimeout", "%v is negative", c.SilenceTimeout)
	}
	if c.Codec == "" {
		c.Codec = opusName
	}
	if c.MaxCalls == 0 {
		c.MaxCalls = defaultMaxCalls
	}
	if c.ReceiveQueue == 0 {
		c.ReceiveQueue = defaultReceiveQueue
	}
	if c.SilenceTimeout == 0 {
		c.SilenceTimeout = defaultServiceSilence
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}

// Handler is NewHandler with nothing but HandlerConfig.Serve.
func Handler(serve func(context.Context, *Call) error) http.Handler {
	h, err := NewHandler(HandlerConfig{Serve: serve})
	if err != nil {
		panic(err) // serve is nil: a fault of the program's
	}
	return h
}

type handler struct {
	cfg  HandlerConfig
	live atomic.Int64
}

// NewHandler returns the service's side of the bridge. A bad configuration is
// a *ConfigError. Calls end with their connections: to end them all, cancel
// what Serve waits for, and return ErrRestart.
func NewHandler(cfg HandlerConfig) (http.Handler, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &handler{cfg: cfg}, nil
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.cfg.Authorize != nil {
		if err := h.cfg.Authorize(r); err != nil {
			http.Error(w, "unauthorized", http.StatusUnauthorized)
			return
		}
	}
	defer h.live.Add(-1)
	if h.live.Add(1) > int64(h.cfg.MaxCalls) {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "full", http.StatusServiceUnavailable)
		return
	}
	c := newCall(&h.cfg)
	var err error
	if c.sock, err = accept(w, r, h.cfg.AllowedOrigins, c.heard); err != nil {
		h.cfg.Logger.Info("a connection was refused", "err", err)
		return
	}
	// Not the request's context, which ends with the hijacking server's whims.
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	defer cancel()
	c.silence = time.AfterFunc(h.cfg.SilenceTimeout, c.checkSilence)
	defer c.silence.Stop()
	if err := c.handshake(); err != nil {
		h.cfg.Logger.Info("a connection was refused", "err", err)
		c.hangUp(err)
		return
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer cancel()
		c.readAll()
	}()
	err = h.serve(ctx, c)
	if err != nil && c.failure() == nil {
		h.cfg.Logger.Warn("a call ended in an error", "session", c.Session(), "err", err)
	}
	c.hangUp(err)
	<-read
}

// serve calls the application.
func (h *handler) serve(ctx context.Context, c *Call) (err error) {
	defer func() {
		if v := recover(); v != nil {
			h.cfg.Logger.Error("panic in a call", "session", c.Session(), "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			err = fmt.Errorf("bridge: panic: %v", v)
		}
	}()
	return h.cfg.Serve(ctx, c)
}

// hangUp ends the connection in the way that err asks for, if it has not ended
// already.
func (c *Call) hangUp(err error) {
	code, reason := websocket.StatusInternalError, "the service failed"
	switch {
	case errors.Is(err, ErrProtocol), errors.Is(err, ErrVersion):
		code, reason = websocket.StatusProtocolError, closeReason(err)
	case c.failure() != nil: // it is over
		code, reason = websocket.StatusNormalClosure, ""
	case err == nil:
		_ = c.Hangup("finished") // it is closed next
		code, reason = websocket.StatusNormalClosure, ""
	case errors.Is(err, ErrRestart):
		code, reason = websocket.StatusServiceRestart, "restart"
	}
	c.end(ErrLost)
	c.sock.close(code, reason)
}
