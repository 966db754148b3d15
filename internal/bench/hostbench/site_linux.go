package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/usher-rtc/usher/internal/bench/callers"
	"github.com/usher-rtc/usher/internal/e2e/link"
)

//go:embed page.html
var page []byte

// place is what is called: a server behind a link.
type place struct {
	server int
	rtt    time.Duration
}

// site is where browsers get their page and where all clients post their
// offers. It puts a delay link of its own before the server of each call.
type site struct {
	servers []*process
	http    *http.Server
	addr    string
	done    chan struct{}

	mu     sync.Mutex
	next   int
	calls  map[string]siteCall
	failed error // of links
}

type siteCall struct {
	server *process
	id     string
	link   *link.Link
}

func newSite(ctx context.Context, servers []*process) (*site, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &site{servers: servers, addr: l.Addr().String(), done: make(chan struct{}), calls: make(map[string]siteCall)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(page) // a browser that has gone will say so
	})
	mux.HandleFunc("POST /calls/{server}/{rtt}", s.post)
	mux.HandleFunc("DELETE /calls/{id}", func(w http.ResponseWriter, r *http.Request) {
		if err := s.hangup(r.Context(), r.PathValue("id")); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	s.http = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		defer close(s.done)
		_ = s.http.Serve(l) // ends with close
	}()
	return s, nil
}

func (s *site) close() {
	_ = s.http.Close() // whoever is connected has been closed before
	<-s.done
	for id := range s.calls {
		_ = s.hangup(context.Background(), id) // the processes end anyway
	}
}

// path is what a page posts its offer to.
func (p place) path() string { return fmt.Sprintf("/calls/%d/%d", p.server, p.rtt.Milliseconds()) }

func (s *site) post(w http.ResponseWriter, r *http.Request) {
	server, err1 := strconv.Atoi(r.PathValue("server"))
	rtt, err2 := strconv.Atoi(r.PathValue("rtt"))
	offer, err3 := io.ReadAll(http.MaxBytesReader(w, r.Body, 256<<10))
	if err := errors.Join(err1, err2, err3); err != nil || server < 0 || server >= len(s.servers) {
		http.Error(w, fmt.Sprint("bad call: ", err), http.StatusBadRequest)
		return
	}
	id, answer, err := s.call(r.Context(), place{server, time.Duration(rtt) * time.Millisecond}, string(offer))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	w.Header().Set("Location", "/calls/"+id)
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, answer)
}

// call passes an offer to a server and returns the answer with the link's
// address in place of the server's.
func (s *site) call(ctx context.Context, p place, offer string) (id, answer string, err error) {
	server := s.servers[p.server]
	// A full agent would send its checks around the link.
	name, answer, err := callers.Post(ctx, server.control, withoutCandidates(offer))
	if err != nil {
		return "", "", err
	}
	at, err := candidateOf(answer)
	if err != nil {
		return "", "", err
	}
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	delayed, err := link.New(link.Config{Listen: netip.AddrPortFrom(loopback, 0), Relay: at, Source: loopback, Delay: p.rtt / 2})
	if err != nil {
		return "", "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	id = strconv.Itoa(s.next)
	s.calls[id] = siteCall{server, name, delayed}
	return id, withCandidate(answer, delayed.Addr()), nil
}

// hangup ends a call and its link.
func (s *site) hangup(ctx context.Context, id string) error {
	s.mu.Lock()
	c, ok := s.calls[id]
	delete(s.calls, id)
	s.mu.Unlock()
	if !ok {
		return nil
	}
	err := callers.Delete(ctx, c.server.control, c.id)
	lost := c.link.Close()
	s.mu.Lock()
	s.failed = errors.Join(s.failed, lost)
	s.mu.Unlock()
	return errors.Join(err, lost)
}

// lost returns what kept links from carrying a packet, which no row may be blamed
// for.
func (s *site) lost() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

const candidatePrefix = "a=candidate:"

func withoutCandidates(sdp string) string {
	var b strings.Builder
	for line := range strings.Lines(sdp) {
		if !strings.HasPrefix(line, candidatePrefix) && !strings.HasPrefix(line, "a=end-of-candidates") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// candidateOf returns the address of the first candidate.
func candidateOf(sdp string) (netip.AddrPort, error) {
	for line := range strings.Lines(sdp) {
		if f := strings.Fields(line); strings.HasPrefix(line, candidatePrefix) && len(f) > 5 {
			return netip.ParseAddrPort(net.JoinHostPort(f[4], f[5]))
		}
	}
	return netip.AddrPort{}, errors.New("the answer has no candidate")
}

// withCandidate gives all candidates another address.
func withCandidate(sdp string, at netip.AddrPort) string {
	var b strings.Builder
	for line := range strings.Lines(sdp) {
		if f := strings.Fields(line); strings.HasPrefix(line, candidatePrefix) && len(f) > 5 {
			f[4], f[5] = at.Addr().String(), strconv.Itoa(int(at.Port()))
			line = strings.Join(f, " ") + "\r\n"
		}
		b.WriteString(line)
	}
	return b.String()
}
