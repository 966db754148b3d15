package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
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
	case c.ReceiveQueue > maxReceiveQueue:
		return config.Errorf("ReceiveQueue", "%d is outside 0 to %d", c.ReceiveQueue, maxReceiveQueue)
	}
	err := cmp.Or(
		config.Default("MaxCalls", &c.MaxCalls, defaultMaxCalls),
		config.Default("ReceiveQueue", &c.ReceiveQueue, defaultReceiveQueue),
		config.Default("SilenceTimeout", &c.SilenceTimeout, defaultServiceSilence),
	)
	if err != nil {
		return err
	}
	if c.Codec == "" {
		c.Codec = opusName
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}

// Handler is NewHandler with nothing but HandlerConfig.Serve.
func Handler(serve func(context.Context, *Call) error) *Service {
	h, err := NewHandler(HandlerConfig{Serve: serve})
	if err != nil {
		panic(err) // serve is nil: a fault of the program's
	}
	return h
}

// Service is the service's side of the bridge: an http.Handler whose requests
// are calls. All methods are safe for concurrent use.
type Service struct {
	cfg HandlerConfig

	mu     sync.Mutex
	live   int            // requests
	calls  map[*Call]bool // the ones of these that are connected
	closed bool           // by Shutdown
	idle   chan struct{}  // then: closed when no request is left
}

// NewHandler returns the service's side of the bridge. A bad configuration is
// a *ConfigError.
func NewHandler(cfg HandlerConfig) (*Service, error) {
	if err := cfg.validate(); err != nil {
		return nil, config.In("bridge.HandlerConfig", err)
	}
	return &Service{cfg: cfg, calls: make(map[*Call]bool), idle: make(chan struct{})}, nil
}

// Shutdown ends all calls as a restart, so that their transceivers connect at
// once to another instance, and refuses new ones with 503. What a call has
// written is played on. Its methods return ErrRestart, and the context of its
// HandlerConfig.Serve is cancelled. Shutdown returns when every Serve has, or
// with ctx's error when that is done before.
//
// http.Server.Shutdown does not know about calls: call that one too, in either
// order.
func (h *Service) Shutdown(ctx context.Context) error {
	h.mu.Lock()
	if !h.closed {
		h.closed = true
		if h.live == 0 {
			close(h.idle)
		}
	}
	for c := range h.calls {
		go c.restart() // the closing handshake takes up to closeLimit; the request waits for it
	}
	h.mu.Unlock()
	select {
	case <-h.idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// enter counts a request. It reports false if there is no room for it.
func (h *Service) enter() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || h.live >= h.cfg.MaxCalls {
		return false
	}
	h.live++
	return true
}

func (h *Service) leave(c *Call) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.calls, c)
	if h.live--; h.live == 0 && h.closed {
		close(h.idle)
	}
}

// connected makes Shutdown end a call, at once if it was called before.
func (h *Service) connected(c *Call) {
	h.mu.Lock()
	h.calls[c] = true
	closed := h.closed
	h.mu.Unlock()
	if closed {
		c.restart()
	}
}

// ServeHTTP implements http.Handler.
func (h *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.cfg.Authorize != nil {
		if err := h.cfg.Authorize(r); err != nil {
			http.Error(w, "unauthorized", http.StatusUnauthorized)
			return
		}
	}
	if !h.enter() {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "full, or about to stop", http.StatusServiceUnavailable)
		return
	}
	c := newCall(&h.cfg)
	defer h.leave(c)
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
	h.connected(c)
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
func (h *Service) serve(ctx context.Context, c *Call) (err error) {
	defer func() {
		if v := recover(); v != nil {
			h.cfg.Logger.Error("panic in a call", "session", c.Session(), "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			err = fmt.Errorf("bridge: panic: %v", v)
		}
	}()
	return h.cfg.Serve(ctx, c)
}

// restart ends the call for Shutdown.
func (c *Call) restart() {
	c.end(ErrRestart)
	c.hangUp(ErrRestart)
}

// hangUp ends the connection in the way that err asks for, if it has not ended
// already.
func (c *Call) hangUp(err error) {
	code, reason := websocket.StatusInternalError, "the service failed"
	switch {
	case errors.Is(err, ErrProtocol), errors.Is(err, ErrVersion):
		code, reason = websocket.StatusProtocolError, closeReason(err)
	case errors.Is(c.failure(), ErrRestart): // by Shutdown
		code, reason = websocket.StatusServiceRestart, "restart"
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
