package peers

import (
	"encoding/hex"
	"errors"
	"fmt"
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

// serveUsher runs usher's relay until it is told to end. Arguments: workers
// and MaxBatchDelay. It prints the ingress address.
func serveUsher(listen netip.AddrPort, args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("serve usher: want workers and delay, got %q", args)
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
	fmt.Println(s.Ingresses()[0].Listen)
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
