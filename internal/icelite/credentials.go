package icelite

// Credentials are those of one ICE generation (RFC 8445 section 5.3). The local
// ones are the Host's, from its SDP; the remote ones the client's.
type Credentials struct {
	LocalUfrag, LocalPassword   string
	RemoteUfrag, RemotePassword string
}

// maxGenerations is the newest, the one before it, and the current path's. The
// previous one is kept because a client may return to it when a restart fails
// half-way; the current path's because media runs on it until the newer works.
const maxGenerations = 3

type generation struct {
	number                        int // from 1; 0 marks a free slot
	credentials                   Credentials
	localPassword, remotePassword []byte
}

// addGeneration puts c in front. There is a free slot: trimGenerations leaves
// at most maxGenerations, and makes room before a new one comes.
func (a *Agent) addGeneration(c Credentials) {
	a.newest++
	copy(a.generations[1:], a.generations[:])
	a.generations[0] = generation{
		number:         a.newest,
		credentials:    c,
		localPassword:  []byte(c.LocalPassword),
		remotePassword: []byte(c.RemotePassword),
	}
}

// generation returns the generation with that number, or nil if it is retired.
func (a *Agent) generation(number int) *generation {
	for i := range a.generations {
		if g := &a.generations[i]; g.number == number && number != 0 {
			return g
		}
	}
	return nil
}

// findGeneration returns the generation of exactly these two ufrags, newest
// first, and whether the local one is known at all.
func (a *Agent) findGeneration(local, remote []byte) (g *generation, ours bool) {
	for i := range a.generations {
		g := &a.generations[i]
		if g.number == 0 || string(local) != g.credentials.LocalUfrag {
			continue
		}
		ours = true
		if string(remote) == g.credentials.RemoteUfrag {
			return g, true
		}
	}
	return nil, ours
}

// Restart adds the credentials of an ICE restart (RFC 8445 section 9) and
// returns the number of their generation; those of New have number 1. The
// current path stays in use until the client brings a path of the new
// generation to life. Credentials that are known already change nothing, so a
// restart that is signalled twice is one restart. Generations beyond the
// newest, the previous and the current path's are retired: see RetiredUfrags.
//
// A session that failed gets another ConnectTimeout, from the next call on:
// call Poll soon.
func (a *Agent) Restart(c Credentials) (generation int) {
	for i := range a.generations {
		if g := &a.generations[i]; g.number != 0 && g.credentials == c {
			return g.number
		}
	}
	a.retire(a.newest)
	a.addGeneration(c)
	switch a.state {
	case StateFailed:
		a.state, a.reason = StateConnecting, ReasonNone
		a.rearm = true
	case StateNew, StateConnecting:
		a.rearm = true
	}
	return a.newest
}

// trimGenerations retires what is no longer needed since the current path
// moved or took on a newer generation.
func (a *Agent) trimGenerations(out *Output) {
	if a.retire(a.newest - 1) {
		out.Events |= EventUfragsRetired
	}
}

// retire drops all generations older than keep, except the current path's, and
// with them the paths that would need their credentials.
func (a *Agent) retire(keep int) (any bool) {
	current := 0
	if a.current >= 0 {
		current = a.paths[a.current].generation
	}
	kept := 0
	var dropped [maxGenerations]string
	for i := range a.generations {
		switch g := a.generations[i]; {
		case g.number == 0:
		case g.number >= keep || g.number == current:
			a.generations[kept] = g
			kept++
		default:
			dropped[i] = g.credentials.LocalUfrag
			any = true
		}
	}
	clear(a.generations[kept:])
	if !any {
		return false
	}
	for _, ufrag := range dropped {
		if ufrag != "" && !a.knowsLocal(ufrag) {
			a.retired = append(a.retired, ufrag)
		}
	}
	for i := range a.paths {
		if p := &a.paths[i]; p.used && a.generation(p.generation) == nil {
			a.removePath(i)
		}
	}
	return true
}

func (a *Agent) knowsLocal(ufrag string) bool {
	for i := range a.generations {
		if g := &a.generations[i]; g.number != 0 && g.credentials.LocalUfrag == ufrag {
			return true
		}
	}
	return false
}

// RetiredUfrags returns the local ufrags retired since it was last called, nil
// if none: the caller takes them out of its dispatch table. Call it after every
// Restart and on EventUfragsRetired.
func (a *Agent) RetiredUfrags() []string {
	r := a.retired
	a.retired = nil
	return r
}
