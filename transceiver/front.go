package transceiver

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/usher-rtc/usher/internal/icelite"
	"github.com/usher-rtc/usher/internal/stun"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/ufrag"
)

// helloRepeats are the times after Pion's ClientHello at which it goes out
// again, until the client's DTLS arrives. A browser's ICE is often not ready
// for the first, and Pion's own retransmission comes much later.
var helloRepeats = [...]time.Duration{
	5 * time.Millisecond, 15 * time.Millisecond, 40 * time.Millisecond, 100 * time.Millisecond,
}

const (
	// maxClaims bounds the paths that a session is found by; it is more than
	// icelite keeps, since claims outlive a path until the next clean-up.
	maxClaims = 16
	// routeInterval is how often media carries the session's route, so that a
	// relay that lost its flows learns it from the next such packet.
	routeInterval = 100 * time.Millisecond
)

// minted is one routed ufrag that is answered to.
type minted struct {
	ufrag string
	route ufrag.Route
}

// hop is an edge relay that the client's packets come from by way of a cluster
// relay, and which one that was last. To the ICE front end the edge is the relay:
// it has the flow and the ingress. Which cluster relay is between means nothing, so
// the newest that brought anything is as good as any.
type hop struct {
	edge, relay netip.AddrPort
}

// front is the client's side of a session. Its lock is held for microseconds,
// by the socket's reader and by Pion's writers.
type front struct {
	s *Session

	mu     sync.Mutex
	closed bool
	ufrag  string
	route  ufrag.Route
	minted []minted
	claims []icelite.Path
	hops   []hop
	ssrcs  [trunk.MaxSSRCs]uint32
	nssrc  uint8

	firstCheck time.Time
	routeSent  time.Time
	hello      []byte // Pion's first datagram if it is a ClientHello
	helloAt    time.Time
	helloNext  int // index into helloRepeats; past the end: none is due

	packetsIn, packetsOut, bytesIn, bytesOut uint64
	dropped, pathChanges                     uint64

	proven atomic.Bool // the client has shown that it receives, on some path

	agent icelite.Agent // guarded by mu

	// Guarded by the shard's timer lock.
	timerAt    time.Time
	timerIndex int // position in the shard's heap, -1 if it is in none
}

func (f *front) init(s *Session, c credentials) {
	f.s = s
	f.timerIndex = -1
	f.helloNext = len(helloRepeats)
	f.ufrag, f.route = c.ufrag, c.route
	f.minted = []minted{{c.ufrag, c.route}}
	f.agent.Init(icelite.Config{
		Now:            s.created,
		Credentials:    c.forAgent(),
		ConnectTimeout: s.host.cfg.ConnectTimeout,
		ConsentTimeout: s.host.cfg.ConsentTimeout,
	})
}

func (c credentials) forAgent() icelite.Credentials {
	return icelite.Credentials{
		LocalUfrag: c.ufrag, LocalPassword: c.password, RemoteUfrag: c.remoteUfrag, RemotePassword: c.remotePassword,
	}
}

// publish makes the session findable and starts its timers.
func (f *front) publish() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.minted {
		f.s.host.sessions.add(m.ufrag, m.route.Session, f.s)
	}
	f.reschedule()
}

// restart adds the credentials of an ICE restart under a fresh ufrag.
func (f *front) restart(c credentials) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		f.s.host.minter.Release(c.route.Session)
		return
	}
	f.agent.Restart(c.forAgent())
	f.ufrag, f.route = c.ufrag, c.route
	f.minted = append(f.minted, minted{c.ufrag, c.route})
	f.s.host.sessions.add(c.ufrag, c.route.Session, f.s)
	f.retire()
	f.reschedule()
}

// retire forgets ufrags of generations that nobody uses any more.
func (f *front) retire() {
	for _, old := range f.agent.RetiredUfrags() {
		f.minted = slices.DeleteFunc(f.minted, func(m minted) bool {
			if m.ufrag != old {
				return false
			}
			f.s.host.sessions.remove(m.ufrag, m.route.Session)
			f.s.host.minter.Release(m.route.Session)
			return true
		})
	}
}

// close makes the session unfindable.
func (f *front) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	f.closed = true
	f.agent.Close()
	for _, m := range f.minted {
		f.s.host.sessions.remove(m.ufrag, m.route.Session)
		f.s.host.minter.Release(m.route.Session)
	}
	for _, p := range f.claims {
		f.s.host.paths.release(p, f.s)
	}
	f.claims = nil
	f.s.shard.unschedule(f)
}

