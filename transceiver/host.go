package transceiver

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/usher-rtc/usher/internal/config"
	"github.com/usher-rtc/usher/internal/udpbatch"
	"github.com/usher-rtc/usher/ufrag"
)

// Host owns the trunk's UDP address of this process and the sessions whose
// ufrags lead to it. All methods are safe for concurrent use.
type Host struct {
	cfg    Config
	log    *slog.Logger
	engine *engine
	minter *ufrag.Minter
	route  ufrag.Route // of this host; its Session means nothing
	epoch  uint64
	addr   netip.AddrPort

	shards   []*shard
	pacers   map[*shard]*pacer // of those with audio to pace; under mu
	peers    peerTable
	sessions *sessionTable
	paths    *pathTable

	mu        sync.Mutex
	live      map[*Session]struct{}
	resources map[string]*Session // by the ufrag in the signalling resource
	reserved  int                 // sessions that are being made
	draining  bool
	closed    bool
	empty     chan struct{} // closed when draining and nothing is alive

	accepted, refused, restarts, pathChanges, contested, limited atomic.Uint64
	connected                                                    atomic.Int64
	ended                                                        [reasonCount]atomic.Uint64

	sockets     sync.WaitGroup // of signalling
	openSockets int            // under mu

	readers    sync.WaitGroup
	background sync.WaitGroup
	jobs       chan func()
	stop       chan struct{}
	stopOnce   sync.Once
	stopped    chan struct{}
}

// AcceptOptions are what a session may be given besides the offer.
type AcceptOptions struct {
	// Metadata is handed to the application by Session.Metadata. It must be
	// valid JSON or empty.
	Metadata json.RawMessage
	// Ingresses are advertised instead of Config.Ingresses, if not empty.
	Ingresses []Ingress
	// Prepare is called like Config.OnSession, and before it.
	Prepare func(*Session) error
}

// NewHost validates the configuration, binds the sockets and starts their
// readers. A bad configuration is a *ConfigError. Close the Host when done.
func NewHost(cfg Config) (*Host, error) {
	if err := cmp.Or(cfg.validate(), cfg.setDefaults()); err != nil {
		return nil, config.In("transceiver.Config", err)
	}
	cfg.AllowRelays = unmapped(cfg.AllowRelays)
	cfg.AllowEdges = unmapped(cfg.AllowEdges)
	cfg.Ingresses = slices.Clone(cfg.Ingresses)
	engine, err := newEngine(&cfg)
	if err != nil {
		return nil, err
	}
	h := &Host{
		cfg:       cfg,
		log:       cfg.Logger,
		engine:    engine,
		sessions:  newSessionTable(),
		paths:     newPathTable(),
		live:      make(map[*Session]struct{}),
		pacers:    make(map[*shard]*pacer),
		resources: make(map[string]*Session),
		empty:     make(chan struct{}),
		jobs:      make(chan func(), 64),
		stop:      make(chan struct{}),
		stopped:   make(chan struct{}),
	}
	var b [8]byte
	_, _ = rand.Read(b[:]) // documented never to fail
	h.epoch = binary.BigEndian.Uint64(b[:])
	h.peers.init(h)
	conns, err := listen(&cfg)
	if err != nil {
		return nil, err
	}
	if err := h.start(conns); err != nil {
		for _, c := range conns {
			_ = c.Close()
		}
		return nil, config.In("transceiver.Config", err)
	}
	return h, nil
}

// unmapped returns a copy in which prefixes of IPv4-mapped addresses are IPv4's.
func unmapped(list []netip.Prefix) []netip.Prefix {
	list = slices.Clone(list)
	for i, p := range list {
		if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
			list[i] = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
		}
	}
	return list
}

// listen opens the sockets, or takes those of the configuration.
func listen(cfg *Config) (conns []*udpbatch.Conn, err error) {
	defer func() {
		if err != nil {
			for _, c := range conns {
				_ = c.Close()
			}
			conns = nil
		}
	}()
	for i, pc := range cfg.Conns {
		c, err := udpbatch.NewConn(pc)
		if err != nil {
			return conns, fmt.Errorf("transceiver: Conns[%d]: %w", i, err)
		}
		conns = append(conns, c)
	}
	if len(conns) > 0 {
		return conns, nil
	}
	sc := udpbatch.SocketConfig{Addr: cfg.Listen, ReadBuffer: cfg.ReadBuffer, WriteBuffer: cfg.ReadBuffer, GSO: true, GRO: true}
	if err := udpbatch.CheckFree(cfg.Listen); err != nil {
		if errors.Is(err, syscall.EADDRNOTAVAIL) {
			return nil, fmt.Errorf("transceiver: Listen %v: %w: no interface here has this address", cfg.Listen, err)
		}
		return nil, fmt.Errorf("transceiver: Listen %v: %w", cfg.Listen, err)
	}
	sc.ReusePort = cfg.Sockets > 1
	for range cfg.Sockets {
		c, err := udpbatch.Listen(sc)
		if err != nil {
			return conns, fmt.Errorf("transceiver: Listen %v: %w", sc.Addr, err)
		}
		conns = append(conns, c)
		sc.Addr = c.LocalAddr() // port 0 was picked by the first
	}
	return conns, nil
}

