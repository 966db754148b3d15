package relay

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// ErrHandedOver is what [Server.Serve] returns when a successor has taken the
// sockets and flows over, see [Config].Handover. It wraps ErrServerClosed: nothing
// is left to do but to end the process.
var ErrHandedOver = fmt.Errorf("relay: handed over to another process: %w", ErrServerClosed)

// handover is where a running relay waits for its successor.
type handover struct {
	srv  *Server
	mu   sync.Mutex // guards path, listener and info
	path string
	// listener is another one after a successor has taken the path and failed.
	listener *net.UnixListener
	info     fs.FileInfo   // of the socket, to remove no other
	busy     atomic.Bool   // a successor has the sockets
	left     atomic.Bool   // the server closes, and a successor may serve in its place
	most     time.Duration // handoverMost
	work     sync.WaitGroup
	closing  context.Context
	cancel   context.CancelFunc

	// took is how long the relay did not read when it handed over, for the log.
	took time.Duration
}

// bindHandover listens at a path that nobody knows yet; publish makes it the one
// that successors find.
func bindHandover(s *Server) (*handover, error) {
	path := s.cfg.Handover
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("relay: Handover: %s is there and not a socket", path)
	}
	h := &handover{srv: s, most: handoverMost}
	h.closing, h.cancel = context.WithCancel(context.Background())
	if err := h.listen(); err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

// listen opens a listener at a path of its own.
func (h *handover) listen() error {
	hidden := fmt.Sprintf("%s.%d", h.srv.cfg.Handover, os.Getpid())
	_ = os.Remove(hidden) // of a dead process with the same number
	l, err := net.ListenUnix(handoverNetwork, &net.UnixAddr{Name: hidden, Net: handoverNetwork})
	if err != nil {
		return fmt.Errorf("relay: Handover: %w", err)
	}
	l.SetUnlinkOnClose(false)
	h.path, h.listener = hidden, l
	if err = os.Chmod(hidden, 0o600); err == nil {
		h.info, err = os.Lstat(hidden)
	}
	if err != nil {
		return fmt.Errorf("relay: Handover: %w", err)
	}
	return nil
}

// publish gives the socket its path, in place of one that is there.
func (h *handover) publish() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.publishLocked()
}

func (h *handover) publishLocked() error {
	if err := os.Rename(h.path, h.srv.cfg.Handover); err != nil {
		return fmt.Errorf("relay: Handover: %w", err)
	}
	h.path = h.srv.cfg.Handover
	return nil
}

// mine reports whether the path leads to this relay's socket.
func (h *handover) mine() bool {
	info, err := os.Lstat(h.path)
	return err == nil && h.info != nil && os.SameFile(info, h.info)
}

// reclaim makes the path lead here again, when a successor has put its own socket
// there and did not get to serve: the next one would find nobody, and open sockets
// of its own.
func (h *handover) reclaim() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closing.Err() != nil || h.mine() {
		return
	}
	old := h.listener
	err := h.listen()
	if err == nil {
		err = h.publishLocked()
	}
	if h.listener != old {
		_ = old.Close()
		l := h.listener
		h.work.Go(func() { h.accept(l) })
	}
	if err != nil {
		h.srv.log.Warn("no successor will find this relay", "error", err)
	}
}

// close ends a hand-over that is not committed, and waits for it.
func (h *handover) close() {
	h.cancel()
	h.mu.Lock()
	if h.listener != nil {
		_ = h.listener.Close()
	}
	h.mu.Unlock()
	h.work.Wait()
	// A successor that has put its socket at the path and does not get to serve leaves
	// it there: the running relay puts its own in its place, maybe just now. So does
	// one that closes and leaves the clients to a successor, which does the same.
	if (h.srv.owner.Load() && !h.left.Load() || h.path != h.srv.cfg.Handover) && h.mine() {
		_ = os.Remove(h.path) // it may be gone by now
	}
}

// start lets successors in.
func (h *handover) start() {
	l := h.listener
	h.work.Go(func() { h.accept(l) })
}

