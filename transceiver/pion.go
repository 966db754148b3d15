package transceiver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/pion/ice/v4"
	"github.com/pion/interceptor"
	"github.com/pion/logging"
	"github.com/pion/transport/v5"
	"github.com/pion/webrtc/v4"
)

// engine is the part of a Pion set-up that all sessions of a Host share.
type engine struct {
	media    *webrtc.MediaEngine
	registry *interceptor.Registry
	loggers  logging.LoggerFactory

	mu       sync.Mutex
	cert     *webrtc.Certificate
	renewAt  time.Time
	lifetime time.Duration
}

func newEngine(cfg *Config) (*engine, error) {
	e := &engine{
		media:    &webrtc.MediaEngine{},
		registry: &interceptor.Registry{},
		loggers:  &pionLoggers{to: cfg.Logger},
		lifetime: cfg.CertificateLifetime,
	}
	register := cfg.MediaEngine
	if register == nil {
		register = registerAudio
	}
	if err := register(e.media); err != nil {
		return nil, fmt.Errorf("transceiver: MediaEngine: %w", err)
	}
	_, err := e.certificate(time.Now())
	return e, err
}

// audioLevelURI names the header extension with a packet's loudness (RFC 6464).
const audioLevelURI = "urn:ietf:params:rtp-hdrext:ssrc-audio-level"

// registerAudio is the default: what browsers and telephone gateways can send
// without video, and how loud it is. A video section is then answered with port 0.
func registerAudio(m *webrtc.MediaEngine) error {
	for _, c := range []webrtc.RTPCodecParameters{
		{PayloadType: 111, RTPCodecCapability: webrtc.RTPCodecCapability{
			MimeType: webrtc.MimeTypeOpus, ClockRate: 48000, Channels: 2, SDPFmtpLine: "minptime=10;useinbandfec=1",
		}},
		{PayloadType: 9, RTPCodecCapability: webrtc.RTPCodecCapability{MimeType: webrtc.MimeTypeG722, ClockRate: 8000}},
		{PayloadType: 0, RTPCodecCapability: webrtc.RTPCodecCapability{MimeType: webrtc.MimeTypePCMU, ClockRate: 8000}},
		{PayloadType: 8, RTPCodecCapability: webrtc.RTPCodecCapability{MimeType: webrtc.MimeTypePCMA, ClockRate: 8000}},
	} {
		if err := m.RegisterCodec(c, webrtc.RTPCodecTypeAudio); err != nil {
			return err
		}
	}
	return m.RegisterHeaderExtension(webrtc.RTPHeaderExtensionCapability{URI: audioLevelURI},
		webrtc.RTPCodecTypeAudio, webrtc.RTPTransceiverDirectionRecvonly)
}

// certificate returns the one for new sessions. Making one costs hundreds of
// microseconds, so sessions share it until it has served its lifetime.
func (e *engine) certificate(now time.Time) (webrtc.Certificate, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cert != nil && now.Before(e.renewAt) {
		return *e.cert, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return webrtc.Certificate{}, err
	}
	cert, err := webrtc.GenerateCertificate(key)
	if err != nil {
		return webrtc.Certificate{}, err
	}
	e.cert, e.renewAt = cert, now.Add(e.lifetime)
	return *cert, nil
}

// pionDisconnected is longer than the longest gap between a browser's checks
// (Firefox: 6.1 s) and feedAgain together.
const pionDisconnected = 15 * time.Second

// dtlsFlight is Pion's first DTLS retransmission. Its default of 1 s is what
// one lost datagram costs a call.
const dtlsFlight = 250 * time.Millisecond

// peerConnection makes the PeerConnection of a session on its virtual path.
func (e *engine) peerConnection(cfg *Config, s *Session, active bool) (*webrtc.PeerConnection, error) {
	se := webrtc.SettingEngine{LoggerFactory: e.loggers}
	se.SetDTLSRetransmissionInterval(dtlsFlight)
	se.EnableSctpSnap(true)                   // one round trip less to an open data channel, with clients that offer it
	se.SetSCTPMaxMessageSize(defaultMaxEvent) // Pion would promise to take 1 GiB
	if cfg.NewAPI == nil {
		se.BufferFactory = s.bounds.newMediaBuffer // with interceptors Pion would start its readers later
	}
	if cfg.SettingEngine != nil {
		cfg.SettingEngine(&se)
	}
	role := webrtc.DTLSRoleClient
	if !active {
		role = webrtc.DTLSRoleServer
		// The address is proven by ICE, so the cookie exchange is a wasted round trip.
		se.SetDTLSInsecureSkipHelloVerify(true)
	}
	if err := se.SetAnsweringDTLSRole(role); err != nil {
		return nil, err
	}
	if cfg.DetachDataChannels {
		se.DetachDataChannels()
	}
	se.SetLite(true)
	se.SetNet(isolatedNet{})
	se.SetNetworkTypes([]webrtc.NetworkType{webrtc.NetworkTypeUDP4})
	se.SetICEMulticastDNSMode(ice.MulticastDNSModeDisabled)
	se.SetICEUDPMux(&sessionMux{conn: s.conn})
	se.SetICECredentials(s.conn.pionUfrag, s.conn.pionPassword)
	se.SetICETimeouts(pionDisconnected, 0, 0)
	se.SetDTLSConnectContextMaker(func() (context.Context, func()) {
		return context.WithTimeout(s.ctx, cfg.DTLSTimeout)
	})

	cert, err := e.certificate(time.Now())
	if err != nil {
		return nil, err
	}
	api := (*webrtc.API)(nil)
	if cfg.NewAPI != nil {
		if api, err = cfg.NewAPI(se); err != nil {
			return nil, fmt.Errorf("transceiver: NewAPI: %w", err)
		}
		if api == nil {
			return nil, errors.New("transceiver: NewAPI returned nil")
		}
	} else {
		api = webrtc.NewAPI(webrtc.WithMediaEngine(e.media), webrtc.WithInterceptorRegistry(e.registry), webrtc.WithSettingEngine(se))
	}
	return api.NewPeerConnection(webrtc.Configuration{
		Certificates: []webrtc.Certificate{cert},
		BundlePolicy: webrtc.BundlePolicyMaxBundle,
		SDPSemantics: webrtc.SDPSemanticsUnifiedPlan,
	})
}

