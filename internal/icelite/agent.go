package icelite

import (
	crand "crypto/rand"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/usher-rtc/usher/internal/stun"
)

// Config is what a session's agent is made of. Zero durations are the defaults
// given with each; negative ones count as zero.
type Config struct {
	// Now is the time of the first offer; ConnectTimeout runs from here. Zero
	// is the time of the first call.
	Now time.Time
	// Credentials are those of the first generation.
	Credentials Credentials
	// TieBreaker is sent with ICE-CONTROLLED. Zero is the best choice, not a
	// missing one: a client that wrongly is controlled too then always becomes
	// the controlling one (RFC 8445 section 7.3.1.1), which a lite agent needs.
	TieBreaker uint64
	// Seed makes transaction ids and timers repeatable in tests. Zero is a
	// random seed. Transaction ids prove that a client receives, so a seed that
	// anybody knows defeats path validation.
	Seed [32]byte
	// ConsentInterval is the mean time between consent checks on the current
	// path; each is randomised by 20 % (RFC 7675 section 5.1). Default 5 s. The
	// same checks measure the round-trip time.
	ConsentInterval time.Duration
	// ConsentTimeout is how long an answer to an own check proves a path.
	// Default 30 s (RFC 7675 section 5.1).
	ConsentTimeout time.Duration
	// ConnectTimeout is how long a new session may take until its first path is
	// proven. Default 30 s.
	ConnectTimeout time.Duration
	// DisconnectTimeout is the silence that makes a session disconnected.
	// Default 10 s: Firefox is silent for up to 6.1 s when it has nothing to send.
	DisconnectTimeout time.Duration
}

// stamp is a time in nanoseconds since a.base; 0 means never. It takes a third
// of the space of a time.Time and compares as a number.
type stamp int64

const (
	millisecond = stamp(time.Millisecond)
	second      = stamp(time.Second)
	// epoch is the stamp of Config.Now. It is large so that "never" is a long
	// time ago.
	epoch = 3600 * second
)

// Agent is the ICE front end of one session. Calls must not overlap: the
// caller locks. Times given to it should not go back; one that does counts as
// the latest seen.
type Agent struct {
	base time.Time
	now  stamp // the latest time seen

	rand       *rand.ChaCha8 // for tests; nil: the system's
	tieBreaker uint64

	consentInterval, consentTimeout   stamp
	connectTimeout, disconnectTimeout stamp

	generations [maxGenerations]generation // newest first, no gaps
	newest      int
	retired     []string

	paths      []path // grows to MaxPaths; begins in first
	current    int    // index of the current path, -1 if there is none
	selectedAt stamp
	serial     uint32
	state      State
	reason     Reason
	lastHeard  stamp
	first      [1]path // most sessions have one path, which lies with what is used with it
	firstTaken bool    // the session has had its first path
	rearm      bool    // connectBy is to be set at the next call
	consentAt  stamp   // next consent check, while the current path is proven

	replay       replay
	repeatsUntil stamp // when the allowance for answers to replays is whole again
	acks         acks
	debts        *debts // of unproven paths that were pushed out; nil until one was

	failedGeneration int
	connectBy        stamp

	stats Stats
}

func orDefault(d time.Duration, def stamp) stamp {
	if d <= 0 {
		return def
	}
	return stamp(d)
}

// New makes the agent of a session. Its own memory and numbers of crypto/rand,
// unless a seed is given, are all it asks the system for.
func New(c Config) *Agent {
	a := new(Agent)
	a.Init(c)
	return a
}