func (h *Host) start(conns []*udpbatch.Conn) error {
	h.addr = conns[0].LocalAddr()
	var err error
	if h.cfg.HostID != 0 {
		h.route, err = ufrag.DirectoryRoute(h.cfg.Cluster, h.cfg.HostID, 0)
	} else {
		adv, field := h.cfg.AdvertiseTrunk, "AdvertiseTrunk"
		if !adv.IsValid() {
			adv, field = h.addr, "Listen"
		} else if adv.Port() == 0 {
			adv = netip.AddrPortFrom(adv.Addr(), h.addr.Port())
		}
		if adv.Addr().IsUnspecified() {
			return config.Errorf("AdvertiseTrunk", "required when Listen is a wildcard address: relays cannot send to %v; or give Listen the address of an interface", adv.Addr())
		}
		h.route, err = ufrag.IPv4Route(h.cfg.Cluster, netip.AddrPortFrom(adv.Addr().Unmap(), adv.Port()), 0)
		if err != nil {
			return config.Errorf(field, "%v does not fit into a ufrag, which holds an IPv4 address: set HostID, or AdvertiseTrunk", adv)
		}
	}
	if err != nil {
		return config.Errorf("HostID", "%v", err)
	}
	h.minter = ufrag.NewMinter(h.cfg.Codec, h.route)
	for _, c := range conns {
		group, err := udpbatch.NewGroup([]*udpbatch.Conn{c}, udpbatch.GroupConfig{Shared: true, Interval: h.cfg.MaxBatchDelay})
		if err != nil {
			for _, sh := range h.shards {
				sh.group.Stop()
			}
			return err
		}
		h.shards = append(h.shards, &shard{host: h, conn: c, group: group})
	}
	for _, sh := range h.shards {
		h.readers.Add(1)
		go func() {
			defer h.readers.Done()
			if err := sh.group.Serve(sh); err != nil {
				h.log.Error("a trunk socket stopped", "addr", h.addr, "err", err)
			}
		}()
	}
	h.background.Add(1)
	go h.maintain()
	return nil
}

// Addr returns the trunk's UDP address, with the port that was picked for port 0.
func (h *Host) Addr() netip.AddrPort { return h.addr }

// Ingresses returns the ingresses that are advertised by default.
func (h *Host) Ingresses() []Ingress { return slices.Clone(h.cfg.Ingresses) }

// Route returns the route to this Host, as relays read it from its ufrags; its
// Session is 0.
func (h *Host) Route() ufrag.Route { return h.route }

func (h *Host) allowed(a netip.Addr) bool { return contains(h.cfg.AllowRelays, a) }

