package hosts

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pion/ice/v4"
	"github.com/pion/interceptor"
	"github.com/pion/webrtc/v4"
)

// StockConfig is how stock Pion is set up.
type StockConfig struct {
	Lite bool // ICE-lite
	// Passive makes it the DTLS server, without the cookie exchange.
	Passive bool
	// Lean goes without what usher goes without, too: default codecs,
	// interceptors, buffers of data channels that are not detached, and the
	// sockets and goroutines of multicast DNS.
	Lean bool
	// Snap carries SCTP's start in the SDP, if the client offers it.
	Snap bool
	// MuxOnly echoes audio right at the mux; see muxEcho.
	MuxOnly bool
}

// stock is a server on Pion alone.
type stock struct {
	app       App
	api       *webrtc.API
	cert      webrtc.Certificate
	mux       ice.UDPMux
	echoed    atomic.Uint64
	connected atomic.Uint64
	next      atomic.Uint64

	mu    sync.Mutex
	calls map[string]*stockCall
}

type stockCall struct {
	pc    *webrtc.PeerConnection
	ended chan struct{}
}

// serveStock runs stock Pion until it is told to end.
func serveStock(cfg StockConfig, app App) error {
	conn, err := (&net.ListenConfig{}).ListenPacket(context.Background(), "udp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if u, ok := conn.(*net.UDPConn); ok {
		// What usher asks for, so that neither loses more than the other.
		if err := errors.Join(u.SetReadBuffer(4<<20), u.SetWriteBuffer(4<<20)); err != nil {
			return err
		}
	}
	s := &stock{app: app, calls: make(map[string]*stockCall)}
	var se webrtc.SettingEngine
	se.LoggerFactory = Quiet{}
	s.mux = webrtc.NewICEUDPMux(Quiet{}.NewLogger(""), conn)
	if cfg.MuxOnly {
		se.SetICEUDPMux(&muxEcho{UDPMux: s.mux, echoed: &s.echoed})
	} else {
		se.SetICEUDPMux(s.mux)
	}
	se.SetIncludeLoopbackCandidate(true)
	se.SetNetworkTypes([]webrtc.NetworkType{webrtc.NetworkTypeUDP4})
	se.SetLite(cfg.Lite)
	if cfg.Passive {
		se.SetDTLSInsecureSkipHelloVerify(true)
		if err := se.SetAnsweringDTLSRole(webrtc.DTLSRoleServer); err != nil {
			return err
		}
	}
	se.EnableSctpSnap(cfg.Snap)
	if cfg.Lean {
		se.SetICEMulticastDNSMode(ice.MulticastDNSModeDisabled)
	}
	if app.Detach {
		se.DetachDataChannels()
	}
	options := []func(*webrtc.API){webrtc.WithSettingEngine(se)}
	if cfg.Lean {
		m := &webrtc.MediaEngine{}
		err := m.RegisterCodec(webrtc.RTPCodecParameters{RTPCodecCapability: Opus, PayloadType: 111}, webrtc.RTPCodecTypeAudio)
		if err != nil {
			return err
		}
		options = append(options, webrtc.WithMediaEngine(m), webrtc.WithInterceptorRegistry(&interceptor.Registry{}))
	}
	s.api = webrtc.NewAPI(options...)
	// A certificate of its own for every session is a cost that every server can
	// avoid in the same way.
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	cert, err := webrtc.GenerateCertificate(key)
	if err != nil {
		return err
	}
	s.cert = *cert
	return control(s, s.echoed.Load)
}

func (s *stock) Call(offer string) (id, answer string, err error) {
	pc, err := s.api.NewPeerConnection(webrtc.Configuration{Certificates: []webrtc.Certificate{s.cert}})
	if err != nil {
		return "", "", err
	}
	c := &stockCall{pc: pc, ended: make(chan struct{})}
	id = strconv.FormatUint(s.next.Add(1), 10)
	s.mu.Lock()
	s.calls[id] = c
	s.mu.Unlock()
	defer func() {
		if err != nil {
			s.Hangup(id)
		}
	}()
	err = pc.SetRemoteDescription(webrtc.SessionDescription{Type: webrtc.SDPTypeOffer, SDP: offer})
	if err != nil {
		return "", "", err
	}
	if err := s.app.attach(pc, c.ended, func() { s.connected.Add(1) }); err != nil {
		return "", "", err
	}
	local, err := pc.CreateAnswer(nil)
	if err != nil {
		return "", "", err
	}
	gathered := webrtc.GatheringCompletePromise(pc)
	if err := pc.SetLocalDescription(local); err != nil {
		return "", "", err
	}
	select {
	case <-gathered:
	case <-time.After(5 * time.Second):
		return "", "", errors.New("gathering took longer than 5 s")
	}
	// Pion does not end a session by itself when its client closes DTLS.
	pc.SCTP().Transport().OnStateChange(func(state webrtc.DTLSTransportState) {
		if state == webrtc.DTLSTransportStateClosed || state == webrtc.DTLSTransportStateFailed {
			go s.Hangup(id)
		}
	})
	return id, pc.LocalDescription().SDP, nil
}

func (s *stock) Hangup(id string) {
	s.mu.Lock()
	c := s.calls[id]
	delete(s.calls, id)
	s.mu.Unlock()
	if c == nil {
		return
	}
	close(c.ended)
	_ = c.pc.GracefulClose() // what matters is that it has ended
}

func (s *stock) Live() (live int, connected uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls), s.connected.Load()
}

// Drops implements Server. Pion counts none.
func (s *stock) Drops() map[string]uint64 { return nil }

func (s *stock) Close() error {
	s.mu.Lock()
	ids := make([]string, 0, len(s.calls))
	for id := range s.calls {
		ids = append(ids, id)
	}
	s.mu.Unlock()
	for _, id := range ids {
		s.Hangup(id)
	}
	if err := s.mux.Close(); err != nil {
		return fmt.Errorf("close the mux: %w", err)
	}
	return nil
}