// Init is New for an Agent that is part of something else. It is not to be copied
// afterwards.
func (a *Agent) Init(c Config) {
	*a = Agent{
		tieBreaker:        c.TieBreaker,
		consentInterval:   orDefault(c.ConsentInterval, 5*second),
		consentTimeout:    orDefault(c.ConsentTimeout, 30*second),
		connectTimeout:    orDefault(c.ConnectTimeout, 30*second),
		disconnectTimeout: orDefault(c.DisconnectTimeout, 10*second),
		current:           -1,
		now:               epoch,
	}
	if !c.Now.IsZero() {
		a.base = c.Now.Add(-time.Duration(epoch))
	}
	if c.Seed != ([32]byte{}) {
		a.rand = rand.NewChaCha8(c.Seed)
	}
	a.paths = a.first[:0]
	a.connectBy = epoch + a.connectTimeout
	a.addGeneration(c.Credentials)
}

// random fills b with unpredictable bytes.
func (a *Agent) random(b []byte) {
	if a.rand != nil {
		_, _ = a.rand.Read(b) // documented never to fail
		return
	}
	_, _ = crand.Read(b) // documented never to fail
}

// tick turns the time of a call into a stamp.
func (a *Agent) tick(now time.Time) stamp {
	if a.base.IsZero() {
		a.base = now.Add(-time.Duration(a.now))
	}
	a.now = max(a.now, stamp(now.Sub(a.base)))
	if a.rearm {
		a.rearm = false
		a.connectBy = a.now + a.connectTimeout
	}
	return a.now
}

func (a *Agent) time(t stamp) time.Time { return a.base.Add(time.Duration(t)) }

// HandleSTUN handles a STUN message from the client at p that came through the
// relay with the trunk address via. m is what [stun.Parse] made of it, raw the
// datagram; neither is kept. Whatever is to be answered is in out, which is
// appended to. Requests and indications other than Binding, and messages that
// belong to no session of this agent, are ignored.
func (a *Agent) HandleSTUN(now time.Time, p Path, via netip.AddrPort, m *stun.Message, raw []byte, out *Output) {
	t := a.tick(now)
	if a.state == StateClosed || a.state == StateFailed {
		return
	}
	p = p.unmap()
	a.checkConsent(t, out)
	switch m.Type {
	case stun.BindingRequest:
		a.handleRequest(t, p, via, m, len(raw), out)
	case stun.BindingSuccess, stun.BindingError:
		a.handleResponse(t, p, via, m, len(raw), out)
	}
}

// Poll does what is due: tries of own checks, consent checks, another look at
// a path that is not yet quiet, expiry. It returns when it is to be called
// next, always after now, or the zero time when nothing will ever be due. Call
// it then, or earlier; after other calls, [Agent.Next] says whether that time
// has come closer.
func (a *Agent) Poll(now time.Time, out *Output) (next time.Time) {
	t := a.tick(now)
	if a.state != StateFailed && a.state != StateClosed {
		a.checkConsent(t, out)
		a.pollChecks(t, out)
		a.pollMoves(t, out)
		a.pollConsent(t, out)
		a.pollExpiry(t)
		a.pollState(t, out)
	}
	return a.Next()
}

// Next returns when Poll has something to do, which may be at once, or the
// zero time for never. It changes nothing.
func (a *Agent) Next() time.Time {
	if a.rearm {
		return a.time(a.now)
	}
	next := stamp(0)
	earlier := func(t stamp) {
		if t != 0 && (next == 0 || t < next) {
			next = t
		}
	}
	switch a.state {
	case StateFailed, StateClosed:
		return time.Time{}
	case StateNew, StateConnecting:
		earlier(a.connectBy)
	case StateConnected:
		earlier(a.lastHeard + a.disconnectTimeout)
	}
	for i := range a.paths {
		p := &a.paths[i]
		if !p.used {
			continue
		}
		if p.check.active {
			earlier(p.check.next)
		}
		earlier(p.lookAt)
		if i != a.current {
			earlier(p.expires(a.consentTimeout))
		}
	}
	if a.current >= 0 {
		earlier(a.consentAt)
		if p := &a.paths[a.current]; p.answeredAt != 0 {
			earlier(p.answeredAt + a.consentTimeout)
		}
	}
	return a.time(next)
}
