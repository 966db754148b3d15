package callers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// Command is what a fleet's process is told to do; the first field that is not
// zero counts.
type Command struct {
	Open   int // callers to add
	Cycle  *Cycle
	Load   *Rate
	AtOnce int // for Open
}

// Rate is a load for Fleet.Load.
type Rate struct {
	PerCaller float64
	For       time.Duration
	Raw       bool
}

// Serve runs a fleet that calls a server in this process until SIGTERM. Its
// first line on standard output is the control port's address. See Fleet.Mute.
func Serve(server string, mute bool) error {
	f, err := NewFleet(server, mute)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /", func(w http.ResponseWriter, r *http.Request) {
		var c Command
		var l Load
		err := json.NewDecoder(r.Body).Decode(&c)
		switch {
		case err != nil:
		case c.Open > 0:
			err = f.Open(r.Context(), c.Open, max(c.AtOnce, 1))
		case c.Cycle != nil:
			err = f.Cycle(r.Context(), *c.Cycle)
		case c.Load != nil:
			l, err = f.Load(r.Context(), c.Load.PerCaller, c.Load.For, c.Load.Raw)
		default:
			err = f.CloseAll(r.Context())
		}
		// Or the server would count them among what it holds, now one more and now one less.
		client.CloseIdleConnections()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(w).Encode(l) // whoever asked has gone if this fails
	})
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, os.Interrupt)
	go func() {
		<-stop
		_ = s.Close() // Serve returns
	}()
	fmt.Println(listener.Addr())
	if err := s.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil // the callers end with the process
}
