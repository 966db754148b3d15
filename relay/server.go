package relay

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/config"
	"github.com/usher-rtc/usher/internal/forward"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/internal/udpbatch"
)

// ErrServerClosed is what [Server.Serve] returns after Close or Shutdown. It
// wraps net.ErrClosed.
var ErrServerClosed = fmt.Errorf("relay: server closed: %w", net.ErrClosed)

// Server is a relay. Make it with [New]; its methods are safe for concurrent
// use.
type Server struct {
	cfg       Config
	log       *slog.Logger
	ingresses []Ingress // bound
	byID      []int16   // ingress id -> index in ingresses, or -1
	ids       []uint16
	start     time.Time
	epoch     uint64
	shards    []*flowtable.Table
	workers   []*worker
	store     *storer // nil without one

	handover *handover // nil without Config.Handover
	heir     *heir     // nil unless another relay was found there
	pausing  atomic.Pointer[pause]
	// owner says that the flows are ours: those of an heir are its predecessor's
	// until that has let them go, and after a hand-over they are the successor's.
	owner atomic.Bool

	mu       sync.Mutex
	serving  bool
	prepared chan struct{} // closed when Serve has started all workers, or will not
	served   chan struct{} // closed when Serve has nothing left to do
	closing  chan struct{}
	closed   chan struct{} // closed when everything is
	once     sync.Once
	closeErr error

	up       atomic.Bool // Serve runs
	draining atomic.Bool
}

// New validates the configuration and binds all sockets; packets queue in the
// kernel until Serve. With Config.Handover it gets the sockets of a running relay
// instead, if there is one, which goes on reading them until Serve. The error is a
// *ConfigError or wraps the system's.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, config.In("relay.Config", err)
	}
	s := &Server{
		cfg: cfg, log: cfg.Logger, start: time.Now(),
		ingresses: append([]Ingress(nil), cfg.Ingresses...),
		prepared:  make(chan struct{}),
		served:    make(chan struct{}), closing: make(chan struct{}), closed: make(chan struct{}),
	}
	s.epoch = newEpoch()
	if err := s.open(); err != nil {
		for _, w := range s.workers {
			_ = w.close()
		}
		s.closeHandover()
		return nil, config.In("relay.Config", err)
	}
	if cfg.Store != nil {
		s.store = newStorer(&cfg)
	}
	s.warnBuffers(s.workers[0].conns)
	return s, nil
}

func newEpoch() uint64 {
	var seed [8]byte
	_, _ = rand.Read(seed[:]) // never fails, says its documentation
	return binary.BigEndian.Uint64(seed[:])
}

// open gets all sockets: those of a running relay, those that this process was
// started with, and new ones.
func (s *Server) open() error {
	given, err := s.cfg.given()
	if err != nil {
		return err
	}
	if s.cfg.Handover != "" {
		if s.heir, err = findPredecessor(&s.cfg); err != nil {
			return err
		}
		if s.handover, err = bindHandover(s); err != nil {
			return err
		}
	}
	if s.heir == nil {
		s.owner.Store(true)
		if err := s.setUp(given); err != nil || s.handover == nil {
			return err
		}
		return s.handover.publish()
	}
	defer closeFiles(s.heir.sockets.all())
	s.epoch, s.start = s.heir.offer.Epoch, s.start.Add(-s.heir.offer.Ran)
	return s.setUp(s.heir.sockets)
}

func (s *Server) setUp(given *sockets) error {
	for i := range s.cfg.Workers {
		w := newWorker(s, i)
		t, err := flowtable.New(flowtable.Config{
			MaxFlows:           (s.cfg.MaxFlows + s.cfg.Workers - 1) / s.cfg.Workers,
			IdleTimeout:        s.cfg.IdleTimeout,
			UnconfirmedTimeout: s.cfg.UnconfirmedTimeout,
			OnRemove:           w.removed,
		})
		if err != nil {
			return err
		}
		s.shards = append(s.shards, t)
		s.workers = append(s.workers, w)
	}
	for _, w := range s.workers {
		if err := w.listen(given); err != nil {
			return err
		}
	}
	maxID := 0
	for _, in := range s.ingresses {
		maxID = max(maxID, int(in.ID))
		s.ids = append(s.ids, in.ID)
	}
	s.byID = make([]int16, maxID+1)
	for i := range s.byID {
		s.byID[i] = -1
	}
	var public []netip.AddrPort
	for i := range s.ingresses {
		in := &s.ingresses[i]
		s.byID[in.ID] = int16(i)
		if !in.Advertise.IsValid() {
			in.Advertise = in.Listen
		}
		public = append(public, in.Listen, in.Advertise)
	}
	lookups := 0
	if s.cfg.Store != nil {
		lookups = max(1, s.cfg.StoreLookups/s.cfg.Workers)
	}
	for i, w := range s.workers {
		if s.cfg.Store != nil {
			w.memory = newMemory(w)
		}
		w.core = forward.New(forward.Config{
			Cluster: s.cfg.Cluster, Codec: s.cfg.Codec, Resolver: s.cfg.Resolver,
			Allow: s.cfg.AllowUpstream, SkipIntegrity: s.cfg.SkipIntegrity, SkipLearning: s.cfg.SkipLearning,
			Clusters: w.setUpClusters(), AllowEdges: s.cfg.AllowEdges, AllowClusters: s.cfg.AllowClusters,
			Ingresses: s.ids, Public: public, Shards: s.shards, Own: i, Lookups: lookups,
		})
	}
	return nil
}

