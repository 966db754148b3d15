package icelite

import (
	"net/netip"

	"github.com/usher-rtc/usher/internal/stun"
)

// begin starts a message behind what out holds, and returns where.
func (o *Output) begin(typ stun.Type, id stun.TransactionID) (start int) {
	o.build.Reset(o.scratch, typ, id)
	return len(o.scratch)
}

// finish signs the message.
func (o *Output) finish(password []byte) {
	o.build.AddIntegrity(&o.auth, password)
	o.build.AddFingerprint()
}

// pushTo sends the message to a path, within its limit.
func (a *Agent) pushTo(p *path, via netip.AddrPort, start int, t stamp, out *Output) bool {
	buf := out.build.Bytes()
	proven := a.proven(p, t)
	size := len(buf) - start
	if size <= 0 || size > p.room(t, proven) {
		p.unsent++
		a.stats.Limited++
		return false
	}
	p.left(size)
	out.push(p.id, via, proven, buf, start)
	return true
}

// pushStateless sends the message as an answer to a request of size bytes from
// which nothing follows for any path: never more than came in.
func (a *Agent) pushStateless(id Path, via netip.AddrPort, size, start int, out *Output) {
	buf := out.build.Bytes()
	if n := len(buf) - start; n <= 0 || n > size {
		a.stats.Limited++
		return
	}
	out.push(id, via, false, buf, start)
}

// checkSize returns the size of an own check of the path's generation.
func (a *Agent) checkSize(p *path) int {
	g := a.generation(p.generation)
	if g == nil {
		return 0
	}
	username := len(g.credentials.RemoteUfrag) + 1 + len(g.credentials.LocalUfrag)
	const fixed = stun.HeaderLen + 4 + (4 + 8) + (4 + 4) + (4 + 20) + (4 + 4)
	return fixed + (username+3)&^3
}

// roomForCheck reports whether an own check fits into the limit of an unproven
// path.
func (a *Agent) roomForCheck(p *path, t stamp) bool { return a.checkSize(p) <= p.room(t, false) }
