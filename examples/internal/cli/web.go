package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/usher-rtc/usher/examples/internal/metrics"
	"github.com/usher-rtc/usher/relay"
)

// Server is an HTTP server that was bound before the program went on, so that a
// taken port is an error at the start.
type Server struct {
	http.Server
	listener net.Listener
	done     chan struct{}
}

// Listen binds an HTTP server.
func Listen(addr string, handler http.Handler) (*Server, error) {
	return listen(new(net.ListenConfig), addr, handler)
}

// ListenBeside is Listen for a program that takes over from one that runs: both
// serve the address until the other one ends. It needs Linux, and one user.
func ListenBeside(addr string, handler http.Handler) (*Server, error) {
	return listen(&net.ListenConfig{Control: shareAddress}, addr, handler)
}

func listen(config *net.ListenConfig, addr string, handler http.Handler) (*Server, error) {
	listener, err := config.Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("serve HTTP on %q: %w", addr, err)
	}
	s := &Server{listener: listener, done: make(chan struct{})}
	s.Handler = handler
	s.ReadHeaderTimeout = 10 * time.Second
	go func() {
		defer close(s.done)
		_ = s.Serve(listener) // the error is that of Close
	}()
	return s, nil
}

// URL returns the address to open in a browser.
func (s *Server) URL() string { return "http://" + s.listener.Addr().String() + "/" }

// Close ends the server and waits for its goroutine.
func (s *Server) Close() {
	_ = s.Server.Close()
	<-s.done
}

// RelayPages serves the relay's own pages, and its counters at GET /debug/stats and,
// for Prometheus, GET /metrics.
func RelayPages(server *relay.Server) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /", server.Handler())
	mux.Handle("GET /metrics", metrics.Handler(metrics.Relay(server.Stats)))
	mux.Handle("GET /debug/stats", Stats(server.Stats))
	return mux
}

// Stats serves counters as JSON, one a line.
func Stats[T any](read func() T) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		to := json.NewEncoder(w)
		to.SetIndent("", "  ")
		_ = to.Encode(read()) // the client went away; nothing to do about it
	})
}