// handleSTUN gives a STUN message from the client to the ICE front end. sh is
// the shard that read it, whose scratch space is used.
func (f *front) handleSTUN(sh *shard, now time.Time, via netip.AddrPort, fr *trunk.Frame, m *stun.Message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	path := pathOf(fr)
	via = f.noteHop(via, fr)
	sh.out.Reset()
	f.agent.HandleSTUN(now, path, via, m, fr.Payload, &sh.out)
	f.apply(sh, &sh.out, now, path)
}

// handleData gives the client's DTLS, RTP or RTCP to Pion if the ICE front end
// lets it through.
func (f *front) handleData(sh *shard, now time.Time, via netip.AddrPort, fr *trunk.Frame, class stun.Class) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	path := pathOf(fr)
	via = f.noteHop(via, fr)
	ssrc, isRTP := uint32(0), false
	if class == stun.ClassRTP {
		ssrc, isRTP = stun.SSRC(fr.Payload)
	}
	known := isRTP && slices.Contains(f.ssrcs[:f.nssrc], ssrc)
	sh.out.Reset()
	verdict := f.agent.HandleData(now, path, via, class, known, len(fr.Payload), &sh.out)
	if verdict == icelite.Drop {
		f.dropped++
		sh.drop(DropRefused)
	} else {
		if class == stun.ClassDTLS {
			f.answered()
			f.agent.NoteDTLS(fr.Payload)
		}
		if isRTP && !known && verdict == icelite.Deliver {
			f.learnSSRC(ssrc)
		}
		f.packetsIn++
		f.bytesIn += uint64(len(fr.Payload))
		if verdict == icelite.DeliverSRTP && len(sh.out.Packets) > 0 {
			f.claim(path) // for the answer to the check that this started, and for what follows
		}
		switch {
		case len(fr.Payload) > slotSize:
			f.dropped++
			sh.drop(DropOversize)
		case !f.s.conn.deliver(fr.Payload):
			f.dropped++
			sh.drop(DropQueueFull)
		}
	}
	if sh.out.Events != 0 || len(sh.out.Packets) > 0 {
		f.apply(sh, &sh.out, now, path)
	}
}

// answered ends the repetition of the ClientHello: the client has heard it. What
// stays is not nil, since there is only one first hello.
func (f *front) answered() { f.helloNext, f.hello = len(helloRepeats), []byte{} }

// learnSSRC keeps the newest few: a client that changes its microphone gets
// new ones.
func (f *front) learnSSRC(ssrc uint32) {
	if int(f.nssrc) < len(f.ssrcs) {
		f.nssrc++
	}
	copy(f.ssrcs[1:f.nssrc], f.ssrcs[:])
	f.ssrcs[0] = ssrc
}

// pathOf is the identity of the path that a frame came on.
func pathOf(fr *trunk.Frame) icelite.Path {
	return icelite.Path{Client: fr.Client, Ingress: fr.Ingress, TCP: fr.Flags&trunk.TCP != 0}
}

// noteHop returns the relay that a frame's client is at: the one that the frame
// came from, or the edge that is its return address.
func (f *front) noteHop(from netip.AddrPort, fr *trunk.Frame) (via netip.AddrPort) {
	if !fr.Return.IsValid() {
		return from
	}
	for i := range f.hops {
		if h := &f.hops[i]; h.edge == fr.Return {
			h.relay = from
			return h.edge
		}
	}
	if len(f.hops) == maxClaims {
		f.dropStaleHops(f.agent.Paths()) // what nobody has proven must not push out what is in use
	}
	f.hops = append(f.hops, hop{edge: fr.Return, relay: from})
	if f.s.host.answersDirectly(fr.Return) {
		f.s.host.peers.add(fr.Return, true)
	}
	return fr.Return
}

// follow answers an edge by another cluster relay from now on, which brought a frame
// without payload. It makes nothing known that was not.
func (f *front) follow(relay netip.AddrPort, fr *trunk.Frame) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.hops {
		if h := &f.hops[i]; h.edge == fr.Return && !f.closed {
			h.relay = relay
		}
	}
}

// address completes a frame for a client at a relay and returns where to send it:
// to that relay, or for an edge that is not answered directly to the cluster
// relay, with the edge as return address.
func (f *front) address(via netip.AddrPort, fr *trunk.Frame) (to netip.AddrPort) {
	for i := range f.hops {
		if h := &f.hops[i]; h.edge == via {
			if f.s.host.answersDirectly(via) {
				return via
			}
			fr.Return = via
			return h.relay
		}
	}
	return via
}