// isolatedNet is the network that Pion sees: none. A session opens no socket,
// resolves no name and lists no interface, whatever an offer says.
type isolatedNet struct{}

var errIsolated = errors.New("transceiver: a session has no network of its own")

func (isolatedNet) ListenPacket(string, string) (net.PacketConn, error) { return nil, errIsolated }
func (isolatedNet) ListenUDP(string, *net.UDPAddr) (transport.UDPConn, error) {
	return nil, errIsolated
}
func (isolatedNet) ListenTCP(string, *net.TCPAddr) (transport.TCPListener, error) {
	return nil, errIsolated
}
func (isolatedNet) Dial(string, string) (net.Conn, error) { return nil, errIsolated }
func (isolatedNet) DialUDP(string, *net.UDPAddr, *net.UDPAddr) (transport.UDPConn, error) {
	return nil, errIsolated
}
func (isolatedNet) DialTCP(string, *net.TCPAddr, *net.TCPAddr) (transport.TCPConn, error) {
	return nil, errIsolated
}
func (isolatedNet) ResolveIPAddr(string, string) (*net.IPAddr, error)    { return nil, errIsolated }
func (isolatedNet) ResolveUDPAddr(string, string) (*net.UDPAddr, error)  { return nil, errIsolated }
func (isolatedNet) ResolveTCPAddr(string, string) (*net.TCPAddr, error)  { return nil, errIsolated }
func (isolatedNet) Interfaces() ([]*transport.Interface, error)          { return nil, nil }
func (isolatedNet) InterfaceByIndex(int) (*transport.Interface, error)   { return nil, errIsolated }
func (isolatedNet) InterfaceByName(string) (*transport.Interface, error) { return nil, errIsolated }
func (isolatedNet) CreateDialer(*net.Dialer) transport.Dialer            { return isolatedDialer{} }
func (isolatedNet) CreateListenConfig(*net.ListenConfig) transport.ListenConfig {
	return isolatedListen{}
}

type isolatedDialer struct{}

func (isolatedDialer) Dial(string, string) (net.Conn, error) { return nil, errIsolated }

type isolatedListen struct{}

func (isolatedListen) Listen(context.Context, string, string) (net.Listener, error) {
	return nil, errIsolated
}

func (isolatedListen) ListenPacket(context.Context, string, string) (net.PacketConn, error) {
	return nil, errIsolated
}

// pionLoggers sends Pion's warnings and errors to slog. What Pion calls a
// warning a stranger can often cause, so they are logged at debug level.
type pionLoggers struct {
	to     *slog.Logger
	scopes sync.Map // of *pionLogger, by scope: a session asks for two dozen
}

// NewLogger implements logging.LoggerFactory.
func (p *pionLoggers) NewLogger(scope string) logging.LeveledLogger {
	found, ok := p.scopes.Load(scope)
	if !ok {
		found, _ = p.scopes.LoadOrStore(scope, &pionLogger{to: p.to, scope: scope})
	}
	l, _ := found.(*pionLogger)
	return l
}

type pionLogger struct {
	to    *slog.Logger
	scope string
}

func (l *pionLogger) log(level slog.Level, format string, args []any) {
	if !l.to.Enabled(context.Background(), level) {
		return
	}
	msg := format
	if len(args) > 0 {
		msg = fmt.Sprintf(format, args...)
	}
	l.to.Log(context.Background(), level, msg, "pion", l.scope)
}

func (l *pionLogger) Trace(string)                  {}
func (l *pionLogger) Tracef(string, ...any)         {}
func (l *pionLogger) Debug(string)                  {}
func (l *pionLogger) Debugf(string, ...any)         {}
func (l *pionLogger) Info(string)                   {}
func (l *pionLogger) Infof(string, ...any)          {}
func (l *pionLogger) Warn(msg string)               { l.log(slog.LevelDebug, msg, nil) }
func (l *pionLogger) Warnf(format string, a ...any) { l.log(slog.LevelDebug, format, a) }
func (l *pionLogger) Error(msg string)              { l.log(slog.LevelWarn, msg, nil) }
func (l *pionLogger) Errorf(format string, a ...any) {
	l.log(slog.LevelWarn, format, a)
}
