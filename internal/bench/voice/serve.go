package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/usher-rtc/usher/internal/bench/hosts"
	"github.com/usher-rtc/usher/transceiver"
	"github.com/usher-rtc/usher/transceiver/bridge"
	"github.com/usher-rtc/usher/ufrag"
)

// serve answers HTTP on loopback and prints its address, until standard input
// ends: with the process that started this one, whatever ends it.
func serve(h http.Handler) error {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = server.Close() // Serve returns
	}()
	fmt.Println(l.Addr())
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// serveService says back what it hears.
func serveService() error {
	return serve(bridge.Handler(func(ctx context.Context, call *bridge.Call) error {
		speech := call.Say()
		for frame, err := range call.Frames(ctx) {
			if err != nil {
				return err
			}
			if err := speech.Write(ctx, frame.Payload); err != nil {
				return err
			}
		}
		return nil
	}))
}

// usage is what the Host's process holds, and what was lost there.
type usage struct {
	Goroutines  int
	Heap, Stack uint64 // bytes, the heap after a collection
	Ready       int    // bridges
	Lost        uint64 // frames that did not come in
	Overrun     uint64 // that the bridge took too late
	Missed      uint64 // that the service was not sent
	Dropped     uint64 // of the service's, that the client was not sent
}

// voiceHost is a Host whose sessions all go to one service.
type voiceHost struct {
	host *transceiver.Host

	mu      sync.Mutex
	bridges map[*bridge.Bridge]struct{}
}

func serveHost(ingress, service string) error {
	keys, err := hosts.Keyring()
	if err != nil {
		return err
	}
	advertise, err := netip.ParseAddrPort(ingress)
	if err != nil {
		return err
	}
	quiet := slog.New(slog.DiscardHandler)
	v := &voiceHost{bridges: make(map[*bridge.Bridge]struct{})}
	v.host, err = transceiver.NewHost(transceiver.Config{
		Listen: netip.MustParseAddrPort("127.0.0.1:0"), Cluster: 1, Codec: ufrag.NewCodec(keys), TrunkKeys: keys,
		AllowRelays: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		Ingresses:   []transceiver.Ingress{{ID: 1, Advertise: advertise}},
		MaxSessions: 10_000, Logger: quiet,
		OnSession: func(s *transceiver.Session) error {
			b, err := bridge.Attach(s, bridge.Config{Target: bridge.Target{URL: service}, Logger: quiet})
			if err != nil {
				return err
			}
			v.mu.Lock()
			defer v.mu.Unlock()
			v.bridges[b] = struct{}{}
			context.AfterFunc(s.Context(), func() {
				v.mu.Lock()
				defer v.mu.Unlock()
				delete(v.bridges, b)
			})
			return nil
		},
	})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /calls", v.call)
	mux.HandleFunc("GET /usage", v.usage)
	return errors.Join(serve(mux), v.host.Close())
}

func (v *voiceHost) call(w http.ResponseWriter, r *http.Request) {
	offer, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 256<<10))
	answer := ""
	if err == nil {
		_, answer, err = v.host.Accept(r.Context(), string(offer), transceiver.AcceptOptions{})
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, answer) // a caller that has gone lets the session time out
}

// usage collects twice: what the first collection finalizes goes with the second.
func (v *voiceHost) usage(w http.ResponseWriter, _ *http.Request) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u := usage{Goroutines: runtime.NumGoroutine(), Heap: m.HeapAlloc, Stack: m.StackInuse}
	v.mu.Lock()
	for b := range v.bridges {
		st, audio := b.Stats(), b.Audio().Stats()
		if st.State == bridge.StateReady {
			u.Ready++
		}
		u.Lost += audio.Lost
		u.Overrun += audio.Overrun
		u.Missed += st.FramesMissed
		u.Dropped += st.FramesDropped
	}
	v.mu.Unlock()
	_ = json.NewEncoder(w).Encode(u) // whoever asked has gone if this fails
}
