package relay

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/usher-rtc/usher/internal/config"
)

// heir is a relay that is to take over from a running one: New has its sockets,
// Serve gets its flows.
type heir struct {
	line    *line
	offer   offer
	token   *os.File // who takes it serves, see handoverVersion
	sockets *sockets

	mu   sync.Mutex
	over bool // the conversation
}

// sockets are descriptors that another process has opened, by worker.
type sockets struct {
	ingress []map[uint16]*os.File // by ingress id
	trunk   []*os.File
}

func newSockets(workers int) *sockets {
	s := &sockets{ingress: make([]map[uint16]*os.File, workers), trunk: make([]*os.File, workers)}
	for i := range s.ingress {
		s.ingress[i] = make(map[uint16]*os.File)
	}
	return s
}

// ingressOf and trunkOf return nil for a socket that is to be opened.
func (s *sockets) ingressOf(worker int, id uint16) *os.File {
	if s == nil {
		return nil
	}
	return s.ingress[worker][id]
}

func (s *sockets) trunkOf(worker int) *os.File {
	if s == nil {
		return nil
	}
	return s.trunk[worker]
}

func (s *sockets) all() (files []*os.File) {
	for _, m := range s.ingress {
		for _, f := range m {
			files = append(files, f)
		}
	}
	for _, f := range s.trunk {
		if f != nil {
			files = append(files, f)
		}
	}
	return files
}

// findPredecessor connects to the relay that listens at cfg.Handover and gets its
// sockets. Both are nil if nobody listens there.
func findPredecessor(cfg *Config) (*heir, error) {
	d := net.Dialer{Timeout: handoverGreeting}
	c, err := d.Dial(handoverNetwork, cfg.Handover)
	if err != nil {
		if notListening(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("relay: Handover: %w", err)
	}
	conn := c.(*net.UnixConn)
	_ = conn.SetDeadline(time.Now().Add(handoverGreeting))
	h := &heir{line: newLine(conn), sockets: newSockets(cfg.Workers)}
	if err := h.greet(cfg); err != nil {
		closeFiles(append(h.sockets.all(), h.token))
		_ = conn.Close()
		var ce *ConfigError
		if errors.As(err, &ce) {
			return nil, ce
		}
		return nil, fmt.Errorf("relay: the process that listens at %s does not hand over: %w", cfg.Handover, err)
	}
	return h, nil
}

func (h *heir) greet(cfg *Config) error {
	if err := checkPeer(h.line.conn); err != nil {
		return err
	}
	if err := h.line.sendJSON(msgHello, shapeOf(cfg, cfg.Ingresses)); err != nil {
		return err
	}
	if err := h.expectOffer(); err != nil {
		return err
	}
	for range cfg.Workers {
		for last := false; !last; {
			var err error
			if last, err = h.receiveSockets(cfg.Workers); err != nil {
				return err
			}
		}
	}
	for i := range cfg.Workers {
		for _, in := range cfg.Ingresses {
			if h.sockets.ingress[i][in.ID] == nil {
				return fmt.Errorf("%w: worker %d has no socket of ingress %d", errMalformed, i, in.ID)
			}
		}
		if h.sockets.trunk[i] == nil || len(h.sockets.ingress[i]) != len(cfg.Ingresses) {
			return fmt.Errorf("%w: worker %d has too few or too many sockets", errMalformed, i)
		}
	}
	return h.sameSockets(cfg.Sockets)
}

func (h *heir) expectOffer() error {
	t, body, files, err := h.line.receive()
	if t == msgOffer && len(files) == 1 {
		h.token, files = files[0], nil
	}
	closeFiles(files)
	switch {
	case err != nil:
		return err
	case t == msgRefuse:
		var r refusal
		if err := unmarshal(body, &r); err != nil {
			return err
		}
		return &ConfigError{Field: r.Field, Problem: r.Problem}
	case t != msgOffer:
		return fmt.Errorf("%w %d", errUnexpected, t)
	case h.token == nil:
		return fmt.Errorf("%w: an offer without a token", errMalformed)
	}
	if err := unmarshal(body, &h.offer); err != nil {
		return err
	}
	if h.offer.Ran < 0 {
		return errMalformed
	}
	return nil
}

// receiveSockets receives one message with descriptors, and reports whether it was
// the last of its worker.
func (h *heir) receiveSockets(workers int) (last bool, err error) {
	t, body, files, err := h.line.receive()
	if err != nil {
		return false, err
	}
	var list socketList
	if err = unmarshal(body, &list); err == nil {
		n := len(list.Ingresses)
		if list.Trunk {
			n++
		}
		if t != msgSockets || n != len(files) || n == 0 || list.Worker < 0 || list.Worker >= workers {
			err = fmt.Errorf("%w %d with %d descriptors", errUnexpected, t, len(files))
		}
	}
	if err != nil {
		closeFiles(files)
		return false, err
	}
	mine := h.sockets.ingress[list.Worker]
	for i, f := range files {
		switch {
		case i < len(list.Ingresses) && mine[list.Ingresses[i]] == nil:
			mine[list.Ingresses[i]] = f
		case i == len(list.Ingresses) && h.sockets.trunk[list.Worker] == nil:
			h.sockets.trunk[list.Worker] = f
		default:
			closeFiles(files[i:])
			return false, fmt.Errorf("%w: worker %d has a socket twice", errMalformed, list.Worker)
		}
	}
	return list.Trunk, nil
}

// sameSockets checks that sockets which this process was started with are among
// those of the predecessor: another one at an ingress would get a share of the
// clients, and nobody would read it.
func (h *heir) sameSockets(given []Socket) error {
	if len(given) == 0 {
		return nil
	}
	known := make(map[uint64]bool)
	for _, f := range h.sockets.all() {
		id, err := socketID(f)
		if err != nil {
			return err
		}
		known[id] = true
	}
	for i, s := range given {
		id, err := socketID(s.File)
		if err != nil {
			return err
		}
		if !known[id] {
			return config.Errorf(fmt.Sprintf("Sockets[%d]", i), "is not one of the sockets of the relay to take over from, and would get a share of its clients")
		}
	}
	return nil
}

// close ends the conversation. The predecessor goes on, unless it was told that
// this process serves.
func (h *heir) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	_ = h.line.conn.Close()
	_ = h.token.Close()
}

