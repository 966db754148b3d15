package peers

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/usher-rtc/usher/relay"
	"github.com/usher-rtc/usher/ufrag"
)

// serveUsher runs usher's relay until it is told to end. Arguments: workers,
// MaxBatchDelay, and the address of a server for profiles, empty for none. It
// prints the ingress address, and that of the server.
func serveUsher(listen netip.AddrPort, args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("serve usher: want workers, delay and an address for profiles, got %q", args)
	}
	workers, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	delay, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	key := ufrag.Key{ID: benchKeyID}
	if n, err := hex.Decode(key.Secret[:], []byte(os.Getenv(keyEnv))); err != nil || n != len(key.Secret) {
		return errors.New("serve usher: no key in the environment")
	}
	keys, err := ufrag.NewKeyring(key.ID, key)
	if err != nil {
		return err
	}
	// On one processor, too, the runtime needs a second P while the worker's
	// thread waits in its own system call.
	runtime.GOMAXPROCS(max(2, runtime.GOMAXPROCS(0)))
	s, err := relay.New(relay.Config{
		Ingresses:     []relay.Ingress{{ID: benchIngress, Listen: listen}},
		Trunk:         netip.AddrPortFrom(listen.Addr(), 0),
		Workers:       workers,
		Cluster:       benchCluster,
		Codec:         ufrag.NewCodec(keys),
		TrunkKeys:     keys,
		AllowUpstream: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		// Flows outlive the time that the relay is stopped while others are measured.
		IdleTimeout:        2 * time.Hour,
		UnconfirmedTimeout: 2 * time.Hour,
		MaxBatchDelay:      delay,
	})
	if err != nil {
		return err
	}
	profiles, err := serveProfiles(args[2])
	if err != nil {
		return errors.Join(err, s.Close())
	}
	fmt.Println(s.Ingresses()[0].Listen, profiles)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, os.Interrupt)
	go func() {
		<-stop
		_ = s.Close() // Serve reports what is wrong
	}()
	if err := s.Serve(); !errors.Is(err, relay.ErrServerClosed) {
		return errors.Join(err, s.Close())
	}
	return nil
}

// serveProfiles serves the process' profiles for as long as it runs and returns
// where; nowhere without an address.
func serveProfiles(addr string) (string, error) {
	if addr == "" {
		return "", nil
	}
	l, err := net.Listen("tcp", addr) //nolint:noctx // it lives as long as the process
	if err != nil {
		return "", err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go func() { _ = srv.Serve(l) }() // it ends with the process
	return l.Addr().String(), nil
}
