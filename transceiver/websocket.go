package transceiver

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
)

const (
	// firstOffer is how long a socket may be open without a call, whatever is sent.
	firstOffer = 10 * time.Second
	// socketWrite is how long one message may take to leave.
	socketWrite = 10 * time.Second
	// socketClose is how long a client may take to agree to the end.
	socketClose = time.Second
	// socketQueue bounds the messages that wait for the client to read.
	socketQueue = 16

	statusReplaced = websocket.StatusCode(4001)
)

// socket is a client's WebSocket. One goroutine reads and handles what the
// client sends, one message after the other, which is what holds back a client
// that is too fast; one writes; one keeps the connection alive.
type socket struct {
	g    *signalling
	r    *http.Request
	conn *websocket.Conn

	session *Session // of the reader; nil before the first offer

	ctx      context.Context // done when the connection is of no more use
	cancel   context.CancelFunc
	out      chan []byte
	attached chan *Session // to the writer, once
	late     chan struct{} // to the writer, once: no offer came
	replaced chan struct{}
	once     sync.Once
}

// upgrade serves a WebSocket until it ends: for a new call, or at a Location
// for a call that there is.
func (g *signalling) upgrade(w http.ResponseWriter, r *http.Request) {
	s := g.host.resource(r.URL)
	if s == nil && g.host.isLocation(r.URL) {
		problemNoCall().write(w)
		return
	}
	if p := upgradeProblem(w, r); p != nil {
		p.write(w)
		return
	}
	leave, err := g.host.enterSocket(s == nil)
	if err != nil {
		g.problemOf(err).write(w)
		return
	}
	defer leave()
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		Subprotocols:       []string{subprotocol},
		InsecureSkipVerify: true, // the origin is checked already, by AllowedOrigins
	})
	if err != nil {
		return // and the client has its answer
	}
	conn.SetReadLimit(g.cfg.MaxBody)
	k := &socket{
		g: g, r: r, conn: conn,
		out: make(chan []byte, socketQueue), attached: make(chan *Session, 1),
		late: make(chan struct{}, 1), replaced: make(chan struct{}),
	}
	k.ctx, k.cancel = context.WithCancel(context.WithoutCancel(r.Context()))
	var others sync.WaitGroup
	others.Go(k.write)
	others.Go(k.keepAlive)
	defer func() { // also when the application panics: the server has let go of the connection
		k.cancel()
		if k.session != nil {
			k.session.signals.detach(k)
		}
		others.Wait()
		_ = conn.CloseNow()
	}()
	if s != nil {
		k.attach(s)
	}
	k.read()
}

// isUpgrade tells a request for a WebSocket.
func isUpgrade(r *http.Request) bool {
	return r.Method == http.MethodGet && slices.ContainsFunc(tokens(r, "Upgrade"), func(t string) bool {
		return strings.EqualFold(t, "websocket")
	})
}

// upgradeProblem finds what websocket.Accept would refuse, to say it as a problem.
func upgradeProblem(w http.ResponseWriter, r *http.Request) *problem {
	switch {
	case r.Header.Get("Sec-WebSocket-Version") != "13":
		w.Header().Set("Sec-WebSocket-Version", "13")
		return newProblem(http.StatusUpgradeRequired, "websocket", "Upgrade required", "use version 13 of the WebSocket protocol")
	case r.Header.Get("Sec-WebSocket-Key") == "":
		return problemBad("a WebSocket needs Sec-WebSocket-Key")
	case !slices.Contains(tokens(r, "Sec-WebSocket-Protocol"), subprotocol):
		return problemBad("the WebSocket has to offer the subprotocol " + subprotocol)
	}
	return nil
}

func tokens(r *http.Request, header string) (out []string) {
	for _, line := range r.Header.Values(header) {
		for t := range strings.SplitSeq(line, ",") {
			out = append(out, strings.TrimSpace(t))
		}
	}
	return out
}

// attach makes this the session's socket.
func (k *socket) attach(s *Session) {
	k.session = s
	k.attached <- s
	s.signals.attach(k)
}

// replace ends the socket because the session has a newer one.
func (k *socket) replace() { k.once.Do(func() { close(k.replaced) }) }

// send puts a message into the queue. A client that does not read loses its
// socket: false.
func (k *socket) send(m *message) bool {
	select {
	case k.out <- m.encode():
		return true
	default:
		k.cancel()
		return false
	}
}

// write is the goroutine that writes, and ends the socket in good order.
func (k *socket) write() {
	var ended <-chan struct{}
	var session *Session
	for {
		select {
		case b := <-k.out:
			if k.put(b) != nil {
				return
			}
		case session = <-k.attached:
			ended = session.ctx.Done()
		case <-ended:
			for len(k.out) > 0 {
				if k.put(<-k.out) != nil {
					return
				}
			}
			if m := session.endMessage(); k.put(m.encode()) == nil {
				k.close(websocket.StatusNormalClosure, m.Reason)
			}
			return
		case <-k.replaced:
			k.close(statusReplaced, "the call has another socket now")
			return
		case <-k.late:
			k.close(websocket.StatusPolicyViolation, "no offer came")
			return
		case <-k.g.host.stop:
			k.close(websocket.StatusGoingAway, "the host is closed")
			return
		case <-k.ctx.Done():
			return
		}
	}
}

