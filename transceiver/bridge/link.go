package bridge

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/coder/websocket"
)

// link is one connection to a service, on the transceiver's side.
type link struct {
	b    *Bridge
	sock *socket
	gone chan struct{} // closed when it is used no more

	codec   Codec   // nil: Opus
	framer  *framer // of codec; used under the playout's lock
	decoder Decoder // of codec; used by the audio pump
	pcm     []byte  // scratch of the audio pump

	framesSent, eventsSent atomic.Uint64
	keepalive              keepalive

	once  sync.Once
	cause atomic.Pointer[error]
}

// handshake sends start and waits for ready.
func (l *link) handshake(last error) error {
	b := l.b
	m := start{Type: typeStart, Token: b.token, Codecs: b.cfg.names(), WindowMS: millis(b.cfg.Window)}
	b.session.describe(&m)
	b.mu.Lock()
	m.Connection = b.connections + 1
	b.mu.Unlock()
	if m.Connection > 1 {
		m.Resume = b.playout.resume(reasonOf(last))
	}
	limit := time.AfterFunc(b.cfg.DialTimeout, func() {
		l.fail(violation("no ready message within %v", b.cfg.DialTimeout))
	})
	defer limit.Stop()
	if err := l.sock.writeJSON(&m); err != nil {
		return l.failure(err)
	}
	text, message, err := l.sock.read()
	if err != nil {
		return l.failure(err)
	}
	var r fromService
	if !text {
		return violation("a binary message before ready")
	}
	typ, err := parseText(message, &r, saysService)
	if err != nil {
		return err
	}
	switch typ {
	case typeReady:
	case typeEnd:
		return &EndError{Reason: r.Reason}
	default:
		return violation("%.60q instead of ready", message)
	}
	codec, ok := b.cfg.codec(r.Codec)
	if !ok {
		return violation("ready asks for the codec %.20q", r.Codec)
	}
	if codec == nil {
		return nil
	}
	l.codec = codec
	if l.framer, err = newFramer(codec); err != nil {
		return fmt.Errorf("bridge: encoder: %w", err)
	}
	if l.decoder, err = codec.NewDecoder(); err != nil {
		return fmt.Errorf("bridge: decoder: %w", err)
	}
	return nil
}

func saysService(typ string) bool {
	switch typ {
	case typeReady, typeInterrupt, typeMark, typeEnd:
		return true
	}
	return false
}

// serve reads what the service says until the connection ends.
func (l *link) serve() error {
	for {
		text, message, err := l.sock.read()
		if err != nil {
			return l.failure(err)
		}
		if text {
			err = l.control(message)
		} else {
			err = l.binary(message)
		}
		if err != nil {
			return err
		}
	}
}

func (l *link) control(message []byte) error {
	var m fromService
	typ, err := parseText(message, &m, saysService)
	if err != nil {
		return err
	}
	switch typ {
	case typeInterrupt:
		l.b.playout.interrupt(l, m.ID)
	case typeMark:
		return l.b.playout.mark(l, m.ID)
	case typeEnd:
		return &EndError{Reason: m.Reason}
	case typeReady:
		return violation("ready twice")
	}
	return nil // of a later version
}

func (l *link) binary(message []byte) error {
	var h Header
	payload, ok := h.Parse(message)
	if !ok {
		return violation("a binary message of %d bytes without a valid header", len(message))
	}
	switch h.Kind {
	case KindAudio:
		l.b.framesFromService.Add(1)
		l.b.playout.play(l, &h, payload)
	case KindEventText, KindEventBinary:
		l.b.eventsFromService.Add(1)
		if h.Kind == KindEventText && !utf8.Valid(payload) {
			l.b.eventsDropped.Add(1)
			l.b.playout.drop(whatEvent, "not UTF-8", 0)
			return nil
		}
		l.b.down.send(h.Kind == KindEventText, payload)
	}
	return nil // of a later version
}

// fail ends the connection for a reason that is not in what was read. Only the
// first one counts.
func (l *link) fail(err error) {
	l.once.Do(func() {
		l.cause.Store(&err)
		_ = l.sock.raw.Close() // the reader returns
	})
}

