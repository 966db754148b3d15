package icelite

import (
	"net/netip"
)

const (
	// MaxPaths bounds the paths of a session: two or three ingresses times two
	// networks of a client, and what a restart adds.
	MaxPaths = 8
	// maxProvisional bounds the paths that only unauthenticated SRTP has made.
	maxProvisional = 2
	// provisionalTimeout is their life; it outlasts an own check.
	provisionalTimeout = 5 * second
	// provisionalHold is how long nothing takes its slot.
	provisionalHold = 1 * second
	// maxPast bounds the relays a path remembers it was behind.
	maxPast = 4
	// relayFlight is how long a client's check may travel through a relay.
	relayFlight = 1 * second
	// relayQuiet is how long the current relay must have brought nothing before
	// packets from an earlier one start a check through it.
	relayQuiet = 100 * millisecond
)

// Path is the identity of a path: the client's address as the ingress saw it,
// and that ingress. It is comparable.
type Path struct {
	// Client is the client's address. One mapped into IPv6 counts as IPv4.
	Client netip.AddrPort
	// Ingress is the id of the ingress.
	Ingress uint16
	// TCP says that the client's packets come framed in a TCP connection (RFC
	// 4571); the same address over UDP is another path.
	TCP bool
}

func (p Path) unmap() Path {
	if a := p.Client.Addr(); a.Is4In6() {
		p.Client = netip.AddrPortFrom(a.Unmap(), p.Client.Port())
	}
	return p
}

type path struct {
	used bool
	// authenticated: a check of the client's came from here. Without it the
	// path is provisional, made by SRTP.
	authenticated bool
	// first: this is the session's first path and was never proven.
	first bool
	// lost: consent ended here. The same credentials must not be used here
	// again (RFC 7675 section 5.1), so the slot remembers it.
	lost bool
	// pending: the last check may still be a reason to move here.
	pending, useCandidate bool

	id         Path
	serial     uint32
	generation int

	via       netip.AddrPort
	viaSince  stamp // when via last changed
	viaHeard  stamp // when via last brought something
	past      [maxPast]netip.AddrPort
	pastNext  uint8
	pastCount uint8

	born       stamp
	lastCheck  stamp // of the client's, authenticated and new
	lastUse    stamp // the same with USE-CANDIDATE
	lastData   stamp // non-STUN
	lastAny    stamp // either, or an answer
	answeredAt stamp // last answer to an own check; 0 if not proven
	lookAt     stamp // when to look again whether to move here, or to check again

	budgetIn, budgetOut uint64 // since budgetAt, when the path was last unproven
	budgetAt            stamp
	debt                uint64 // what was sent there before the path was pushed out, and counts on

	// The answer to the check before the last one counts too: where a round
	// trip takes seconds, that is the one whose answer comes.
	check, previous ownCheck

	rttSmoothed, rttLast   stamp
	packetsIn, bytesIn     uint64
	packetsOut, bytesOut   uint64
	checksIn, checksOut    uint64
	checksAnswered, unsent uint64
}

// proven reports whether the client answered a check here recently.
func (a *Agent) proven(p *path, t stamp) bool {
	return p.answeredAt != 0 && t < p.answeredAt+a.consentTimeout
}

func (a *Agent) findPath(id Path) int {
	for i := range a.paths {
		if p := &a.paths[i]; p.used && p.id == id {
			return i
		}
	}
	return -1
}

// addPath makes a path for an authenticated check, or a provisional one, which
// never takes the slot of an authenticated one. It returns -1 if there is none.
func (a *Agent) addPath(id Path, via netip.AddrPort, authenticated bool, t stamp) int {
	slot := a.slot(authenticated, t)
	if slot < 0 {
		return -1
	}
	if a.paths[slot].used {
		a.stats.Evictions++
		a.owe(&a.paths[slot], t)
		a.removePath(slot)
	}
	a.serial++
	a.paths[slot] = path{
		used: true, authenticated: authenticated, id: id, serial: a.serial,
		via: via, viaSince: t, viaHeard: t, born: t, budgetAt: t,
	}
	a.recall(&a.paths[slot])
	return slot
}

