package callers

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pion/ice/v4"
	"github.com/pion/interceptor"
	"github.com/pion/webrtc/v4"

	"github.com/usher-rtc/usher/internal/bench/hosts"
)

// Engine is what callers share.
type Engine struct {
	media    *webrtc.MediaEngine
	registry *interceptor.Registry
	cert     webrtc.Certificate
}

// NewEngine makes one.
func NewEngine() (*Engine, error) {
	e := &Engine{media: &webrtc.MediaEngine{}, registry: &interceptor.Registry{}}
	err := e.media.RegisterCodec(webrtc.RTPCodecParameters{RTPCodecCapability: hosts.Opus, PayloadType: 111}, webrtc.RTPCodecTypeAudio)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	cert, err := webrtc.GenerateCertificate(key)
	if err != nil {
		return nil, err
	}
	e.cert = *cert
	return e, nil
}

// Caller is one client with an audio track and a data channel.
type Caller struct {
	pc     *webrtc.PeerConnection
	track  *webrtc.TrackLocalStaticRTP
	socket *socket
	sent   uint16
	ssrc   uint32

	onAudio  func(seq uint16)
	mute     bool // nobody answers with audio
	begin    time.Time
	received atomic.Uint64

	mu    sync.Mutex
	times Times
	done  chan struct{} // closed when all that is to happen has
}

// Times are the moments of a set-up, counted from applying the answer.
type Times struct {
	Connected time.Duration
	Open      time.Duration // the data channel
	Audio     time.Duration // the first packet of the server's
}

var ssrcs atomic.Uint32

// Options say how a Caller differs from the others.
type Options struct {
	// Addr is the IPv4 address of the caller's socket; zero means 127.0.0.1.
	Addr netip.Addr
	// OnAudio is called for each audio packet that arrives, with the sequence
	// number in its header, and must not block. nil means they are only counted.
	OnAudio func(seq uint16)
}

// New makes a caller. Close it.
func (e *Engine) New(o Options) (*Caller, error) {
	s, err := newSocket(o.Addr)
	if err != nil {
		return nil, err
	}
	c := &Caller{socket: s, onAudio: o.OnAudio, ssrc: ssrcs.Add(1), done: make(chan struct{})}
	if err := c.init(e); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Caller) init(e *Engine) (err error) {
	se := webrtc.SettingEngine{LoggerFactory: hosts.Quiet{}}
	se.SetICEUDPMux(&socketMux{c.socket})
	se.SetIncludeLoopbackCandidate(true)
	se.SetICEMaxBindingRequests(1000) // or a client gives up on a busy machine after 1.5 s
	se.SetNetworkTypes([]webrtc.NetworkType{webrtc.NetworkTypeUDP4})
	se.SetICEMulticastDNSMode(ice.MulticastDNSModeDisabled)
	se.DetachDataChannels() // saves 64 KB; nothing reads them
	api := webrtc.NewAPI(webrtc.WithMediaEngine(e.media), webrtc.WithInterceptorRegistry(e.registry), webrtc.WithSettingEngine(se))
	if c.pc, err = api.NewPeerConnection(webrtc.Configuration{Certificates: []webrtc.Certificate{e.cert}}); err != nil {
		return err
	}
	if c.track, err = webrtc.NewTrackLocalStaticRTP(hosts.Opus, "audio", "caller"); err != nil {
		return err
	}
	if _, err = c.pc.AddTrack(c.track); err != nil {
		return err
	}
	dc, err := c.pc.CreateDataChannel("bench", nil)
	if err != nil {
		return err
	}
	dc.OnOpen(func() { c.mark(func(t *Times) *time.Duration { return &t.Open }) })
	c.pc.OnConnectionStateChange(func(s webrtc.PeerConnectionState) {
		if s == webrtc.PeerConnectionStateConnected {
			c.mark(func(t *Times) *time.Duration { return &t.Connected })
		}
	})
	c.pc.OnTrack(func(in *webrtc.TrackRemote, _ *webrtc.RTPReceiver) {
		for buf := make([]byte, 1500); ; {
			n, _, err := in.Read(buf)
			if err != nil {
				return
			}
			if c.onAudio != nil && n >= 4 {
				c.onAudio(binary.BigEndian.Uint16(buf[2:]))
			}
			if c.received.Add(1) == 1 {
				c.mark(func(t *Times) *time.Duration { return &t.Audio })
			}
		}
	})
	return nil
}

// mark notes that one of the events has happened now.
func (c *Caller) mark(which func(*Times) *time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d := which(&c.times); *d == 0 {
		*d = max(time.Since(c.begin), 1)
		if t := &c.times; t.Connected > 0 && t.Open > 0 && (t.Audio > 0) != c.mute {
			close(c.done)
		}
	}
}

// Offer makes the offer, without candidates.
func (c *Caller) Offer() (string, error) {
	o, err := c.pc.CreateOffer(nil)
	if err != nil {
		return "", err
	}
	return o.SDP, c.pc.SetLocalDescription(o)
}

// Answer applies the answer; the times count from here.
func (c *Caller) Answer(sdp string) error {
	c.mu.Lock()
	c.begin = time.Now()
	c.mu.Unlock()
	return c.pc.SetRemoteDescription(webrtc.SessionDescription{Type: webrtc.SDPTypeAnswer, SDP: sdp})
}

// warmInterval is how often Wait sends audio of its own. An echo server needs
// some before any comes back.
const warmInterval = 20 * time.Millisecond

// Wait waits for all events and returns when they happened. With warm
// set it sends audio meanwhile.
func (c *Caller) Wait(ctx context.Context, warm bool) (Times, error) {
	tick := time.NewTicker(warmInterval)
	defer tick.Stop()
	for {
		select {
		case <-c.done:
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.times, nil
		case <-ctx.Done():
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.times, fmt.Errorf("callers: after %v %+v, %v", time.Since(c.begin), c.times, c.pc.ConnectionState())
		case <-tick.C:
			if warm {
				if err := c.Send(); err != nil {
					return Times{}, err
				}
			}
		}
	}
}

// Rebind gives the caller a new socket at an address, as a client behind a NAT
// that forgot it, or in a new network, would have. What is sent to the old one is
// lost. Pion does not notice.
func (c *Caller) Rebind(addr netip.Addr) error { return c.socket.rebind(addr) }

// Sent returns the sequence number of the last audio packet that was sent.
func (c *Caller) Sent() uint16 { return c.sent }

// Send sends one audio packet. Not for several goroutines at once.
func (c *Caller) Send() error {
	c.sent++
	return c.track.WriteRTP(hosts.Packet(c.sent))
}

// SendRaw sends what looks like one, past Pion; the server's mux echoes it. Not
// for several goroutines at once.
func (c *Caller) SendRaw() error {
	c.socket.raw.Store(true)
	c.sent++
	return c.socket.sendRaw(c.sent, c.ssrc)
}

// Received returns how many audio packets came back.
func (c *Caller) Received() uint64 { return c.received.Load() + c.socket.got.Load() }

// Close ends the call, with a word to the server if there is a connection, and
// waits for the caller's goroutines.
func (c *Caller) Close() {
	if c.pc != nil {
		_ = c.pc.GracefulClose() // what matters is that it has ended
	}
	_ = c.socket.Close() // Pion may have closed it
}
