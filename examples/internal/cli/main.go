package cli

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/usher-rtc/usher/examples/internal/metrics"
	"github.com/usher-rtc/usher/relay"
	"github.com/usher-rtc/usher/ufrag"
)

// Main runs a program and ends the process: status 0, or 1 after one line on
// stderr. The context ends with the first SIGINT or SIGTERM; a second one ends
// the process at once.
func Main(name string, run func(ctx context.Context, args []string) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the next signal has its default effect
	err := run(ctx, os.Args[1:])
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	fmt.Fprintf(os.Stderr, "%s: %s\n", name, oneLine(err))
	os.Exit(1)
}

// oneLine keeps joined errors, which print one a line, on one line.
func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// NewFlags returns an empty set of flags whose usage begins with synopsis.
func NewFlags(name, synopsis string) *flag.FlagSet {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprintf(os.Stderr, "usage: %s %s\n", name, synopsis)
		flags.SetOutput(os.Stderr)
		flags.PrintDefaults()
	}
	return flags
}

// Parse parses args. An error is one line, without the list of all flags, and says
// how to get that.
func Parse(flags *flag.FlagSet, args []string) error {
	usage := flags.Usage
	flags.SetOutput(discard{})
	flags.Usage = func() {}
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		usage()
		return err
	}
	if err != nil {
		return fmt.Errorf("%w; %q lists the flags", err, flags.Name()+" -help")
	}
	return nil
}

// NameFlag makes an error about a field of a configuration one about the flag that
// the field comes from; flags has its name, for those fields that have one.
func NameFlag(err error, flags map[string]string) error {
	var bad *relay.ConfigError
	if !errors.As(err, &bad) {
		return err
	}
	field, _, _ := strings.Cut(bad.Field, "[") // Ingresses[0].Listen
	if name, ok := flags[field]; ok {
		return fmt.Errorf("-%s: %s", name, bad.Problem)
	}
	return err
}

// ParseDaemon is Parse for programs that take flags and nothing else.
func ParseDaemon(flags *flag.FlagSet, args []string) error {
	if err := Parse(flags, args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return nil
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// Keys reads a key file and follows it while the program runs, so that keys can
// be rotated without a restart. The caller closes the watcher.
func Keys(path string) (*ufrag.Keyring, *ufrag.Watcher, error) {
	if path == "" {
		return nil, nil, errors.New("-keys is required: a key file, made with \"ufragctl keygen\"")
	}
	keys := new(ufrag.Keyring)
	watcher, err := keys.WatchFile(ufrag.WatchConfig{Path: path})
	return keys, watcher, err
}

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
		return nil, err
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
	mux.HandleFunc("GET /debug/stats", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(server.Stats())
	})
	return mux
}
