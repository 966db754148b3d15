package icelite

import (
	"net/netip"

	"github.com/usher-rtc/usher/internal/stun"
)

// handleRequest answers a check of the client's (RFC 8445 section 7.3) and
// takes from it what it says about paths.
func (a *Agent) handleRequest(t stamp, id Path, via netip.AddrPort, m *stun.Message, size int, out *Output) {
	local, remote, ok := m.SplitUsername()
	if !ok || !m.HasIntegrity {
		// RFC 8489 section 9.1.3 would have 400 here. Only a stranger sends
		// such a request to an ICE agent, so it gets nothing.
		a.stats.Malformed++
		return
	}
	g, ours := a.findGeneration(local, remote)
	if !ours {
		a.stats.UnknownUfrag++
		return
	}
	if g != nil && g.number <= a.failedGeneration {
		a.stats.Expired++
		return
	}
	if g == nil || !out.auth.Check(m, g.localPassword) {
		a.stats.Unauthorized++
		a.answerUnauthorized(id, via, m, size, out)
		return
	}
	if len(m.UnknownRequired()) > 0 {
		a.stats.UnknownAttributes++
		a.answerError(id, via, g, m, 420, size, out)
		return
	}
	if m.Controlled {
		// We cannot become the controlling agent, so the tie-breakers are not
		// compared: 487 always makes the client change its role.
		a.stats.RoleConflicts++
		a.answerError(id, via, g, m, 487, size, out)
		return
	}

	i := a.findPath(id)
	if serial, again := a.replay.find(&m.TransactionID); again {
		a.stats.Duplicates++
		if i >= 0 && a.paths[i].lost {
			return
		}
		if i >= 0 || !a.unprovenSerial(serial, t) {
			a.answerAgain(t, i, id, via, g, m, size, out)
			return
		}
		// The path that brought this transaction first is not proven: it may
		// be the copy, and this the original. It gets a path too; only the
		// one that answers our check will be used.
	}
	if i >= 0 && a.paths[i].lost {
		if g.number <= a.paths[i].generation {
			a.stats.Expired++
			return
		}
		a.removePath(i)
		i = -1
	}
	if i < 0 {
		if i = a.addPath(id, via, true, t); i < 0 {
			return
		}
	}
	a.stats.Checks++
	p := &a.paths[i]
	a.replay.add(&m.TransactionID, p.serial)
	a.lapse(p, t)
	p.came(size)
	p.checksIn++
	p.authenticated = true
	newer := g.number > p.generation
	if newer {
		p.generation = g.number
	}
	p.lastCheck, p.lastAny = t, t
	if m.UseCandidate {
		p.lastUse = t
	}
	p.pending, p.useCandidate = i != a.current, m.UseCandidate
	out.Events |= EventAuthenticated
	a.heard(t, out)
	if !a.firstTaken {
		a.firstTaken = true
		p.first = true
		a.setState(StateConnecting, ReasonNone, out)
		a.selectPath(i, t, out)
		out.Events |= EventFirstCheck
	}

	a.embedded(m, out)
	a.answerSuccess(t, i, via, g, m, out)
	a.relayCheck(i, via, t, out)
	if i == a.current && newer {
		a.trimGenerations(out)
	}
	switch {
	case p.check.active:
	case !a.proven(p, t), newer:
		a.startCheck(i, netip.AddrPort{}, probeTries, t, out)
	case i != a.current && t-p.answeredAt >= revalidateAfter:
		a.startCheck(i, netip.AddrPort{}, probeTries, t, out)
	}
	a.consider(i, false, t, out)
}

// unprovenSerial reports whether the path with that serial exists and is not
// proven.
func (a *Agent) unprovenSerial(serial uint32, t stamp) bool {
	for i := range a.paths {
		if p := &a.paths[i]; p.used && p.serial == serial {
			return !a.proven(p, t)
		}
	}
	return false
}

// answerAgain answers a transaction that was answered before, and does nothing
// else: it may be a retransmission or a replay.
func (a *Agent) answerAgain(t stamp, i int, id Path, via netip.AddrPort, g *generation, m *stun.Message, size int, out *Output) {
	if i >= 0 {
		a.paths[i].came(size)
		a.answerSuccess(t, i, via, g, m, out)
		return
	}
	start := out.begin(stun.BindingSuccess, m.TransactionID)
	out.build.AddXORMappedAddress(id.Client)
	a.addAcks(m, out)
	out.finish(g.localPassword)
	if a.repeatAllowed(len(out.build.Bytes())-start, t) {
		a.pushStateless(id, via, size, start, out)
	}
}

func (a *Agent) answerSuccess(t stamp, i int, via netip.AddrPort, g *generation, m *stun.Message, out *Output) {
	p := &a.paths[i]
	start := out.begin(stun.BindingSuccess, m.TransactionID)
	out.build.AddXORMappedAddress(p.id.Client)
	a.addAcks(m, out)
	out.finish(g.localPassword)
	a.pushTo(p, via, start, t, out)
}

// answerUnauthorized refuses a request with wrong credentials (RFC 8489 section
// 9.1.3), unsigned since there is nothing to sign it with. It is shorter than
// any request with a USERNAME and MESSAGE-INTEGRITY.
func (a *Agent) answerUnauthorized(id Path, via netip.AddrPort, m *stun.Message, size int, out *Output) {
	start := out.begin(stun.BindingError, m.TransactionID)
	out.build.AddErrorCode(401, "")
	out.build.AddFingerprint()
	a.pushStateless(id, via, size, start, out)
}

// answerError refuses an authenticated request. It makes no path, so it is no
// longer than the request either.
func (a *Agent) answerError(id Path, via netip.AddrPort, g *generation, m *stun.Message, code, size int, out *Output) {
	start := out.begin(stun.BindingError, m.TransactionID)
	out.build.AddErrorCode(code, "")
	if code == 420 {
		out.build.AddUnknownAttributes(m.UnknownRequired())
	}
	out.finish(g.localPassword)
	a.pushStateless(id, via, size, start, out)
}
