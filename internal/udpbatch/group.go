package udpbatch

import (
	"errors"
	"sync"
	"time"

	"github.com/usher-rtc/usher/internal/config"
)

// GroupConfig sets the sizes of a Group's receive memory. It is allocated once.
type GroupConfig struct {
	// Batch is the largest number of datagrams read by one system call and
	// given to one HandleBatch: 1 to 1024, default 64.
	Batch int
	// Interval is the least time between two reads of a busy loop: what arrives
	// meanwhile is read, handled and written together. A datagram that comes
	// alone, later than Interval after the last, is read at once, and a full batch
	// is followed by the next. It trades delay under load for system calls; 0, the
	// default, takes what is there, and 10 ms is the most. The portable path reads
	// one datagram a call, has nothing to gain, and ignores it.
	Interval time.Duration
	// Shared makes the loop an ordinary goroutine that waits in Go's network
	// poller, instead of a locked thread that waits in the kernel. It is for
	// handlers that wake goroutines: those would wait for a processor until the
	// scheduler noticed that the thread which has it is asleep. A handler that
	// does all the work itself is faster without. The portable path is shared
	// anyway.
	Shared bool
}

const (
	defaultBatch = 64                    // the gain ends between 32 and 64; see BenchmarkEcho
	maxBatch     = 1024                  // UIO_MAXIOV, the most that recvmmsg takes
	maxInterval  = 10 * time.Millisecond // more is not batching but an outage
)

func (cfg *GroupConfig) setDefaults() error {
	if cfg.Batch == 0 {
		cfg.Batch = defaultBatch
	}
	if cfg.Batch < 1 || cfg.Batch > maxBatch {
		return config.Errorf("Batch", "must be 1 to %d, is %d", maxBatch, cfg.Batch)
	}
	if cfg.Interval < 0 || cfg.Interval > maxInterval {
		return config.Errorf("Interval", "must be 0 to %v, is %v", maxInterval, cfg.Interval)
	}
	return nil
}

// Group serves sockets one after another, so that a handler needs no lock.
// On Linux that is one locked thread with its own epoll; on the portable path
// a goroutine for each socket that take turns. Serve one Group for each
// worker; a Conn is in one Group at most.
type Group struct {
	conns []*Conn
	srv   server

	mu      sync.Mutex
	serving bool
	stopped bool
	done    chan struct{} // closed when Serve returned
	release sync.Once
}

// server is what the two paths have in common.
type server interface {
	serve(h Handler) // until stop
	wake()
	stop() // makes serve return and does not wait for it
	// release frees what the server holds; serve has returned or was never called.
	release()
}

// NewGroup makes a Group of sockets that are all batched or all portable. It
// returns a *config.Error for a bad configuration.
func NewGroup(conns []*Conn, cfg GroupConfig) (*Group, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	if len(conns) == 0 {
		return nil, config.Errorf("conns", "need at least one")
	}
	g := &Group{conns: append([]*Conn(nil), conns...), done: make(chan struct{})}
	for i, c := range g.conns {
		if c == nil || !c.group.CompareAndSwap(nil, g) {
			g.disown(i)
			if c == nil {
				return nil, config.Errorf("conns", "number %d is nil", i)
			}
			return nil, config.Errorf("conns", "number %d is in a group", i)
		}
	}
	srv, err := newServer(g.conns, cfg)
	if err != nil {
		g.disown(len(g.conns))
		return nil, err
	}
	g.srv = srv
	return g, nil
}

// disown lets the first n Conns go.
func (g *Group) disown(n int) {
	for _, c := range g.conns[:n] {
		c.group.CompareAndSwap(g, nil)
	}
}

// Serve reads the sockets and calls h until Stop or Close; then it returns
// nil, also when that happened before. It returns an error at once if the
// Group is being served.
func (g *Group) Serve(h Handler) error {
	g.mu.Lock()
	if g.stopped {
		g.mu.Unlock()
		return nil
	}
	if g.serving {
		g.mu.Unlock()
		return errors.New("udpbatch: the group is being served")
	}
	g.serving = true
	g.mu.Unlock()
	defer close(g.done)
	g.srv.serve(h)
	return nil
}

// Wake makes the Group call Idle soon. It may be called from any goroutine
// and does nothing after Stop or Close.
func (g *Group) Wake() { g.srv.wake() }

// End makes Serve return and does not wait for it. It may be called from a
// handler; the batched path reads nothing after that has returned. Stop or Close
// still has to follow.
func (g *Group) End() {
	g.mu.Lock()
	first := !g.stopped
	g.stopped = true
	g.mu.Unlock()
	if first {
		g.srv.stop()
	}
}

// Stop ends Serve and waits for it. The Conns stay open with what is in their queues, and may
// go into another Group. Do not call it from a handler.
func (g *Group) Stop() {
	g.End()
	g.mu.Lock()
	serving := g.serving
	g.mu.Unlock()
	if serving {
		<-g.done
	}
	g.release.Do(func() {
		g.srv.release()
		g.disown(len(g.conns))
	})
}

// Close stops the Group and closes its Conns. When it returns, Serve and all
// its goroutines have ended and the ports are free, unless a duplicate made
// by File is open. Do not call it from a handler. It returns the first error
// of a Conn's Close.
func (g *Group) Close() error {
	g.Stop()
	var first error
	for _, c := range g.conns {
		if err := c.Close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}
