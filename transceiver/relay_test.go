package transceiver

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/usher-rtc/usher/relay"
	"github.com/usher-rtc/usher/ufrag"
)

// startRelay runs a real relay until the test ends or stop is called.
func startRelay(t *testing.T, keys *ufrag.Keyring, ingress, trunk netip.AddrPort, peers ...netip.AddrPort) (r *relay.Server, stop func()) {
	t.Helper()
	r, err := relay.New(relay.Config{
		Ingresses:     []relay.Ingress{{ID: 1, Listen: ingress}},
		Trunk:         trunk,
		Peers:         peers,
		Workers:       1,
		Codec:         ufrag.NewCodec(keys),
		TrunkKeys:     keys,
		AllowUpstream: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		Logger:        quietLogger(),
	})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := r.Serve(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Serve: %v", err)
		}
	}()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			_ = r.Close()
			<-served
		}
	}
	t.Cleanup(stop)
	return r, stop
}

func TestThroughARealRelay(t *testing.T) {
	keys := testKeys(t)
	any := netip.MustParseAddrPort("127.0.0.1:0")
	r, stop := startRelay(t, keys, any, any)
	ingress, trunk := r.Ingresses()[0].Listen, r.TrunkAddrs()[0]
	host, err := NewHost(Config{
		Listen:      any,
		Codec:       ufrag.NewCodec(keys),
		TrunkKeys:   keys,
		AllowRelays: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		Ingresses:   []Ingress{{ID: 1, Advertise: ingress}},
		OnSession:   echoSession,
		Logger:      quietLogger(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = host.Close() }()
	c := newClient(t, nil)
	ch := c.channel()
	back := c.microphone()
	s := c.call(host, AcceptOptions{})
	wait(t, "DTLS", s.Connected())
	ch.echo(t, "hello")
	<-back
	eventually(t, "a proven path", func() bool { return s.Stats().Validated })

	// A relay that restarts on its ports learns the call from the Host: the
	// client sends nothing that names it.
	stop()
	start := time.Now()
	startRelay(t, keys, ingress, trunk, host.Addr())
	for len(back) > 0 {
		<-back
	}
	select {
	case <-back:
		t.Logf("audio is back after %v", time.Since(start))
	case <-time.After(patience):
		t.Fatalf("no audio after the relay's restart; %+v", host.Stats())
	}
	ch.echo(t, "after")
	if st := s.Stats(); st.PathChanges != 0 {
		t.Errorf("the session moved: %+v", st)
	}
}