// silent is fail for a service that does not read. Should it do so one day, it
// finds the reason behind the audio that it did not read in time.
func (l *link) silent() {
	l.once.Do(func() {
		err := ErrSilent
		l.cause.Store(&err)
		l.sock.close(websocket.StatusPolicyViolation, err.Error())
	})
}

// failure returns why reading failed.
func (l *link) failure(err error) error {
	if errors.Is(err, websocket.ErrMessageTooBig) { // also when a write noticed the end of it first
		return violation("a message of more than %d bytes", MaxMessage)
	}
	if cause := l.cause.Load(); cause != nil {
		return *cause
	}
	switch code := websocket.CloseStatus(err); code {
	case -1:
		return err
	case websocket.StatusServiceRestart, websocket.StatusGoingAway:
		return fmt.Errorf("%w: %w", ErrRestart, err)
	default:
		return err
	}
}

// close ends the connection and says why. The service may have done so already.
func (l *link) close(err error) {
	code, reason := websocket.StatusNormalClosure, ""
	if errors.Is(err, ErrProtocol) {
		code, reason = websocket.StatusProtocolError, closeReason(err)
	}
	l.sock.close(code, reason)
	close(l.gone)
}

// closeReason fits an error into a close frame, which takes 123 bytes of UTF-8.
func closeReason(err error) string {
	text := err.Error()
	return strings.ToValidUTF8(text[:min(len(text), 120)], "")
}

// goodbye tells the service that the session is over. The service closes the
// connection.
func (l *link) goodbye() {
	reason := "released"
	if l.b.session.ctx.Err() != nil {
		reason = l.b.session.reason()
	}
	limit := time.AfterFunc(closeLimit, func() { l.fail(context.Canceled) })
	defer limit.Stop()
	if l.sock.writeJSON(&end{Type: typeEnd, Reason: reason}) == nil {
		<-l.gone // serve has seen the end, or the limit
	}
}

// reasonOf says in one short line why a connection ended.
func reasonOf(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, ErrSilent):
		return missedNotReading
	case errors.Is(err, ErrProtocol):
		return err.Error()
	case errors.Is(err, ErrRestart):
		return "service restart"
	}
	if code := websocket.CloseStatus(err); code != -1 {
		return fmt.Sprintf("closed with status %d", code)
	}
	return "connection lost"
}

// keepalive pings a service. A pong comes back when the service has read
// everything that was sent before the ping: it confirms that, and it is how a
// service that does not read is found out, which TCP alone would hide behind
// megabytes of buffers.
type keepalive struct {
	mu     sync.Mutex
	timer  *time.Timer
	ended  bool
	sentAt atomic.Int64 // uptime of the ping that has no pong yet, 0 for none

	confirmedFrames, confirmedEvents uint64
}

func (k *keepalive) begin(l *link) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.timer = time.AfterFunc(l.b.cfg.KeepAlive, func() { k.ping(l) })
}

func (k *keepalive) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended = true
	k.timer.Stop()
}

// ping runs on the timer's goroutine.
func (k *keepalive) ping(l *link) {
	frames, events := l.framesSent.Load(), l.eventsSent.Load()
	k.sentAt.Store(uptime())
	ctx, cancel := context.WithTimeout(context.Background(), l.b.cfg.SilenceTimeout)
	defer cancel()
	err := l.sock.conn.Ping(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended {
		return
	}
	if err != nil {
		if ctx.Err() != nil {
			l.silent()
			return
		}
		l.fail(err)
		return
	}
	k.confirmedFrames, k.confirmedEvents = frames, events
	k.timer.Reset(l.b.cfg.KeepAlive)
}

// pong runs on the reader's goroutine.
func (l *link) pong() {
	if sent := l.keepalive.sentAt.Swap(0); sent != 0 {
		l.b.roundTrip.Store(max(uptime()-sent, 1))
	}
}

// stalled reports whether a pong is overdue.
func (l *link) stalled() bool {
	sent := l.keepalive.sentAt.Load()
	return sent != 0 && uptime()-sent > int64(l.b.cfg.KeepAlive)
}

// unconfirmed returns how much was sent that no pong confirmed.
func (l *link) unconfirmed() (frames, events uint64) {
	l.keepalive.mu.Lock()
	defer l.keepalive.mu.Unlock()
	return l.framesSent.Load() - l.keepalive.confirmedFrames, l.eventsSent.Load() - l.keepalive.confirmedEvents
}