func contains(list []netip.Prefix, a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	for _, p := range list {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// answersDirectly reports whether a relay is an edge that frames go to without
// another relay between.
func (h *Host) answersDirectly(edge netip.AddrPort) bool {
	return len(h.cfg.AllowEdges) > 0 && contains(h.cfg.AllowEdges, edge.Addr())
}

// Accept makes a session from a client's SDP offer and returns it with the
// answer, which is complete: ingress addresses as candidates and nothing to
// trickle. The client's own candidates are not needed. It returns an
// *OfferError for an offer that cannot be used, ErrFull, ErrDraining or
// ErrHostClosed; an error of OnSession or Prepare as it is. The context bounds
// Accept itself, not the session.
func (h *Host) Accept(ctx context.Context, offerSDP string, opts AcceptOptions) (_ *Session, answer string, err error) {
	defer func() {
		if err != nil {
			h.refused.Add(1)
		}
	}()
	if err := ctx.Err(); err != nil {
		return nil, "", err
	}
	if len(opts.Metadata) > 0 && !validJSON(opts.Metadata) {
		return nil, "", config.Errorf("Metadata", "is not valid JSON")
	}
	ingresses := slices.Clone(opts.Ingresses)
	if len(ingresses) == 0 {
		ingresses = h.cfg.Ingresses
	}
	if len(ingresses) == 0 {
		return nil, "", config.Errorf("Ingresses", "Config has none and none were given")
	}
	if err := validateIngresses("Ingresses", ingresses); err != nil {
		return nil, "", err
	}
	o, err := parseOffer(offerSDP, h.cfg.MaxOfferBytes)
	if err != nil {
		return nil, "", err
	}
	if h.cfg.RequireAudio && !o.audio {
		return nil, "", badOffer(ErrNoAudio, "")
	}
	if err := h.reserve(); err != nil {
		return nil, "", err
	}
	s, err := h.makeSession(o, opts, ingresses)
	if err := h.admit(s, err); err != nil {
		return nil, "", err
	}
	answer, err = s.firstAnswer(ctx, o, opts.Prepare)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		s.finish(ReasonRejected, err)
		<-s.done // without the lock, for which the application may be waiting
		switch s.CloseReason() {
		case ReasonHostClosed: // whatever failed because of it
			err = ErrHostClosed
		case ReasonDrained:
			err = ErrDraining
		default:
		}
		return nil, "", err
	}
	h.accepted.Add(1)
	return s, answer, nil
}

// validJSON also wants UTF-8 (RFC 8259 section 8.1), which json.Valid does not:
// whoever gets it next may refuse it.
func validJSON(b []byte) bool { return json.Valid(b) && utf8.Valid(b) }

func (s *Session) firstAnswer(ctx context.Context, o *offer, first func(*Session) error) (string, error) {
	s.negotiation.Lock()
	defer s.negotiation.Unlock()
	return s.negotiate(o, func() error { return s.prepare(ctx, first) })
}

// makeSession is newSession, and takes a panic of Config.SettingEngine or
// Config.NewAPI for an error: the place is reserved already.
func (h *Host) makeSession(o *offer, opts AcceptOptions, ingresses []Ingress) (s *Session, err error) {
	defer func() {
		if v := recover(); v != nil {
			h.log.Error("panic while a session was made", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			s, err = nil, fmt.Errorf("%w: %v", ErrPanic, v)
		}
	}()
	return h.newSession(o, opts, ingresses)
}

// prepare calls the application.
func (s *Session) prepare(ctx context.Context, first func(*Session) error) error {
	for _, f := range []func(*Session) error{first, s.host.cfg.OnSession} {
		if f == nil {
			continue
		}
		if err := f(s); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	if s.ending.Load() {
		return s.Err()
	}
	return nil
}

// reserve takes a place for a session that is about to be made.
func (h *Host) reserve() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return ErrHostClosed
	case h.draining:
		return ErrDraining
	case len(h.live)+h.reserved >= h.cfg.MaxSessions:
		return ErrFull
	}
	h.reserved++
	return nil
}

// admit turns the reserved place into a session's.
func (h *Host) admit(s *Session, err error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reserved--
	if err != nil {
		h.checkEmpty()
		return err
	}
	h.live[s] = struct{}{}
	h.resources[s.resource] = s
	if h.closed {
		defer s.finish(ReasonHostClosed, nil)
	}
	s.front.publish()
	return nil
}

// enterSocket counts a WebSocket of signalling in, which Close then waits for.
func (h *Host) enterSocket(newCall bool) (leave func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return nil, ErrHostClosed
	case newCall && h.draining:
		return nil, ErrDraining
	case h.openSockets >= 2*h.cfg.MaxSessions:
		return nil, ErrFull // one a session, and as many that are on their way
	}
	h.openSockets++
	h.sockets.Add(1)
	return func() {
		h.mu.Lock()
		h.openSockets--
		h.mu.Unlock()
		h.sockets.Done()
	}, nil
}

// forget is the last step of a session's end.
func (h *Host) forget(s *Session) {
	h.log.Debug("session ended", "session", s.id, "reason", s.CloseReason())
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.live, s)
	delete(h.resources, s.resource)
	h.checkEmpty()
}

// checkEmpty tells a drain that it is done. The lock is held.
func (h *Host) checkEmpty() {
	if (h.draining || h.closed) && len(h.live)+h.reserved == 0 {
		select {
		case <-h.empty:
		default:
			close(h.empty)
		}
	}
}

// pacerFor returns the clock of the outgoing audio of a shard's sessions. It
// runs from the first such session to the Host's end.
func (h *Host) pacerFor(sh *shard) (*pacer, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.pacers[sh]
	if p == nil {
		if h.closed {
			return nil, ErrHostClosed
		}
		p = newPacer(time.Now(), sh)
		h.pacers[sh] = p
		h.background.Go(func() { p.run(h.stop) })
	}
	return p, nil
}

