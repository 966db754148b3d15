package icelite

import "net/netip"

const (
	// dataQuiet is how long the current path must have had no non-STUN before
	// non-STUN on another of the same generation moves it: longer than packets
	// overtake each other, shorter than two packets of speech are apart twice.
	dataQuiet = 40 * millisecond
	// checkQuiet is the same for a check, which says less.
	checkQuiet = 500 * millisecond
	// firstPathGrace is how long the first path may be unproven while another
	// is proven.
	firstPathGrace = 200 * millisecond
	// dataRecent and checkRecent are how long non-STUN and a check remain a
	// reason to move to the path they came on.
	dataRecent  = 500 * millisecond
	checkRecent = 2 * second
	// overtaking is how much later than a check on one path, packets sent
	// before it may arrive on another.
	overtaking = 250 * millisecond
)

// consider applies the rules of the package documentation to path i. data says
// that non-STUN has just been let through on it.
func (a *Agent) consider(i int, data bool, t stamp, out *Output) {
	p := &a.paths[i]
	if i == a.current || p.lost || !a.proven(p, t) {
		return
	}
	p.lookAt = 0
	if a.current < 0 {
		a.selectPath(i, t, out)
		return
	}
	c := &a.paths[a.current]
	if p.generation < c.generation {
		p.pending = false
		return
	}
	newer := p.generation > c.generation

	// Rule 4.
	if !a.proven(c, t) {
		if t-a.selectedAt >= firstPathGrace {
			a.selectPath(i, t, out)
			return
		}
		p.look(a.selectedAt + firstPathGrace)
	}
	// Rule 1. What came before the path was proven counts for a while.
	recent := p.lastData != 0 && t-p.lastData < dataRecent && p.lastData > c.lastData
	if (data || recent) && (newer || t-c.lastData >= dataQuiet) {
		a.selectPath(i, t, out)
		return
	}
	// Rules 2 and 3.
	if !p.pending {
		return
	}
	if t-p.lastCheck > checkRecent || c.lastData > p.lastCheck+overtaking {
		p.pending = false // too old, or the client went on using the current path
		return
	}
	if newer && p.useCandidate {
		a.selectPath(i, t, out)
		return
	}
	due := a.quietAt(p, t, out)
	if t >= due {
		a.selectPath(i, t, out)
		return
	}
	p.look(due)
}

// quietAt returns when the current path will have been quiet for long enough
// to follow the last check on p, if nothing more comes from it.
func (a *Agent) quietAt(p *path, t stamp, out *Output) stamp {
	c := &a.paths[a.current]
	// A path that has just been chosen gets as long to show itself.
	due := max(c.lastData, a.selectedAt) + checkQuiet
	// A client that nominates both in turn has not said which it uses.
	chosen := p.useCandidate && p.lastCheck-c.lastUse >= checkQuiet
	if chosen || t < due {
		return due
	}
	if due = max(due, c.lastAny+checkQuiet); t < due {
		return due
	}
	// Silent, but perhaps it only has nothing to say: ask.
	if c.check.unansweredSince() <= c.lastAny && !c.check.active {
		a.startCheck(a.current, netip.AddrPort{}, probeTries, t, out)
	}
	asked := c.check.unansweredSince()
	switch {
	case asked > c.lastAny:
		return max(due, asked+max(checkQuiet, 2*c.rttSmoothed))
	case c.check.active:
		return max(due, c.check.next, t+1)
	default:
		return t + checkQuiet // no room to ask in; rule 4 is about such a path
	}
}

// look has the path considered again at t, or earlier.
func (p *path) look(t stamp) {
	if p.lookAt == 0 || t < p.lookAt {
		p.lookAt = t
	}
}

func (a *Agent) pollMoves(t stamp, out *Output) {
	for i := range a.paths {
		if p := &a.paths[i]; p.used && i != a.current && p.lookAt != 0 && t >= p.lookAt {
			p.lookAt = 0
			a.consider(i, false, t, out)
		}
	}
}

// selectPath makes path i the current one.
func (a *Agent) selectPath(i int, t stamp, out *Output) {
	a.current, a.selectedAt = i, t
	a.stats.Moves++
	out.Events |= EventPathSelected
	for j := range a.paths {
		a.paths[j].pending, a.paths[j].lookAt = false, 0
	}
	p := &a.paths[i]
	a.consentAt = 0
	if a.proven(p, t) {
		a.consentAt = t + a.consentPause()
		if t-p.answeredAt >= a.consentInterval && !p.check.active {
			a.startCheck(i, netip.AddrPort{}, consentTries, t, out)
		}
		if a.state == StateConnecting {
			a.setState(StateConnected, ReasonNone, out)
		}
	}
	a.trimGenerations(out)
}
