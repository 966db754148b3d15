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
)

// limit is how many bytes an unproven path may be sent in all.
func (p *path) limit() uint64 {
	switch {
	case p.first:
		// Beyond the allowance, as much as came in is never an amplification,
		// and lets a client through whose first packets were lost.
		return max(firstPathBytes, p.budgetIn)
	case p.authenticated:
		return amplification * p.budgetIn
	default:
		return p.budgetIn
	}
}

// room is how many bytes the path may be sent now.
func (p *path) room(proven bool) int {
	if proven {
		return math.MaxInt
	}
	if limit := p.limit(); p.budgetOut < limit {
		return int(limit - p.budgetOut)
	}
	return 0
}