// frameTo prepares a frame to the client on a path.
func (f *front) frameTo(path icelite.Path, validated bool) trunk.Frame {
	fr := trunk.Frame{Flags: trunk.ToClient, Ingress: path.Ingress, Client: path.Client}
	if validated {
		fr.Flags |= trunk.Validated
	}
	if path.TCP {
		fr.Flags |= trunk.TCP
	}
	return fr
}

// teach adds what a relay needs to make a flow of its own from a frame.
func (f *front) teach(fr *trunk.Frame) {
	fr.Route, fr.SSRCs, fr.NSSRC = f.route, f.ssrcs, f.nssrc
}

// apply carries out what the agent wants done after a call. path is the one
// that the call was about; the zero value if it was about none.
func (f *front) apply(sh *shard, out *icelite.Output, now time.Time, path icelite.Path) {
	for i := range out.Packets {
		p := &out.Packets[i]
		fr := f.frameTo(p.Path, p.Validated)
		if p.Validated {
			f.teach(&fr)
		}
		f.s.shard.enqueue(f.address(p.Via, &fr), &fr, p.Data)
	}
	events := out.Events
	if events.Has(icelite.EventFirstCheck) {
		f.firstCheck = now
	}
	if events.Has(icelite.EventAuthenticated) {
		f.claim(path)
		f.s.conn.inject(now)
	}
	for _, b := range out.EmbeddedDTLS {
		f.answered()
		if !f.s.conn.deliver(b) {
			sh.drop(DropQueueFull)
		}
	}
	if events.Has(icelite.EventPathValidated) {
		f.proven.Store(true)
		f.s.host.paths.own(out.ValidatedPath, f.s)
	}
	if events.Has(icelite.EventPathSelected) {
		// The first packet on another path makes a flow at its relay, which finds
		// the session after the next rebinding by the route that it was told then.
		f.routeSent = time.Time{}
		if !events.Has(icelite.EventFirstCheck) {
			f.pathChanges++
			f.s.host.pathChanges.Add(1)
		}
	}
	if events.Has(icelite.EventUfragsRetired) {
		f.retire()
	}
	if events.Has(icelite.EventStateChanged) {
		f.stateChanged()
	}
	f.reschedule()
}

// reschedule makes the shard call poll when something is next due. A timer
// that is set already only moves closer: poll that comes early does nothing.
func (f *front) reschedule() {
	next := f.agent.Next()
	if at := f.s.conn.nextCheck(); !at.IsZero() {
		next = earlier(next, at)
	}
	if f.helloNext < len(helloRepeats) {
		next = earlier(next, f.helloAt.Add(helloRepeats[f.helloNext]))
	}
	if !next.IsZero() && !f.closed {
		f.s.shard.schedule(f, next)
	}
}

func (f *front) stateChanged() {
	state, reason := f.agent.State()
	if state != icelite.StateFailed {
		return
	}
	switch reason {
	case icelite.ReasonConsentLost:
		f.s.finish(ReasonConsentLost, nil)
	default:
		f.s.finish(ReasonNeverConnected, nil)
	}
}

// claim makes the session findable by a path whose check it has authenticated.
func (f *front) claim(path icelite.Path) {
	if !slices.Contains(f.claims, path) {
		f.dropStaleClaims()
		if len(f.claims) == maxClaims {
			f.s.host.paths.release(f.claims[0], f.s)
			f.claims = slices.Delete(f.claims, 0, 1)
		}
		f.claims = append(f.claims, path)
	}
	// Also what was claimed before: others may have taken the place since.
	if f.s.host.paths.claim(path, f.s) {
		f.s.host.contested.Add(1)
	}
}

// dropStaleClaims lets go of paths that the agent has forgotten.
func (f *front) dropStaleClaims() {
	if len(f.claims) == 0 {
		return
	}
	paths := f.agent.Paths()
	f.claims = slices.DeleteFunc(f.claims, func(p icelite.Path) bool {
		if slices.ContainsFunc(paths, func(i icelite.PathInfo) bool { return i.Path == p }) {
			return false
		}
		f.s.host.paths.release(p, f.s)
		return true
	})
	f.dropStaleHops(paths)
}

