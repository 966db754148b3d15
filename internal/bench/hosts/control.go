package hosts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

// Server is what the control port drives.
type Server interface {
	// Call answers an offer; id names the session for Hangup.
	Call(offer string) (id, answer string, err error)
	// Hangup ends a session and returns when it has ended.
	Hangup(id string)
	// Live returns how many sessions there are, and how many ever connected.
	Live() (live int, connected uint64)
	// Drops returns how many packets were dropped, by reason; none that are 0.
	Drops() map[string]uint64
	// Close ends everything.
	Close() error
}

// Usage is what a process holds.
type Usage struct {
	Goroutines  int    `json:"goroutines"`
	Heap        uint64 `json:"heap"`  // bytes after a collection
	Stack       uint64 `json:"stack"` // bytes in use
	Descriptors int    `json:"descriptors"`
	Live        int    `json:"live"`
	Connected   uint64 `json:"connected"` // sessions that ever were
	Echoed      uint64 `json:"echoed"`    // packets, if the mux is measured alone
	// Drops counts dropped packets by reason.
	Drops map[string]uint64 `json:"drops"`
}

// IDHeader carries a session's id in the answer of the control port.
const IDHeader = "Session-Id"

// control serves the control port until SIGTERM and closes the server. The
// first line on standard output is its address, the others are given.
func control(s Server, echoed func() uint64, lines ...string) error {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return errors.Join(err, s.Close())
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /calls", func(w http.ResponseWriter, r *http.Request) {
		offer, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 256<<10))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		id, answer, err := s.Call(string(offer))
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set(IDHeader, id)
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, answer) // a caller that has gone lets the session time out
	})
	mux.HandleFunc("DELETE /calls/{id}", func(_ http.ResponseWriter, r *http.Request) { s.Hangup(r.PathValue("id")) })
	report := func(w http.ResponseWriter, u Usage) {
		u.Live, u.Connected = s.Live()
		u.Drops = s.Drops()
		if echoed != nil {
			u.Echoed = echoed()
		}
		_ = json.NewEncoder(w).Encode(u) // whoever asked has gone if this fails
	}
	mux.HandleFunc("GET /usage", func(w http.ResponseWriter, _ *http.Request) { report(w, usage()) })
	// Without a collection, which is not to be part of what is measured.
	mux.HandleFunc("GET /count", func(w http.ResponseWriter, _ *http.Request) { report(w, Usage{}) })
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	fmt.Println(listener.Addr())
	for _, l := range lines {
		fmt.Println(l)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, os.Interrupt)
	go func() {
		<-stop
		_ = server.Close() // Serve returns
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return errors.Join(err, s.Close())
	}
	return s.Close()
}

// collections is how many usage compares.
const collections = 3

// usage reports what is held after the collection that left least: what is made
// while one runs counts as held, and with many sessions that takes a while. The one
// before them finalizes.
func usage() Usage {
	runtime.GC()
	var u Usage
	for i := range collections {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		if i == 0 || m.HeapAlloc+m.StackInuse < u.Heap+u.Stack {
			u.Heap, u.Stack = m.HeapAlloc, m.StackInuse
		}
	}
	u.Goroutines = runtime.NumGoroutine()
	if fds, err := os.ReadDir("/proc/self/fd"); err == nil {
		u.Descriptors = len(fds)
	}
	return u
}
