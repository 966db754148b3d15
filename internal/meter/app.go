package meter

import (
	"context"
	"encoding/binary"
	"encoding/gob"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/pion/rtp"
	"github.com/pion/webrtc/v4"

	"github.com/usher-rtc/usher/transceiver"
)

// App is the application of a transceiver's sessions. Make it with NewApp.
type App struct {
	pacer *Pacer
	quiet atomic.Bool

	mu    sync.Mutex
	calls map[*call]struct{}
}

// call is one session.
type call struct {
	session        *transceiver.Session
	sent, received Log
	number         uint32 // of the next packet; only the pacer's goroutine uses it
}

// Report is what GET answers, in the gob encoding.
type Report struct {
	Calls []CallReport
}

// CallReport is one call as the transceiver sees it.
type CallReport struct {
	Session        uint32 // of the session's ufrag.Route
	Sent, Received []Event
}

// NewApp makes one. Close it after the sessions have ended.
func NewApp() *App {
	return &App{pacer: NewPacer(), calls: make(map[*call]struct{})}
}

// Close stops sending.
func (a *App) Close() { a.pacer.Close() }

// codec is what every browser has.
var codec = webrtc.RTPCodecCapability{MimeType: webrtc.MimeTypeOpus, ClockRate: 48000, Channels: 2}

// samples is an Interval at Opus' clock rate (RFC 7587 section 4.1).
const samples = 960

// PayloadBytes is the size of an Opus packet of about 24 kbit/s in 20 ms.
const PayloadBytes = 60

// Payload makes an Opus packet that decoders take (RFC 6716 section 3.1: CELT,
// full band, 20 ms, mono). Its content is a number.
func Payload(number uint32) []byte {
	b := make([]byte, PayloadBytes)
	b[0] = 0x78
	binary.BigEndian.PutUint32(b[1:], number)
	return b
}

// Attach makes a session one of the application's. It is a
// transceiver.Config.OnSession.
func (a *App) Attach(s *transceiver.Session) error {
	track, err := webrtc.NewTrackLocalStaticRTP(codec, "audio", "meter")
	if err != nil {
		return err
	}
	if _, err := s.PeerConnection().AddTrack(track); err != nil {
		return fmt.Errorf("add the track: %w", err)
	}
	c := &call{session: s}
	s.OnTrack(func(remote *webrtc.TrackRemote, _ *webrtc.RTPReceiver) {
		var numbers Unwrapper
		for buf := make([]byte, 1500); ; {
			n, _, err := remote.Read(buf)
			if err != nil {
				return
			}
			at := Now()
			if n >= 4 {
				c.received.Add(numbers.Next(binary.BigEndian.Uint16(buf[2:])), at)
			}
		}
	})
	s.Go(func(ctx context.Context) {
		a.mu.Lock()
		a.calls[c] = struct{}{}
		a.mu.Unlock()
		defer func() {
			a.mu.Lock()
			delete(a.calls, c)
			a.mu.Unlock()
		}()
		select {
		case <-s.Connected():
		case <-ctx.Done():
			return
		}
		c.number = 1 << 16 // as Unwrapper's
		remove := a.pacer.Add(func() {
			if !a.quiet.Load() {
				c.send(track)
			}
		})
		<-ctx.Done()
		remove()
	})
	return nil
}

func (c *call) send(track *webrtc.TrackLocalStaticRTP) {
	n := c.number
	c.number++
	c.sent.Add(n, Now())
	_ = track.WriteRTP(&rtp.Packet{ // what the session does not take is lost, and counted as that
		Header:  rtp.Header{Version: 2, SequenceNumber: uint16(n), Timestamp: n * samples},
		Payload: Payload(n),
	})
}

// ServeHTTP serves GET, a Report of what happened at or after ?since=, a time of
// Now, and PUT with a body of true or false, which makes all calls speak or be
// silent. They speak at first.
func (a *App) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodPut:
		body, err := io.ReadAll(io.LimitReader(r.Body, 16))
		speak, parseErr := strconv.ParseBool(strings.TrimSpace(string(body)))
		if err != nil || parseErr != nil {
			http.Error(w, "the body must be true or false", http.StatusBadRequest)
			return
		}
		a.quiet.Store(!speak)
		w.WriteHeader(http.StatusNoContent)
	case http.MethodGet:
		since, err := strconv.ParseInt(r.URL.Query().Get("since"), 10, 64)
		if err != nil {
			http.Error(w, "since must be a number", http.StatusBadRequest)
			return
		}
		_ = gob.NewEncoder(w).Encode(a.report(since)) // whoever asked has gone if this fails
	default:
		w.Header().Set("Allow", "GET, PUT")
		http.Error(w, "GET or PUT", http.StatusMethodNotAllowed)
	}
}

func (a *App) report(since int64) (r Report) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for c := range a.calls {
		r.Calls = append(r.Calls, CallReport{
			Session: c.session.Route().Session, Sent: c.sent.Since(since), Received: c.received.Since(since),
		})
	}
	return r
}