// dropStaleHops lets go of edges that no path is at.
func (f *front) dropStaleHops(paths []icelite.PathInfo) {
	f.hops = slices.DeleteFunc(f.hops, func(h hop) bool {
		return !slices.ContainsFunc(paths, func(i icelite.PathInfo) bool { return i.Via == h.edge })
	})
}

// poll runs everything that is due. sh is the session's own shard, whose
// goroutine this is.
func (f *front) poll(sh *shard, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	if f.helloNext < len(helloRepeats) && !now.Before(f.helloAt.Add(helloRepeats[f.helloNext])) {
		f.helloNext++
		f.write(now, f.hello)
	}
	sh.out.Reset()
	f.agent.Poll(now, &sh.out)
	if len(f.claims) > 1 {
		f.dropStaleClaims()
	}
	f.s.conn.poll(now)
	f.apply(sh, &sh.out, now, icelite.Path{})
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// fromPion takes a datagram that Pion writes.
func (s *Session) fromPion(b []byte) {
	f := &s.front
	now := time.Now()
	f.mu.Lock()
	if f.hello == nil && isClientHello(b) {
		f.hello = append([]byte(nil), b...)
		f.helloAt, f.helloNext = now, 0
		f.reschedule()
	}
	f.write(now, b)
	f.mu.Unlock()
	s.shard.flushSoon()
}

// isClientHello tells a DTLS handshake record whose first message is a
// ClientHello (RFC 6347 section 4.3.2).
func isClientHello(b []byte) bool { return len(b) > 13 && b[0] == 22 && b[13] == 1 }

// write queues a datagram for the client on the current path, if that may take it.
func (f *front) write(now time.Time, b []byte) {
	sh := f.s.shard
	path, via, validated, ok := f.agent.Allow(now, len(b))
	if !ok || f.closed || !validated && f.taken(path) {
		f.dropped++
		sh.drop(DropNoPath)
		return
	}
	fr := f.frameTo(path, validated)
	if validated && now.Sub(f.routeSent) >= routeInterval {
		f.routeSent = now
		f.teach(&fr)
	}
	f.packetsOut++
	f.bytesOut += uint64(len(b))
	sh.enqueue(f.address(via, &fr), &fr, b)
}

// taken reports whether a path of ours that was not proven belongs to another session
// by now: a client that went before the handshake, and the next one got its port. What
// Pion has left to say, an alert in plain text above all, would end the other's
// handshake.
func (f *front) taken(path icelite.Path) bool {
	owner := f.s.host.paths.find(path)[0]
	return owner != nil && owner != f.s && owner.front.proven.Load()
}

// flow is a session's current path, for an announcement.
type flow struct {
	trunk.Frame
	to  netip.AddrPort // the peer that frames are sent to
	hop                // with two tiers
}

func (f *front) flow() (fl flow, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.agent.Paths() {
		if !p.Current {
			continue
		}
		fl.Frame = f.frameTo(p.Path, p.Validated)
		f.teach(&fl.Frame)
		fl.to = f.address(p.Via, &fl.Frame)
		if i := slices.IndexFunc(f.hops, func(h hop) bool { return h.edge == p.Via }); i >= 0 {
			fl.hop = f.hops[i]
		}
		return fl, !f.closed
	}
	return fl, false
}

// selected returns the path that packets go to now, zero if there is none.
func (f *front) selected() icelite.Path {
	f.mu.Lock()
	defer f.mu.Unlock()
	path, _ := f.agent.SelectedPath()
	return path
}

// dtlsOverdue reports whether the handshake's deadline has passed.
func (f *front) dtlsOverdue(now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	// Pion starts the handshake a moment after the first check.
	return !f.firstCheck.IsZero() && now.Sub(f.firstCheck) >= f.s.host.cfg.DTLSTimeout
}

// Stats returns the session's numbers as of now.
func (s *Session) Stats() SessionStats {
	now := time.Now()
	st := SessionStats{Age: now.Sub(s.created)}
	if at := s.connectedAt.Load(); at != 0 {
		st.Connected = st.Age - time.Duration(at)
	}
	f := &s.front
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.agent.Paths() {
		if p.Current {
			st.ClientAddr, st.Ingress, st.Validated = p.Path.Client, p.Path.Ingress, p.Validated
		}
	}
	st.RTT, _ = f.agent.RTT()
	st.PacketsIn, st.PacketsOut, st.BytesIn, st.BytesOut = f.packetsIn, f.packetsOut, f.bytesIn, f.bytesOut
	st.Dropped, st.PathChanges = f.dropped, f.pathChanges
	return st
}