// Ingresses returns the ingresses with the addresses they are bound to.
func (s *Server) Ingresses() []Ingress { return append([]Ingress(nil), s.ingresses...) }

// TrunkAddrs returns the trunk address of each worker.
func (s *Server) TrunkAddrs() []netip.AddrPort {
	addrs := make([]netip.AddrPort, 0, len(s.workers))
	for _, w := range s.workers {
		addrs = append(addrs, w.trunkConn().LocalAddr())
	}
	return addrs
}

// Serve forwards packets until Close or Shutdown and returns ErrServerClosed, or
// ErrHandedOver if a successor has taken over. An heir first gets the flows of the
// running relay; if that fails, Serve closes the Server and returns why, and the
// other relay goes on. It can be called once.
func (s *Server) Serve() error {
	s.mu.Lock()
	switch {
	case s.isClosing():
		s.mu.Unlock()
		return ErrServerClosed
	case s.serving:
		s.mu.Unlock()
		return errors.New("relay: Serve was called before")
	}
	s.serving = true
	s.mu.Unlock()
	if s.heir != nil {
		if err := s.heir.takeOver(s); err != nil {
			close(s.prepared)
			close(s.served)
			_ = s.Close() // has nothing to say beyond that
			return err
		}
		s.owner.Store(true)
	}

	now := time.Since(s.start)
	for _, w := range s.workers {
		w.beat.Store(int64(now))
	}
	s.up.Store(true)
	for _, w := range s.workers {
		w.running.Go(func() {
			w.forwardInherited()
			if err := w.group.Serve(w); err != nil {
				s.log.Error("worker ended", "worker", w.index, "error", err)
			}
		})
	}
	close(s.prepared)
	s.mu.Lock() // Close waits for what was started before it, and nothing starts after
	if s.handover != nil && !s.isClosing() {
		s.handover.start()
	}
	s.mu.Unlock()
	for _, w := range s.workers {
		w.running.Wait()
	}
	s.up.Store(false)
	close(s.served)
	if !s.owner.Load() {
		_ = s.Close()
		return ErrHandedOver
	}
	<-s.closed
	return ErrServerClosed
}

func (s *Server) isClosing() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}

// Close stops at once and waits for every goroutine. Hosts are told.
func (s *Server) Close() error {
	s.once.Do(func() {
		s.mu.Lock()
		close(s.closing)
		serving := s.serving
		s.mu.Unlock()
		s.closeHandover()
		if serving {
			<-s.prepared
		}
		errs := make([]error, len(s.workers))
		var wg sync.WaitGroup
		for i, w := range s.workers {
			wg.Go(func() { errs[i] = w.close() })
		}
		wg.Wait()
		if s.store != nil {
			s.store.close()
		}
		if serving {
			<-s.served
		}
		s.closeErr = errors.Join(errs...)
		close(s.closed)
	})
	<-s.closed
	return s.closeErr
}

// closeHandover ends a hand-over in either direction that is not committed.
func (s *Server) closeHandover() {
	if s.heir != nil {
		s.heir.close()
	}
	if s.handover != nil {
		s.handover.close()
	}
}

// Shutdown drains: readiness turns false, Hosts and other relays are told that this
// relay is about to go, and packets are forwarded as before until no flow is left,
// and no other relay's clients, or ctx is done; then it closes. It returns ctx's error if flows were left.
func (s *Server) Shutdown(ctx context.Context) error {
	s.draining.Store(true)
	for _, w := range s.workers {
		w.group.Wake()
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	passing := new(passing)
	for s.up.Load() && (s.flows() > 0 || passing.on(s)) {
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), s.Close())
		case <-s.closed:
			return s.closeErr
		case <-tick.C:
		}
	}
	return s.Close()
}

