package icelite

import "math"

const (
	// firstPathBytes is what the first path may be sent before it is proven,
	// once a session: an answer, checks, and a DTLS hello sent four times.
	firstPathBytes = 1200
	// firstPathReserve is the part of it that media and DTLS leave alone, so
	// that one more answer and one more check always fit.
	firstPathReserve = 200
	// amplification is how much more than it sent a further path may be sent
	// before it is proven: QUIC's limit (RFC 9000 section 8).
	amplification = 3
	// furtherPathBytes is what a further path may be sent in all before it is
	// proven, and furtherPathRate what every second adds: a few answers and
	// checks, and later another try for a client whose network was down. Whoever
	// has the client's password, or its checks, cannot aim more at a third party.
	furtherPathBytes = 1000
	furtherPathRate  = 100
)

// limit is how many bytes an unproven path may be sent in all.
func (p *path) limit(t stamp) uint64 {
	switch {
	case p.first:
		// Beyond the allowance, as much as came in is never an amplification,
		// and lets a client through whose first packets were lost.
		return max(firstPathBytes, p.budgetIn)
	case p.authenticated:
		most := furtherPathBytes + uint64((t-p.budgetAt)/second)*furtherPathRate
		return min(amplification*p.budgetIn, most-min(most, p.debt))
	default:
		return p.budgetIn
	}
}

// room is how many bytes the path may be sent now.
func (p *path) room(t stamp, proven bool) int {
	if proven {
		return math.MaxInt
	}
	if limit := p.limit(t); p.budgetOut < limit {
		return int(limit - p.budgetOut)
	}
	return 0
}

// repeatAllowed reports whether another answer of size bytes may go to an
// address without a path that sent a check again which another had sent before.
func (a *Agent) repeatAllowed(size int, t stamp) bool {
	const perByte = second / furtherPathRate
	next := max(a.repeatsUntil, t) + stamp(size)*perByte
	if next-t > furtherPathBytes*perByte {
		a.stats.Limited++
		return false
	}
	a.repeatsUntil = next
	return true
}

// maxDebts is how many unproven paths are remembered that had to make room for
// others. Without it, whoever comes from one address more than there are slots
// has all of them begin anew with each round.
const maxDebts = 16

// debt is what an unproven path had been sent when it was pushed out.
type debt struct {
	id    Path
	bytes uint64
	at    stamp // when the counting began; 0 marks a free entry
}

// debts is made when a path is pushed out, which happens to few sessions.
type debts struct {
	entries [maxDebts]debt
	next    int
}

// owe remembers a path that makes room, if it is not proven.
func (a *Agent) owe(p *path, t stamp) {
	if a.proven(p, t) || p.budgetOut+p.debt == 0 {
		return
	}
	if a.debts == nil {
		a.debts = new(debts)
	}
	a.debts.entries[a.debts.next] = debt{id: p.id, bytes: p.budgetOut + p.debt, at: p.budgetAt}
	a.debts.next = (a.debts.next + 1) % maxDebts
}

// recall gives a path back what it owes.
func (a *Agent) recall(p *path) {
	if a.debts == nil {
		return
	}
	for i := range a.debts.entries {
		if d := &a.debts.entries[i]; d.at != 0 && d.id == p.id {
			p.debt, p.budgetAt = d.bytes, d.at
			*d = debt{}
		}
	}
}