// slot chooses where a new path goes: a free slot, else that of the path which
// is missed least. The order is: lost, provisional, authenticated but not
// proven, proven; in each, the one that was heard longest ago. Never the
// current one.
func (a *Agent) slot(authenticated bool, t stamp) int {
	free, provisional, oldest := -1, 0, -1
	best, bestRank := -1, 0
	for i := range a.paths {
		p := &a.paths[i]
		if !p.used {
			if free < 0 {
				free = i
			}
			continue
		}
		rank := 0
		switch {
		case p.lost:
		case !p.authenticated && !a.proven(p, t):
			rank = 1
			provisional++
			if oldest < 0 || p.born < a.paths[oldest].born {
				oldest = i
			}
		case !a.proven(p, t):
			rank = 2
		default:
			rank = 3
		}
		if i == a.current {
			continue
		}
		if best < 0 || rank < bestRank || rank == bestRank && p.touched() < a.paths[best].touched() {
			best, bestRank = i, rank
		}
	}
	if authenticated {
		if free < 0 {
			free = a.grow()
		}
		if free >= 0 {
			return free
		}
		return best
	}
	if provisional >= maxProvisional {
		// One of them goes, but not before it had time to be asked: strangers
		// who change ports must neither push out the client who did, nor cause
		// more than a few checks a second.
		if t-a.paths[oldest].born < provisionalHold {
			return -1
		}
		return oldest
	}
	if free < 0 {
		free = a.grow()
	}
	return free
}

// grow makes a free slot if there may be one more path, else it returns -1. The
// paths may move in memory.
func (a *Agent) grow() int {
	if len(a.paths) == MaxPaths {
		return -1
	}
	a.paths = append(a.paths, path{})
	return len(a.paths) - 1
}

func (p *path) touched() stamp { return max(p.born, p.lastAny) }

// expires is when a path that is not the current one is forgotten.
func (p *path) expires(consentTimeout stamp) stamp {
	if !p.authenticated && p.answeredAt == 0 {
		return p.born + provisionalTimeout
	}
	return p.touched() + consentTimeout
}

func (a *Agent) removePath(i int) {
	a.paths[i] = path{}
	if a.current == i {
		a.current = -1
		a.consentAt = 0
	}
}

// lapse makes a path that was proven once and is not any more start over, with
// limits of its own.
func (a *Agent) lapse(p *path, t stamp) {
	if p.answeredAt != 0 && !a.proven(p, t) {
		p.answeredAt = 0
		p.budgetIn, p.budgetOut, p.budgetAt, p.debt = 0, 0, t, 0
	}
}

// came counts a datagram from the path.
func (p *path) came(size int) {
	p.packetsIn++
	p.bytesIn += uint64(size)
	p.budgetIn += uint64(size)
}

// left counts a datagram to the path.
func (p *path) left(size int) {
	p.packetsOut++
	p.bytesOut += uint64(size)
	p.budgetOut += uint64(size)
}

func (p *path) wasBehind(via netip.AddrPort) bool {
	for _, v := range p.past[:p.pastCount] {
		if v == via {
			return true
		}
	}
	return false
}

func (a *Agent) setRelay(p *path, via netip.AddrPort, t stamp, out *Output) {
	if !p.wasBehind(p.via) {
		p.past[p.pastNext] = p.via
		p.pastNext = (p.pastNext + 1) % maxPast
		p.pastCount = min(p.pastCount+1, maxPast)
	}
	p.via, p.viaSince, p.viaHeard = via, t, t
	a.stats.RelayChanges++
	out.Events |= EventRelayChanged
}

// relayData is for a packet that was let through and is not authenticated STUN.
func (a *Agent) relayData(i int, via netip.AddrPort, t stamp, out *Output) {
	p := &a.paths[i]
	switch {
	case via == p.via:
		p.viaHeard = t
	case !p.wasBehind(via):
		a.setRelay(p, via, t, out)
	case t-p.viaHeard >= relayQuiet:
		a.probeRelay(i, via, t, out)
	}
}

// relayCheck is for an authenticated check of the client's.
func (a *Agent) relayCheck(i int, via netip.AddrPort, t stamp, out *Output) {
	p := &a.paths[i]
	switch {
	case via == p.via:
		p.viaHeard = t
	case !p.wasBehind(via) || t-p.viaSince >= relayFlight:
		a.setRelay(p, via, t, out)
	default:
		a.probeRelay(i, via, t, out)
	}
}

// relayAnswer is for the answer to an own check that was sent at sentAt.
func (a *Agent) relayAnswer(p *path, via netip.AddrPort, sentAt, t stamp, out *Output) {
	switch {
	case via == p.via:
		p.viaHeard = t
	case !p.wasBehind(via) || sentAt >= p.viaSince:
		a.setRelay(p, via, t, out)
	}
}

// probeRelay asks whether a relay the path was behind earlier is the right one
// again: a check through it, unless one is on the way.
func (a *Agent) probeRelay(i int, via netip.AddrPort, t stamp, out *Output) {
	if p := &a.paths[i]; !p.check.active {
		a.startCheck(i, via, probeTries, t, out)
	}
}

// pollExpiry forgets paths nobody uses.
func (a *Agent) pollExpiry(t stamp) {
	for i := range a.paths {
		if p := &a.paths[i]; p.used && i != a.current && t >= p.expires(a.consentTimeout) {
			a.removePath(i)
		}
	}
}