// errTooLate means that the predecessor has taken the token and goes on.
var errTooLate = errors.New("this process took too long, and the running relay goes on")

// begin takes the token, and with it the sockets: from here on this process serves,
// whatever happens. The path leads to it, and the predecessor is told. The error is
// ErrServerClosed if close came first, or errTooLate: then the predecessor goes on.
func (h *heir) begin(s *Server) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.over:
		return ErrServerClosed
	case !takeToken(h.token):
		return errTooLate
	}
	h.over = true
	if err := s.handover.publish(); err != nil {
		s.log.Warn("no successor will find this relay", "error", err)
	}
	_ = h.line.send(msgServing, nil) // if it is dead, there is nobody else to serve
	_ = h.line.conn.Close()
	return nil
}

// takeOver gets the predecessor's flows. After nil the sockets are this process's
// alone.
func (h *heir) takeOver(s *Server) error {
	defer func() { _ = h.token.Close() }()
	in := &snapshotReader{srv: s, now: time.Now()}
	err := h.receive(in)
	if gone(err) && h.begin(s) == nil {
		in.alone()
		s.log.Warn("the running relay ended in the middle of a hand-over; this one goes on in its place", "flows", in.sum.Flows)
		return nil
	}
	if err == nil {
		err = h.begin(s)
	}
	if err == nil {
		s.log.Info("taken over", "flows", in.sum.Flows, "peers", in.sum.Peers, "packets", in.sum.Packets, "forbidden_flows", in.forbidden)
		return nil
	}
	h.line.abort(err)
	h.close()
	var other *abortedError
	if !errors.As(err, &other) {
		return fmt.Errorf("relay: hand-over failed, the running relay goes on: %w", err)
	}
	return fmt.Errorf("relay: hand-over failed: %w", err)
}

// receive gets as far as the commit.
func (h *heir) receive(in *snapshotReader) error {
	conn := h.line.conn
	_ = conn.SetDeadline(time.Now().Add(handoverWait)) // the running relay knows what is too long
	if err := h.line.send(msgTake, nil); err != nil {
		return err
	}
	for {
		t, body, files, err := h.line.receive()
		closeFiles(files)
		if err != nil {
			return err
		}
		if t != msgEnd {
			if err := in.take(t, body); err != nil {
				return err
			}
			continue
		}
		var want totals
		if err := unmarshal(body, &want); err != nil {
			return err
		}
		if err := in.finish(want); err != nil {
			return err
		}
		break
	}
	if err := h.line.send(msgReady, nil); err != nil {
		return err
	}
	return h.line.expect(msgCommit, nil)
}

// checkBound returns an error if an inherited socket is not at the address that
// it is for.
func checkBound(field string, wanted, bound netip.AddrPort) error {
	if !sameAddr(wanted, bound) {
		return config.Errorf(field, "the inherited socket is bound to %v, not to %v", bound, wanted)
	}
	return nil
}