// Sessions returns the sessions that have not ended, in no order.
func (h *Host) Sessions() []*Session {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]*Session, 0, len(h.live))
	for s := range h.live {
		out = append(out, s)
	}
	return out
}

// Draining reports whether Shutdown or Close was called: no new sessions.
func (h *Host) Draining() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.draining || h.closed
}

// Shutdown refuses new sessions, waits until all have ended, and closes the
// Host. When the context is done first it ends the rest with ReasonDrained and
// returns the context's error. Everything has stopped when it returns. Clients
// with a WebSocket are told at once how long they have, and in the end why; so
// are those with OpenEvents in the end; all others see DTLS close.
func (h *Host) Shutdown(ctx context.Context) error {
	h.mu.Lock()
	h.draining = true
	h.checkEmpty()
	h.mu.Unlock()
	if end, ok := ctx.Deadline(); ok {
		limit := time.Until(end)
		for _, s := range h.Sessions() {
			s.notifyDraining(limit)
		}
	}
	var err error
	select {
	case <-h.empty:
	case <-ctx.Done():
		err = ctx.Err()
		for _, s := range h.Sessions() {
			s.finish(ReasonDrained, err)
		}
	}
	return errors.Join(err, h.Close())
}

// Close ends all sessions with ReasonHostClosed, closes the sockets and waits
// until everything has stopped, but for callbacks of the application no longer
// than some seconds. Do not call it from one.
func (h *Host) Close() error {
	h.mu.Lock()
	h.draining, h.closed = true, true
	h.checkEmpty()
	h.mu.Unlock()
	for _, s := range h.Sessions() {
		s.finish(ReasonHostClosed, nil)
	}
	<-h.empty
	var err error
	h.stopOnce.Do(func() {
		close(h.stop)
		h.awaitSockets()
		h.background.Wait()
		for _, sh := range h.shards {
			err = errors.Join(err, sh.group.Close())
		}
		h.readers.Wait()
		close(h.stopped)
	})
	<-h.stopped
	return err
}

// awaitSockets waits for the WebSockets of signalling, for callbacks of the
// application that do not return no longer than the end of a session does.
func (h *Host) awaitSockets() {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		h.sockets.Wait()
	}()
	limit := time.NewTimer(teardownLimit)
	defer limit.Stop()
	select {
	case <-gone:
	case <-limit.C:
		h.log.Warn("callbacks of signalling did not return after the Host's end")
	}
}

// Stats returns a snapshot of the counters.
func (h *Host) Stats() Stats {
	h.mu.Lock()
	live, sockets := len(h.live), h.openSockets
	h.mu.Unlock()
	st := Stats{
		Live:        live,
		Connected:   int(h.connected.Load()),
		Accepted:    h.accepted.Load(),
		Refused:     h.refused.Load(),
		Restarts:    h.restarts.Load(),
		PathChanges: h.pathChanges.Load(),
		Contested:   h.contested.Load(),
		Limited:     h.limited.Load(),
		Sockets:     sockets,
		Ended:       make(map[Reason]uint64, reasonCount-1),
		Drops:       make(map[DropReason]uint64, dropCount),
	}
	for r := ReasonNone + 1; r < reasonCount; r++ {
		st.Ended[r] = h.ended[r].Load()
	}
	for _, sh := range h.shards {
		st.DatagramsIn += sh.datagramsIn.Load()
		st.FramesIn += sh.framesIn.Load()
		st.DatagramsOut += sh.datagramsOut.Load()
		st.FramesOut += sh.frameOut.Load()
		st.BytesIn += sh.bytesIn.Load()
		st.BytesOut += sh.bytesOut.Load()
		st.KernelDrops += sh.conn.Stats().KernelDrops
	}
	for d := range dropCount {
		st.Drops[d] = h.dropped(d)
	}
	return st
}

// ingressesFor picks the ingresses of a signalling request.
func (h *Host) ingressesFor(r *http.Request) []Ingress {
	if h.cfg.SelectIngresses == nil {
		return nil
	}
	return h.cfg.SelectIngresses(r)
}

// SessionStats are a session's own numbers.
type SessionStats struct {
	ClientAddr netip.AddrPort // where packets go now
	Ingress    uint16         // by which ingress
	Validated  bool           // the client has proven that it receives there
	RTT        time.Duration  // smoothed, from checks of our own; 0 until one was answered
	Age        time.Duration  // since the offer
	Connected  time.Duration  // since DTLS was up, 0 if it is not

	PacketsIn, PacketsOut uint64 // DTLS, RTP and RTCP
	BytesIn, BytesOut     uint64
	Dropped               uint64 // of these, in both directions
	PathChanges           uint64
}