// put writes one message. After an error the connection is of no more use.
func (k *socket) put(b []byte) error {
	ctx, cancel := context.WithTimeout(k.ctx, socketWrite)
	defer cancel()
	err := k.conn.Write(ctx, websocket.MessageText, b)
	if err != nil {
		k.cancel()
	}
	return err
}

// close ends the connection and gives the client a moment to agree.
func (k *socket) close(code websocket.StatusCode, reason string) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = k.conn.Close(code, reason)
	}()
	limit := time.NewTimer(socketClose)
	defer limit.Stop()
	select {
	case <-closed:
	case <-limit.C:
		k.cancel()
		<-closed
	}
}

// keepAlive is the goroutine that finds out that the client has gone, and keeps
// proxies between from thinking so.
func (k *socket) keepAlive() {
	tick := time.NewTicker(k.g.cfg.KeepAlive)
	defer tick.Stop()
	for {
		select {
		case <-k.ctx.Done():
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(k.ctx, k.g.cfg.KeepAlive)
		err := k.conn.Ping(ctx)
		cancel()
		if err != nil {
			k.cancel()
			return
		}
	}
}

// read handles what the client sends, until the connection ends.
func (k *socket) read() {
	for end := time.Now().Add(k.g.firstOffer); ; {
		var first *time.Timer
		if k.session == nil {
			first = time.AfterFunc(time.Until(end), func() {
				select {
				case k.late <- struct{}{}:
				default: // has been said
				}
			})
		}
		kind, b, err := k.conn.Read(k.ctx)
		if first != nil {
			first.Stop()
		}
		if err != nil {
			return
		}
		m, p := parseMessage(kind == websocket.MessageText, b)
		if p == nil {
			p = k.handle(&m)
		}
		if p != nil && !k.send(&message{Type: typeError, ID: min(m.ID, maxID), Problem: p}) {
			return
		}
	}
}

// handle does what a message asks for.
func (k *socket) handle(m *message) *problem {
	s := k.session
	if s == nil {
		switch m.Type {
		case typeOffer:
			return k.call(m)
		case typeCandidate:
			return nil
		default:
			return newProblem(http.StatusConflict, "no-call", "No such call", "the first message has to be an offer")
		}
	}
	ctx := k.r.Context()
	switch m.Type {
	case typeOffer:
		if p := k.g.limited(k.r); p != nil {
			k.send(&message{Type: typeError, ID: m.ID, Problem: p})
			s.withdraw()
			return nil
		}
		_, _ = s.takeOffer(ctx, m.SDP, nil, func(answer string, err error) {
			if err != nil {
				k.send(&message{Type: typeError, ID: m.ID, Problem: k.g.problemOf(err)})
				return
			}
			k.send(&message{Type: typeAnswer, ID: m.ID, SDP: answer})
		})
	case typeAnswer:
		if err := s.setAnswer(ctx, m.ID, m.SDP); err != nil {
			return k.g.problemOf(err)
		}
	case typeRefuse:
		s.refuse(m.ID, m.Reason)
	case typeEvent:
		if k.g.cfg.OnEvent == nil {
			return newProblem(http.StatusUnprocessableEntity, "no-events", "Events are not taken", "the server takes no events over the WebSocket: use a data channel")
		}
		k.event(s, m)
	case typeEnd:
		s.endByClient(m.Reason)
	case typeCandidate: // where the client is, its checks say better
	}
	return nil
}

func (k *socket) event(s *Session, m *message) {
	defer s.Recover()
	k.g.cfg.OnEvent(s, m.Event)
}

// call makes the session of the first offer.
func (k *socket) call(m *message) *problem {
	if p := k.g.limited(k.r); p != nil {
		return p
	}
	s, answer, p := k.g.accept(k.r, m.SDP, m.Session)
	if p != nil {
		return p
	}
	// Before the socket is the session's, so that nothing comes before the answer.
	k.send(&message{Type: typeAnswer, ID: m.ID, SDP: answer, Location: s.Location(k.r.URL.Path)})
	k.attach(s)
	return nil
}

// refuse voids the Host's offer because the client says so.
func (s *Session) refuse(id uint64, reason string) {
	s.negotiation.Lock()
	defer s.negotiation.Unlock()
	if p := s.pending; p != nil && p.id == id {
		s.pending = nil
		s.drop(p)
		err := ErrRefused
		if reason = oneLine(reason); reason != "" {
			err = errors.Join(ErrRefused, errors.New(reason))
		}
		p.answered <- err
	}
}

// endByClient ends the session as the client asked, for the reason it gave.
func (s *Session) endByClient(reason string) {
	var cause error
	if reason = oneLine(reason); reason != "" {
		cause = errors.New(reason)
	}
	s.finish(ReasonClientClosed, cause)
}
