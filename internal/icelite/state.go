package icelite

// State is the state of a session's connectivity.
type State uint8

const (
	// StateNew has seen no authenticated check.
	StateNew State = iota
	// StateConnecting uses the first path but has no proof that packets sent
	// there arrive, or was restarted after it failed.
	StateConnecting
	// StateConnected has a proven current path.
	StateConnected
	// StateDisconnected has heard nothing for DisconnectTimeout and still has
	// consent: it goes back to connected by itself when the client is heard.
	StateDisconnected
	// StateFailed has no path left. Only an ICE restart helps (RFC 7675 section
	// 5.1); nothing is sent and checks of old generations are not answered.
	StateFailed
	// StateClosed was ended by Close.
	StateClosed
)

// String returns the name of the state in lower case.
func (s State) String() string {
	switch s {
	case StateNew:
		return "new"
	case StateConnecting:
		return "connecting"
	case StateConnected:
		return "connected"
	case StateDisconnected:
		return "disconnected"
	case StateFailed:
		return "failed"
	case StateClosed:
		return "closed"
	default:
		return "unknown"
	}
}

// Reason says why a session failed or ended.
type Reason uint8

const (
	// ReasonNone is the reason in every other state.
	ReasonNone Reason = iota
	// ReasonNoCheck is a client that sent no authenticated check in time.
	ReasonNoCheck
	// ReasonNoAnswer is a client that sent checks and answered none of ours.
	ReasonNoAnswer
	// ReasonConsentLost is a client that stopped answering.
	ReasonConsentLost
	// ReasonClosed is a call of Close.
	ReasonClosed
)

// String returns the reason in lower case.
func (r Reason) String() string {
	switch r {
	case ReasonNone:
		return "none"
	case ReasonNoCheck:
		return "no check"
	case ReasonNoAnswer:
		return "no answer"
	case ReasonConsentLost:
		return "consent lost"
	case ReasonClosed:
		return "closed"
	default:
		return "unknown"
	}
}

func (a *Agent) setState(s State, r Reason, out *Output) {
	if a.state == s {
		return
	}
	a.state, a.reason = s, r
	out.Events |= EventStateChanged
}

// heard notes a sign of life: authenticated STUN, or what was let through.
func (a *Agent) heard(t stamp, out *Output) {
	a.lastHeard = t
	if a.state == StateDisconnected {
		a.setState(StateConnected, ReasonNone, out)
	}
}

// fail ends the session until a restart.
func (a *Agent) fail(r Reason, out *Output) {
	for i := range a.paths {
		if a.paths[i].used {
			a.removePath(i)
		}
	}
	a.failedGeneration = a.newest
	a.setState(StateFailed, r, out)
}

func (a *Agent) anyPath() bool {
	for i := range a.paths {
		if a.paths[i].used {
			return true
		}
	}
	return false
}

// pollState looks after the deadlines of the session as a whole.
func (a *Agent) pollState(t stamp, out *Output) {
	switch a.state {
	case StateNew:
		if t >= a.connectBy {
			a.fail(ReasonNoCheck, out)
		}
	case StateConnecting:
		if t >= a.connectBy {
			r := ReasonNoCheck
			if a.anyPath() {
				r = ReasonNoAnswer
			}
			a.fail(r, out)
		}
	case StateConnected:
		if t >= a.lastHeard+a.disconnectTimeout {
			a.setState(StateDisconnected, ReasonNone, out)
		}
	}
}

// Close ends the session: from here on nothing is answered or let through.
func (a *Agent) Close() {
	for i := range a.paths {
		if a.paths[i].used {
			a.removePath(i)
		}
	}
	a.state, a.reason = StateClosed, ReasonClosed
}

// State returns the state and, if it is failed or closed, why.
func (a *Agent) State() (State, Reason) { return a.state, a.reason }