// accept runs in a goroutine and serves successors, one at a time but for those
// that are refused.
func (h *handover) accept(l *net.UnixListener) {
	slots := make(chan struct{}, 4)
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(10 * time.Millisecond) // out of descriptors, most likely
			continue
		}
		slots <- struct{}{}
		h.work.Go(func() {
			defer func() { <-slots }()
			defer func() { _ = conn.Close() }()
			h.converse(conn)
		})
	}
}

// converse talks to what connected. Whatever that says or does, the relay goes on
// serving unless the conversation comes to its end.
func (h *handover) converse(conn *net.UnixConn) {
	// Close interrupts all waits until the commit.
	stop := context.AfterFunc(h.closing, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	l := newLine(conn)
	if err := checkPeer(conn); err != nil {
		h.log("refused", err)
		return
	}
	token, err := newToken()
	if err != nil {
		h.log("refused", err)
		return
	}
	defer func() { _ = token.Close() }()
	if err := h.offer(l, token); err != nil {
		h.log("refused", err)
		return
	}
	defer h.busy.Store(false)
	h.wait(conn, handoverWait)
	if err := l.expect(msgTake, nil); err != nil {
		h.giveUp(l, token, errors.New("nothing came after the sockets were handed over"))
		h.log("not begun", err)
		return
	}
	h.handOver(conn, l, token, stop)
}

// giveUp ends the conversation before the commit: this relay goes on. If it closes, it
// says nothing, and leaves the token to the successor, which then serves.
func (h *handover) giveUp(l *line, token *os.File, why error) {
	if h.closing.Err() != nil {
		h.left.Store(true)
		return
	}
	takeToken(token)
	l.abort(why)
}

func (h *handover) log(what string, err error) {
	if h.closing.Err() == nil {
		h.srv.log.Warn("hand-over "+what+"; this relay goes on", "error", err)
	}
}

// wait sets the deadline of what follows, unless the server closes.
func (h *handover) wait(conn *net.UnixConn, d time.Duration) {
	_ = conn.SetDeadline(time.Now().Add(d))
	if h.closing.Err() != nil {
		_ = conn.SetDeadline(time.Unix(1, 0))
	}
}

// offer checks that a successor fits and sends it the token and the sockets. After
// nil, busy is set.
func (h *handover) offer(l *line, token *os.File) error {
	s := h.srv
	h.wait(l.conn, handoverGreeting)
	var next shape
	if err := l.expect(msgHello, &next); err != nil {
		return err
	}
	refuse := func(field, problem string) error {
		err := l.sendJSON(msgRefuse, refusal{field, problem})
		return errors.Join(fmt.Errorf("%s: %s", field, problem), err)
	}
	running := shapeOf(&s.cfg, s.ingresses)
	if e := next.misfit(&running); e != nil {
		return refuse(e.Field, e.Problem)
	}
	switch {
	case s.draining.Load():
		return refuse("Handover", "the running relay drains")
	case !s.owner.Load():
		return refuse("Handover", "the running relay has handed over already")
	}
	if !h.busy.CompareAndSwap(false, true) {
		return refuse("Handover", "another hand-over is under way")
	}
	err := h.sendSockets(l, token)
	if err != nil {
		h.busy.Store(false)
	}
	return err
}

func (h *handover) sendSockets(l *line, token *os.File) error {
	s := h.srv
	if err := l.sendJSON(msgOffer, offer{Epoch: s.epoch, Ran: time.Since(s.start)}, token); err != nil {
		return err
	}
	for _, w := range s.workers {
		var files []*os.File
		list := socketList{Worker: w.index}
		flush := func() error {
			defer func() {
				closeFiles(files)
				files, list.Ingresses = nil, nil
			}()
			return l.sendJSON(msgSockets, list, files...)
		}
		for i, conn := range w.conns {
			f, err := conn.File()
			if err != nil {
				closeFiles(files)
				return err
			}
			files = append(files, f)
			if conn == w.trunkConn() {
				list.Trunk = true
			} else {
				list.Ingresses = append(list.Ingresses, s.ingresses[i].ID)
			}
			if len(files) == maxRights || list.Trunk {
				if err := flush(); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// pause keeps all workers in Idle, without a packet in their hands.
type pause struct {
	parked chan struct{} // one for each worker that has stopped
	resume chan struct{} // closed when they may go on
	over   bool          // the sockets belong to another process now
}

// park is called by Idle.
func (p *pause) park(w *worker) {
	p.parked <- struct{}{}
	<-p.resume
	if p.over {
		w.group.End()
		return
	}
	for _, peer := range w.peers {
		if !peer.unanswered.IsZero() {
			peer.unanswered = time.Now() // its answers may be in the queue
		}
	}
}

// handOver stops the workers, sends what they know, and ends the server if the
// successor says that it is ready for all of it. If not, they go on.
func (h *handover) handOver(conn *net.UnixConn, l *line, token *os.File, stop func() bool) {
	s := h.srv
	if s.draining.Load() {
		h.giveUp(l, token, errors.New("the running relay drains"))
		h.log("not begun", errors.New("this relay drains"))
		return
	}
	begin := time.Now()
	p := &pause{parked: make(chan struct{}, len(s.workers)), resume: make(chan struct{})}
	s.pausing.Store(p)
	defer func() {
		s.pausing.Store(nil)
		close(p.resume)
	}()
	for _, w := range s.workers {
		w.group.Wake()
	}
	step := func() { h.wait(conn, min(handoverLimit, time.Until(begin.Add(h.most)))) }
	sum, err := h.snapshot(p, l, step)
	if err == nil {
		step()
		err = l.expect(msgReady, nil)
	}
	if err == nil && s.draining.Load() {
		err = errors.New("the running relay drains")
	}
	if err == nil && !stop() {
		err = errors.New("the server closes")
	}
	if err == nil {
		_ = conn.SetDeadline(time.Now().Add(handoverLast))
		err = l.send(msgCommit, nil)
	}
	if err != nil {
		h.giveUp(l, token, fmt.Errorf("the hand-over failed: %w", err))
		h.log("failed", err)
		return
	}
	if err := h.awaitServing(l, token); err != nil {
		h.log("failed at its end", err)
		h.reclaim()
		return
	}
	h.took = time.Since(begin)
	s.owner.Store(false)
	p.over = true
	s.log.Info("handed over", "flows", sum.Flows, "peers", sum.Peers, "packets", sum.Packets, "paused", h.took)
}

// awaitServing waits until the successor serves, and returns why it does not and will
// not: then this relay goes on.
func (h *handover) awaitServing(l *line, token *os.File) error {
	err := l.expect(msgServing, nil)
	if err == nil {
		return nil
	}
	mine := takeToken(token)
	var aborted *abortedError
	if mine || gone(err) || errors.As(err, &aborted) {
		l.abort(errors.New("it took too long to say that this one serves"))
		return err
	}
	// It has taken the token and cannot be far from its word.
	h.srv.log.Warn("the successor has not said that it serves, and nobody else may", "error", err)
	return nil
}

// snapshot waits until the workers have stopped and sends all that they know. step
// sets the deadline of what comes next.
func (h *handover) snapshot(p *pause, l *line, step func()) (totals, error) {
	s := h.srv
	timer := time.NewTimer(handoverLimit)
	defer timer.Stop()
	for range s.workers {
		select {
		case <-p.parked:
		case <-timer.C:
			return totals{}, errors.New("a worker does not stop")
		case <-h.closing.Done():
			return totals{}, h.closing.Err()
		}
	}
	out := &snapshotWriter{line: l, step: step}
	for _, w := range s.workers {
		w.writeSnapshot(out)
	}
	if out.err != nil {
		return totals{}, out.err
	}
	out.step()
	return out.sum, l.sendJSON(msgEnd, out.sum)
}
