package icelite

import (
	"math/rand/v2"
	"net/netip"

	"github.com/usher-rtc/usher/internal/stun"
)

const (
	// probeTries is how often a check that shall prove a path is sent, and
	// consentTries how often one that renews consent (RFC 7675 section 5.1: a
	// consent check is not repeated).
	probeTries   = 3
	consentTries = 1
	// firstRetransmission is the least time before the second try.
	firstRetransmission = 100 * millisecond
	// answerTimeout is how late an answer may come.
	answerTimeout = 5 * second
	// retryAfter is the pause before an unproven current path is checked again.
	retryAfter = 500 * millisecond
	// revalidateAfter is the age of the last answer from which a check on a
	// path in reserve starts one of ours, to keep it proven. It is below the
	// interval of all clients measured.
	revalidateAfter = 2 * second
	// priority is that of a peer-reflexive candidate with the highest local
	// preference (RFC 8445 section 5.1.2.1).
	priority = 110<<24 | 65535<<8 | 255
)

// ownCheck is the Host's check of one path. Each try is a transaction of its
// own, so that an answer says which try it belongs to and the round-trip time
// is exact: the last byte of the transaction id is the number of the try, XORed
// onto a random byte.
type ownCheck struct {
	id         stun.TransactionID
	generation int
	via        netip.AddrPort // the relay to ask through; zero is the path's
	active     bool           // a try or the end of waiting is due at next
	answered   bool
	tries, max uint8
	sentAt     [probeTries]stamp // 0 if the try was beyond the limits
	next       stamp
}

// try returns which try of c has that transaction id.
func (c *ownCheck) try(id stun.TransactionID) (n int, ok bool) {
	n = int(id[11] ^ c.id[11])
	id[11] = c.id[11]
	return n, n < int(c.tries) && c.sentAt[n] != 0 && id == c.id
}

// unansweredSince returns when the first try was sent, 0 if there was none or
// it was answered.
func (c *ownCheck) unansweredSince() stamp {
	if c.answered {
		return 0
	}
	return c.sentAt[0]
}

// startCheck sends a check to a path. It does nothing if the path's limit has
// no room for it; the next packet from there will try again.
func (a *Agent) startCheck(i int, via netip.AddrPort, tries uint8, t stamp, out *Output) {
	p := &a.paths[i]
	if p.check.tries > 0 {
		p.previous = p.check
	}
	p.check = ownCheck{generation: p.generation, via: via, max: tries}
	a.random(p.check.id[:])
	if !a.sendTry(i, t, out) {
		p.check = ownCheck{}
		a.checkEnded(i, t)
		return
	}
	p.check.active = true
	if i == a.current {
		p.lookAt = 0
	}
}

// sendTry sends the next try and says when to go on. It reports false if the
// limits left it out.
func (a *Agent) sendTry(i int, t stamp, out *Output) bool {
	p := &a.paths[i]
	c := &p.check
	id := c.id
	id[11] ^= c.tries
	wait := max(firstRetransmission, p.rttSmoothed+p.rttSmoothed/2) << c.tries
	c.next = t + wait
	n := c.tries
	c.tries++

	g := a.generation(c.generation)
	if g == nil {
		return false
	}
	start := out.begin(stun.BindingRequest, id)
	out.build.AddUsername(g.credentials.RemoteUfrag, g.credentials.LocalUfrag)
	out.build.AddControlled(a.tieBreaker)
	out.build.AddPriority(priority)
	out.finish(g.remotePassword)
	via := c.via
	if !via.IsValid() {
		via = p.via
	}
	if !a.pushTo(p, via, start, t, out) {
		return false
	}
	c.sentAt[n] = t
	p.checksOut++
	a.stats.OwnChecks++
	return true
}

// pollChecks sends the next tries and ends the waiting for answers.
func (a *Agent) pollChecks(t stamp, out *Output) {
	for i := range a.paths {
		c := &a.paths[i].check
		if !c.active || t < c.next {
			continue
		}
		if c.tries < c.max {
			a.sendTry(i, t, out)
			continue
		}
		c.active = false // an answer that is late still counts
		a.checkEnded(i, t)
	}
}

// checkEnded has an unproven current path checked again after a while.
func (a *Agent) checkEnded(i int, t stamp) {
	if p := &a.paths[i]; i == a.current && p.answeredAt == 0 {
		p.lookAt = t + retryAfter
	}
}

