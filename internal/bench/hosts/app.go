package hosts

import (
	"encoding/binary"
	"io"
	"time"

	"github.com/pion/rtp"
	"github.com/pion/webrtc/v4"
)

// App says what the application does. It is the same for every server.
type App struct {
	// Speak makes the server the first to send audio, as soon as it is
	// connected: what a voice agent does, and what set-up is measured with.
	// Otherwise it echoes.
	Speak bool
	// Detach reads data channels directly, if the server's settings detach them.
	Detach bool
	// ReadRTCP reads the client's reports, which interceptors live on.
	ReadRTCP bool
}

// Opus is the one codec of servers and callers.
var Opus = webrtc.RTPCodecCapability{
	MimeType: webrtc.MimeTypeOpus, ClockRate: 48000, Channels: 2, SDPFmtpLine: "minptime=10;useinbandfec=1",
}

// attach adds the application to a PeerConnection that has its offer. ended is
// closed with the session.
func (a App) attach(pc *webrtc.PeerConnection, ended <-chan struct{}, connected func()) error {
	pc.OnDataChannel(a.echoMessages)
	out, err := webrtc.NewTrackLocalStaticRTP(Opus, "audio", "bench")
	if err != nil {
		return err
	}
	sender, err := pc.AddTrack(out)
	if err != nil {
		return err
	}
	if a.ReadRTCP {
		go func() {
			for buf := make([]byte, 1500); ; {
				if _, _, err := sender.Read(buf); err != nil {
					return
				}
			}
		}()
	}
	pc.OnTrack(func(in *webrtc.TrackRemote, _ *webrtc.RTPReceiver) {
		for {
			p, _, err := in.ReadRTP()
			if err != nil {
				return
			}
			if a.Speak {
				continue
			}
			p.Extension, p.Extensions = false, nil // numbered per direction
			if out.WriteRTP(p) != nil {
				return
			}
		}
	})
	up := make(chan struct{}, 1)
	pc.OnConnectionStateChange(func(s webrtc.PeerConnectionState) {
		if s != webrtc.PeerConnectionStateConnected {
			return
		}
		connected()
		select {
		case up <- struct{}{}:
		default:
		}
	})
	if a.Speak {
		go speak(out, up, ended)
	}
	return nil
}

func (a App) echoMessages(dc *webrtc.DataChannel) {
	if !a.Detach {
		dc.OnMessage(func(m webrtc.DataChannelMessage) {
			_ = dc.Send(m.Data) // an error means that the session has ended
		})
		return
	}
	dc.OnOpen(func() {
		raw, err := dc.Detach()
		if err != nil {
			return
		}
		go echo(raw)
	})
}

// detachedMessage is the longest message that is echoed. A session keeps a
// buffer of it while it is idle.
const detachedMessage = 2048

func echo(raw io.ReadWriteCloser) {
	for buf := make([]byte, detachedMessage); ; {
		n, err := raw.Read(buf)
		if err != nil {
			return
		}
		if _, err := raw.Write(buf[:n]); err != nil {
			return
		}
	}
}

const (
	packetInterval = 20 * time.Millisecond
	// eager and eagerInterval: Pion binds a track to SRTP a moment after it
	// says that it is connected, and drops what comes before.
	eager         = 60 * time.Millisecond
	eagerInterval = 2 * time.Millisecond
	// PacketBytes is an Opus packet of about 24 kbit/s in 20 ms.
	PacketBytes = 60
)

// speak sends audio from the moment of the connection on.
func speak(out *webrtc.TrackLocalStaticRTP, up, ended <-chan struct{}) {
	select {
	case <-up:
	case <-ended:
		return
	}
	begin := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for n := uint16(0); ; n++ {
		select {
		case <-timer.C:
		case <-ended:
			return
		}
		if out.WriteRTP(Packet(n)) != nil {
			return
		}
		if time.Since(begin) < eager {
			timer.Reset(eagerInterval)
		} else {
			timer.Reset(packetInterval)
		}
	}
}

// Packet makes audio packet number n. Pion fills in SSRC and payload type.
func Packet(n uint16) *rtp.Packet {
	payload := make([]byte, PacketBytes)
	payload[0] = 0x78 // RFC 6716 section 3.1: CELT, full band, 20 ms, mono
	binary.BigEndian.PutUint16(payload[1:], n)
	return &rtp.Packet{
		Header:  rtp.Header{Version: 2, PayloadType: 111, SequenceNumber: n, Timestamp: uint32(n) * 960},
		Payload: payload,
	}
}
