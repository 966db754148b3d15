package hosts

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pion/interceptor"
	"github.com/pion/webrtc/v4"

	"github.com/usher-rtc/usher/relay"
	"github.com/usher-rtc/usher/transceiver"
	"github.com/usher-rtc/usher/ufrag"
)

// KeyEnv carries the key, in hex, to the processes of usher.
const KeyEnv = "USHER_BENCH_KEY"

// The only ingress, cluster and key.
const (
	ingressID = 1
	cluster   = 1
	keyID     = 'b'
)

// NewKey returns a value for KeyEnv.
func NewKey() (string, error) {
	key, err := ufrag.GenerateKey(keyID)
	return hex.EncodeToString(key.Secret[:]), err
}

// Keyring returns the keys that KeyEnv holds.
func Keyring() (*ufrag.Keyring, error) {
	key := ufrag.Key{ID: keyID}
	if n, err := hex.Decode(key.Secret[:], []byte(os.Getenv(KeyEnv))); err != nil || n != len(key.Secret) {
		return nil, errors.New("no key in the environment")
	}
	return ufrag.NewKeyring(key.ID, key)
}

var loopback = netip.MustParsePrefix("127.0.0.0/8")

// relayServer is the relay's process; it has no sessions.
type relayServer struct {
	*relay.Server
	served chan error
}

// serveRelay runs usher's relay. Its second line is the ingress address.
func serveRelay() error {
	keys, err := Keyring()
	if err != nil {
		return err
	}
	// On one processor, too, the runtime needs a second P while the worker's
	// thread waits in its own system call.
	runtime.GOMAXPROCS(max(2, runtime.GOMAXPROCS(0)))
	server, err := relay.New(relay.Config{
		Ingresses:     []relay.Ingress{{ID: ingressID, Listen: netip.MustParseAddrPort("127.0.0.1:0")}},
		Trunk:         netip.MustParseAddrPort("127.0.0.1:0"),
		Workers:       1,
		Cluster:       cluster,
		Codec:         ufrag.NewCodec(keys),
		TrunkKeys:     keys,
		AllowUpstream: []netip.Prefix{loopback},
		Logger:        quietLog(),
	})
	if err != nil {
		return err
	}
	r := &relayServer{Server: server, served: make(chan error, 1)}
	go func() { r.served <- server.Serve() }()
	return control(r, nil, server.Ingresses()[0].Listen.String())
}

func (r *relayServer) Call(string) (id, answer string, err error) {
	return "", "", errors.New("a relay has no sessions")
}
func (r *relayServer) Hangup(string) {}

func (r *relayServer) Live() (live int, connected uint64) { return int(r.Stats().Flows), 0 }

func (r *relayServer) Drops() map[string]uint64 {
	st := r.Stats()
	drops := make(map[string]uint64)
	for reason, n := range st.Drops {
		if n > 0 {
			drops[reason] = n
		}
	}
	for _, s := range st.Sockets {
		if n := s.KernelDrops + s.SendErrors; n > 0 {
			drops["socket"] += n
		}
	}
	return drops
}

func (r *relayServer) Close() error {
	err := r.Server.Close()
	if served := <-r.served; !errors.Is(served, relay.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// UsherConfig is how the Host is set up.
type UsherConfig struct {
	Ingress netip.AddrPort
	MuxOnly bool // see muxEcho
	Snap    bool // SCTP's start in the SDP, if the client offers it
	// HalfOpen is how long sessions live that get no further.
	HalfOpen time.Duration
}

// usher is a Host.
type usher struct {
	host      *transceiver.Host
	echoed    atomic.Uint64
	connected atomic.Uint64

	mu    sync.Mutex
	calls map[string]*transceiver.Session
}

// maxSessions is more than any part of the benchmark has at once.
const maxSessions = 200_000

// serveUsher runs usher's Host until it is told to end.
func serveUsher(cfg UsherConfig, app App) error {
	keys, err := Keyring()
	if err != nil {
		return err
	}
	u := &usher{calls: make(map[string]*transceiver.Session)}
	hc := transceiver.Config{
		Listen:             netip.MustParseAddrPort("127.0.0.1:0"),
		Cluster:            cluster,
		Codec:              ufrag.NewCodec(keys),
		TrunkKeys:          keys,
		AllowRelays:        []netip.Prefix{loopback},
		Ingresses:          []transceiver.Ingress{{ID: ingressID, Advertise: cfg.Ingress}},
		MaxSessions:        maxSessions,
		ConnectTimeout:     cfg.HalfOpen,
		DTLSTimeout:        cfg.HalfOpen,
		DetachDataChannels: app.Detach,
		Logger:             quietLog(),
		OnSession: func(s *transceiver.Session) error {
			return app.attach(s.PeerConnection(), s.Context().Done(), func() { u.connected.Add(1) })
		},
	}
	if cfg.Snap {
		hc.SettingEngine = func(se *webrtc.SettingEngine) { se.EnableSctpSnap(true) }
	}
	if cfg.MuxOnly {
		hc.NewAPI = u.muxOnlyAPI
	}
	if u.host, err = transceiver.NewHost(hc); err != nil {
		return err
	}
	return control(u, u.echoed.Load)
}

// muxOnlyAPI puts muxEcho between the Host's own mux and Pion.
func (u *usher) muxOnlyAPI(se webrtc.SettingEngine) (*webrtc.API, error) {
	inner, err := muxOf(&se)
	if err != nil {
		return nil, err
	}
	se.SetICEUDPMux(&muxEcho{UDPMux: inner, echoed: &u.echoed})
	m := &webrtc.MediaEngine{}
	err = m.RegisterCodec(webrtc.RTPCodecParameters{RTPCodecCapability: Opus, PayloadType: 111}, webrtc.RTPCodecTypeAudio)
	if err != nil {
		return nil, err
	}
	return webrtc.NewAPI(webrtc.WithSettingEngine(se), webrtc.WithMediaEngine(m),
		webrtc.WithInterceptorRegistry(&interceptor.Registry{})), nil
}

func (u *usher) Call(offer string) (id, answer string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	s, answer, err := u.host.Accept(ctx, offer, transceiver.AcceptOptions{})
	if err != nil {
		return "", "", fmt.Errorf("accept: %w", err)
	}
	u.mu.Lock()
	u.calls[s.ID()] = s
	u.mu.Unlock()
	context.AfterFunc(s.Context(), func() {
		u.mu.Lock()
		delete(u.calls, s.ID())
		u.mu.Unlock()
	})
	return s.ID(), answer, nil
}

func (u *usher) Hangup(id string) {
	u.mu.Lock()
	s := u.calls[id]
	u.mu.Unlock()
	if s == nil {
		return
	}
	_ = s.Close() // documented to be nil
	<-s.Done()
}

func (u *usher) Live() (live int, connected uint64) { return u.host.Stats().Live, u.connected.Load() }

func (u *usher) Drops() map[string]uint64 {
	st := u.host.Stats()
	drops := make(map[string]uint64)
	for reason, n := range st.Drops {
		if n > 0 {
			drops[reason.String()] = n
		}
	}
	if st.KernelDrops > 0 {
		drops["socket"] = st.KernelDrops
	}
	for reason, n := range st.Ended {
		if n > 0 {
			drops["ended: "+reason.String()] = n
		}
	}
	return drops
}

func (u *usher) Close() error { return u.host.Close() }