// handleResponse matches a response with an own check, by transaction id and
// the client's signature: the address it came from does not matter.
func (a *Agent) handleResponse(t stamp, id Path, via netip.AddrPort, m *stun.Message, size int, out *Output) {
	for i := range a.paths {
		p := &a.paths[i]
		if !p.used {
			continue
		}
		c := &p.check
		n, ok := c.try(m.TransactionID)
		if !ok {
			c = &p.previous
			if n, ok = c.try(m.TransactionID); !ok {
				continue
			}
		}
		g := a.generation(c.generation)
		if g == nil || !out.auth.Check(m, g.remotePassword) {
			a.stats.BadResponses++
			return
		}
		sentAt := c.sentAt[n]
		if c.answered || t-sentAt > answerTimeout {
			a.stats.LateResponses++
			return
		}
		if from := a.findPath(id); from >= 0 {
			a.paths[from].came(size)
		}
		a.heard(t, out)
		if m.Type == stun.BindingError {
			a.handleErrorResponse(i, m, t, out)
			return
		}
		if p.id == id {
			a.relayAnswer(p, via, sentAt, t, out)
		}
		a.answered(i, sentAt, t, out)
		return
	}
	a.stats.UnknownResponses++
}

// handleErrorResponse: an error proves nothing that a path may be used for. A
// role conflict means that the client is controlled as well and had the smaller
// tie-breaker; with 0 we lose the comparison, and it becomes controlling.
func (a *Agent) handleErrorResponse(i int, m *stun.Message, t stamp, out *Output) {
	a.stats.ErrorResponses++
	if m.ErrorCode != 487 || a.tieBreaker == 0 {
		return
	}
	a.tieBreaker = 0
	c := &a.paths[i].check
	a.startCheck(i, c.via, c.max, t, out)
}

// answered takes the answer to a check sent at sentAt as proof of the path.
func (a *Agent) answered(i int, sentAt, t stamp, out *Output) {
	p := &a.paths[i]
	p.check.active, p.check.answered, p.previous.answered = false, true, true
	p.checksAnswered++
	a.stats.OwnChecksAnswered++
	rtt := t - sentAt
	if p.rttLast == 0 {
		p.rttSmoothed = rtt
	} else {
		p.rttSmoothed += (rtt - p.rttSmoothed) / 8 // RFC 6298 section 2
	}
	p.rttLast = max(rtt, 1)
	p.lastAny = t
	a.prove(i, t, out)
}

// prove makes the path a proven one from t on.
func (a *Agent) prove(i int, t stamp, out *Output) {
	p := &a.paths[i]
	if !a.proven(p, t) {
		out.Events |= EventPathValidated
		out.ValidatedPath = p.id
	}
	p.answeredAt = t
	p.first = false
	if i == a.current {
		p.lookAt = 0
		a.consentAt = t + a.consentPause()
		if a.state == StateConnecting {
			a.setState(StateConnected, ReasonNone, out)
		}
		return
	}
	a.consider(i, false, t, out)
}

// consentPause is ConsentInterval times 0.8 to 1.2.
func (a *Agent) consentPause() stamp {
	fifth := a.consentInterval / 5
	span := uint64(2*fifth + 1)
	if a.rand != nil {
		return a.consentInterval - fifth + stamp(a.rand.Uint64()%span)
	}
	return a.consentInterval - fifth + stamp(rand.Uint64N(span))
}

// checkConsent ends the use of a current path whose consent ran out.
func (a *Agent) checkConsent(t stamp, out *Output) {
	if a.current < 0 {
		return
	}
	p := &a.paths[a.current]
	if p.answeredAt == 0 || a.proven(p, t) {
		return
	}
	out.Events |= EventConsentLost
	p.lost, p.answeredAt = true, 0
	p.check, p.previous, p.lookAt = ownCheck{}, ownCheck{}, 0
	a.current, a.consentAt = -1, 0
	best := -1
	for i := range a.paths {
		q := &a.paths[i]
		if !q.used || q.lost || !a.proven(q, t) {
			continue
		}
		if best < 0 || q.generation > a.paths[best].generation ||
			q.generation == a.paths[best].generation && q.lastAny > a.paths[best].lastAny {
			best = i
		}
	}
	if best < 0 {
		a.fail(ReasonConsentLost, out)
		return
	}
	a.selectPath(best, t, out)
}

// pollConsent checks the current path: for consent if it is proven, else again
// until it is.
func (a *Agent) pollConsent(t stamp, out *Output) {
	if a.current < 0 {
		return
	}
	p := &a.paths[a.current]
	switch {
	case p.answeredAt == 0:
		if p.lookAt != 0 && t >= p.lookAt {
			a.startCheck(a.current, netip.AddrPort{}, probeTries, t, out)
		}
	case t >= a.consentAt:
		a.consentAt = t + a.consentPause()
		if !p.check.active {
			a.startCheck(a.current, netip.AddrPort{}, consentTries, t, out)
		}
	}
}