func (s *Server) flows() int {
	n := 0
	for _, t := range s.shards {
		t.Lock()
		n += t.Len()
		t.Unlock()
	}
	return n
}

// Flows returns copies of at most limit flows; 0 means 1,000. While it runs,
// flows come and go.
func (s *Server) Flows(limit int) []flowtable.Flow {
	if limit <= 0 {
		limit = defaultFlowLimit
	}
	var flows []flowtable.Flow
	for _, t := range s.shards {
		for cursor, more := uint32(0), true; more && len(flows) < limit; more = cursor != 0 {
			// A few at a time, so that no packet waits long for the lock.
			t.Lock()
			cursor = t.Walk(cursor, min(256, limit-len(flows)), func(f flowtable.Flow) { flows = append(flows, f) })
			t.Unlock()
		}
	}
	return flows
}

const defaultFlowLimit = 1000

// listen opens the worker's sockets, as far as they are not given. The first
// worker's decide about ports that are left to the system.
func (w *worker) listen(given *sockets) error {
	s := w.srv
	reuse := len(s.workers) > 1
	open := func(name string, addr netip.AddrPort, reuse bool, file *os.File) (*udpbatch.Conn, error) {
		cfg := udpbatch.SocketConfig{
			Addr: addr, ReusePort: reuse, ReadBuffer: s.cfg.ReadBuffer, WriteBuffer: s.cfg.ReadBuffer, GSO: true, GRO: true,
		}
		var conn *udpbatch.Conn
		var err error
		if file == nil {
			conn, err = udpbatch.Listen(cfg)
		} else {
			conn, err = udpbatch.FromFile(file, cfg)
		}
		if err != nil {
			return nil, bindError(name, w.index, err)
		}
		w.conns = append(w.conns, conn)
		if file == nil {
			return conn, nil
		}
		return conn, checkBound(name, addr, conn.LocalAddr())
	}
	for i := range s.ingresses {
		if in := &s.ingresses[i]; w.index == 0 && given.ingressOf(0, in.ID) == nil {
			if err := udpbatch.CheckFree(in.Listen); err != nil {
				return bindError(fmt.Sprintf("Ingresses[%d].Listen", i), 0, err)
			}
		}
	}
	for i := range s.ingresses {
		in := &s.ingresses[i]
		conn, err := open(fmt.Sprintf("Ingresses[%d].Listen", i), in.Listen, reuse, given.ingressOf(w.index, in.ID))
		if err != nil {
			return err
		}
		in.Listen = conn.LocalAddr()
		a := in.Listen.Addr()
		w.clients[i].to4 = a.Is4() || a.IsUnspecified()
		w.clients[i].to6 = a.Is6()
	}
	addr := s.cfg.Trunk
	if addr.Port() != 0 {
		addr = netip.AddrPortFrom(addr.Addr(), addr.Port()+uint16(w.index))
	}
	if _, err := open("Trunk", addr, false, given.trunkOf(w.index)); err != nil {
		return err
	}
	var err error
	w.group, err = udpbatch.NewGroup(w.conns, udpbatch.GroupConfig{Interval: s.cfg.MaxBatchDelay})
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	return nil
}

// bindError names the field that an address comes from, and what to do about those
// that cannot be had.
func bindError(name string, worker int, err error) error {
	if worker > 0 && name == "Trunk" {
		name = fmt.Sprintf("Trunk of worker %d, whose port is %d higher", worker, worker)
	}
	switch {
	case !errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("relay: %s: %w", name, err)
	case name == "Trunk":
		return fmt.Errorf("relay: %s: %w: no interface here has this address", name, err)
	default:
		return fmt.Errorf("relay: %s: %w: no interface here has this address; if it is translated on the way, listen on the inner one and set Advertise", name, err)
	}
}

// close ends the worker, tells Hosts, and closes the sockets.
func (w *worker) close() error {
	if w.group == nil {
		var err error
		for _, c := range w.conns {
			err = errors.Join(err, c.Close())
		}
		return err
	}
	w.group.Stop()
	w.running.Wait()
	if w.srv.owner.Load() { // else the packets and the Hosts are another process's
		w.abandonWaiting()
		w.goodbye(trunk.ReasonClosed)
	}
	w.counts.publish()
	return w.group.Close()
}
