package icelite

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/stun"
)

// sim is a client and an agent with a network of a fixed round-trip time
// between them, in simulated time.
type sim struct {
	*harness
	start  time.Time
	events eventQueue
	seq    int
	rtt    time.Duration

	open    map[Path]bool           // addresses at which the client receives
	down    map[netip.AddrPort]bool // relays that are gone
	relay   netip.AddrPort          // the one that the client's packets arrive at
	creds   map[Path]Credentials
	send    Path // where the client's media goes
	media   bool
	stopped bool

	onAnswer func(p Path)
	onOwn    func(p Path)

	lastUp, lastDown time.Time
	gapUp, gapDown   time.Duration
	lostUp           int
	moves            []string
}

type event struct {
	at  time.Time
	seq int
	f   func()
}

type eventQueue []event

func (q eventQueue) Len() int { return len(q) }
func (q eventQueue) Less(i, j int) bool {
	return q[i].at.Before(q[j].at) || q[i].at.Equal(q[j].at) && q[i].seq < q[j].seq
}
func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *eventQueue) Push(x any)   { *q = append(*q, x.(event)) }
func (q *eventQueue) Pop() any {
	old := *q
	e := old[len(old)-1]
	*q = old[:len(old)-1]
	return e
}

func newSim(t *testing.T, rtt time.Duration, media bool, paths ...Path) *sim {
	s := &sim{
		harness: newHarness(t), rtt: rtt, media: media, relay: relay1,
		open: map[Path]bool{}, down: map[netip.AddrPort]bool{}, creds: map[Path]Credentials{},
		onAnswer: func(Path) {}, onOwn: func(Path) {},
	}
	s.start = s.now
	for _, p := range paths {
		s.open[p], s.creds[p] = true, creds(1)
	}
	s.send = paths[0]
	s.every(20*ms, s.tick)
	return s
}

func (s *sim) at(at time.Time, f func()) {
	s.seq++
	heap.Push(&s.events, event{at, s.seq, f})
}

func (s *sim) after(d time.Duration, f func()) { s.at(s.now.Add(d), f) }

func (s *sim) every(d time.Duration, f func()) {
	s.after(d, func() { f(); s.every(d, f) })
}

// run lets d of simulated time pass.
func (s *sim) run(d time.Duration) {
	s.t.Helper()
	for end := s.now.Add(d); ; {
		next := end
		if len(s.events) > 0 && s.events[0].at.Before(next) {
			next = s.events[0].at
		}
		if n := s.a.Next(); !n.IsZero() && n.Before(next) {
			s.now = later(n, s.now)
			s.poll()
			s.flush()
			continue
		}
		if !next.Before(end) {
			s.now = end
			return
		}
		s.now = next
		heap.Pop(&s.events).(event).f()
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// tick is 20 ms of media in both directions.
func (s *sim) tick() {
	if s.media && s.open[s.send] && !s.stopped {
		p, via := s.send, s.relay
		s.after(s.rtt/2, func() {
			if s.down[via] {
				return
			}
			if v := s.data(p, via, stun.ClassRTP, true, 150); v == Drop {
				s.lostUp++
			} else {
				s.gap(&s.lastUp, &s.gapUp)
			}
			s.flush()
		})
	}
	if p, via, _, ok := s.a.Allow(s.now, 50); ok {
		s.after(s.rtt/2, func() {
			if s.open[p] && !s.down[via] {
				s.gap(&s.lastDown, &s.gapDown)
			}
		})
	}
}

func (s *sim) gap(last *time.Time, worst *time.Duration) {
	if !last.IsZero() {
		*worst = max(*worst, s.now.Sub(*last))
	}
	*last = s.now
}

func (s *sim) resetGaps() { s.gapUp, s.gapDown, s.lostUp = 0, 0, 0 }

// flush sends on what the agent wants sent.
func (s *sim) flush() {
	if s.out.Events.Has(EventPathSelected) {
		p, _ := s.a.SelectedPath()
		s.moves = append(s.moves, fmt.Sprintf("%v: %v", s.now.Sub(s.start), p))
	}
	for _, o := range clone(s.out.Packets) {
		s.after(s.rtt/2, func() {
			if !s.open[o.Path] || s.down[o.Via] {
				return
			}
			m := s.parse(o.Data)
			switch m.m.Type {
			case stun.BindingSuccess:
				s.onAnswer(o.Path)
			case stun.BindingRequest:
				c := s.creds[o.Path]
				if !s.auth.Check(&m.m, []byte(c.RemotePassword)) {
					return // for credentials this address does not have
				}
				s.onOwn(o.Path)
				s.toHost(o.Path, s.makeAnswer(o, c, 0))
			}
		})
	}
}

func (s *sim) toHost(p Path, m packet) {
	via := s.relay
	s.after(s.rtt/2, func() {
		if !s.down[via] {
			s.stunFrom(p, via, m)
			s.flush()
		}
	})
}

func (s *sim) sendCheck(p Path, use bool) {
	if s.open[p] {
		s.toHost(p, s.makeCheck(checkOpts{creds: s.creds[p], use: use}))
	}
}

// chromium checks a path as measured; USE-CANDIDATE is on all but the first
// check of the path it has selected.
func (s *sim) chromium(p Path, jitter time.Duration) {
	check := func(first bool) func() {
		return func() { s.sendCheck(p, !first && p == s.send) }
	}
	for i, d := range []time.Duration{0, 50 * ms, 112 * ms, 1240 * ms, 2300 * ms} {
		s.after(d+jitter, check(i == 0))
	}
	s.after(2300*ms+jitter, func() { s.every(2656*ms, check(false)) })
}

// firefox nominates every path at set-up, answers our check on a new path with
// one more of its own, and later checks without the flag.
func (s *sim) firefox(p Path, jitter time.Duration, r *rand.Rand) {
	s.after(jitter, func() { s.sendCheck(p, true) })
	triggered := map[Path]bool{}
	s.onOwn = func(p Path) {
		if !triggered[p] {
			triggered[p] = true
			s.after(50*ms, func() { s.sendCheck(p, true) })
		}
	}
	var again func()
	again = func() {
		s.sendCheck(p, false)
		s.after(4100*ms+time.Duration(r.Int64N(int64(2000*ms))), again)
	}
	s.after(4100*ms+jitter, again)
}

var rtts = []time.Duration{0, 50 * ms, 200 * ms}

// Two ingresses, both alive all the time: once it is set up, nothing moves,
// with audio, and with a data channel that has nothing to say.
func TestTwoIngressesDoNotFlap(t *testing.T) {
	for _, browser := range []string{"chromium", "firefox"} {
		for _, media := range []bool{true, false} {
			for _, rtt := range rtts {
				for _, use := range []Path{pathA, pathB} {
					t.Run(fmt.Sprintf("%s media %v rtt %v on %d", browser, media, rtt, use.Ingress), func(t *testing.T) {
						s := newSim(t, rtt, false, pathA, pathB)
						r := rand.New(rand.NewPCG(1, 2))
						for i, p := range []Path{pathA, pathB} {
							jitter := time.Duration(i) * 5 * ms
							if browser == "chromium" {
								s.chromium(p, jitter)
							} else {
								s.firefox(p, jitter, r)
							}
						}
						s.send = use
						s.after(rtt+60*ms, func() { // DTLS, even if there is no audio
							s.media = true
							if !media {
								s.after(300*ms, func() { s.media = false })
							}
						})
						s.run(3 * time.Second)
						s.wantCurrent(use)
						if len(s.moves) > 3 {
							t.Errorf("%d moves at set-up: %v", len(s.moves), s.moves)
						}
						before := len(s.moves)
						s.run(60 * time.Second)
						if len(s.moves) != before {
							t.Errorf("moves in 60 s: %v", s.moves[before:])
						}
						s.wantCurrent(use)
						s.wantState(StateConnected, ReasonNone)
						if s.lostUp > 2 {
							t.Errorf("%d packets of the client dropped", s.lostUp)
						}
					})
				}
			}
		}
	}
}

// The client's address changes in mid-call and its next check is seconds away:
// SRTP from the new one is enough.
func TestNATRebindingWithAudio(t *testing.T) {
	for _, rtt := range rtts {
		t.Run(rtt.String(), func(t *testing.T) {
			s := newSim(t, rtt, true, pathA)
			s.firefox(pathA, 0, rand.New(rand.NewPCG(1, 2)))
			s.run(10 * time.Second)
			s.resetGaps()
			s.open[pathA] = false
			s.open[pathC], s.creds[pathC] = true, creds(1)
			s.send = pathC
			s.run(2 * time.Second)
			s.wantCurrent(pathC)
			// A packet up, our check down, its answer up, media down.
			if limit := 2*rtt + 60*ms; s.gapDown > limit {
				t.Errorf("downlink gap %v", s.gapDown)
			}
			if s.gapUp > 40*ms || s.lostUp > 0 {
				t.Errorf("uplink gap %v, %d lost", s.gapUp, s.lostUp)
			}
		})
	}
}

// Without media, the client's next check from the new address is what tells.
func TestNATRebindingInSilence(t *testing.T) {
	for _, use := range []bool{true, false} {
		for _, rtt := range rtts {
			s := newSim(t, rtt, false, pathA)
			s.chromium(pathA, 0)
			s.run(10 * time.Second)
			s.open[pathA] = false
			s.open[pathC], s.creds[pathC] = true, creds(1)
			s.sendCheck(pathC, use)
			s.run(2*rtt + 1100*ms)
			s.wantCurrent(pathC)
		}
	}
}

// Wi-Fi to LTE: the old network is gone, the client checks from the new one.
func TestNetworkChangeInMidCall(t *testing.T) {
	s := newSim(t, 50*ms, true, pathA)
	s.chromium(pathA, 0)
	s.run(5 * time.Second)
	s.resetGaps()
	s.open[pathA] = false
	s.open[pathX], s.creds[pathX] = true, creds(1)
	s.run(300 * ms) // it takes the client a while to notice
	s.onAnswer = func(p Path) {
		if p == pathX {
			s.send = pathX
		}
	}
	s.sendCheck(pathX, false)
	s.run(time.Second)
	s.wantCurrent(pathX)
	if s.gapDown > 500*ms {
		t.Errorf("downlink gap %v", s.gapDown)
	}
}

// Five ICE restarts in a row, each with a new local port; audio stays on the
// old port until the new pair works.
func TestFiveRestartsInARow(t *testing.T) {
	for _, use := range []bool{true, false} {
		s := newSim(t, 50*ms, true, pathA)
		s.chromium(pathA, 0)
		s.run(3 * time.Second)
		s.resetGaps()
		for n := 2; n <= 6; n++ {
			p := port(7000 + n)
			old := s.send
			s.a.Restart(creds(n))
			s.a.RetiredUfrags()
			s.open[p], s.creds[p] = true, creds(n)
			answered := false
			s.onAnswer = func(q Path) {
				if q == p && !answered {
					answered = true
					s.send = p
					s.sendCheck(p, use)
					s.after(500*ms, func() { s.open[old] = false })
				}
			}
			s.sendCheck(p, false)
			s.run(1500 * ms)
			s.wantCurrent(p)
			if len(s.a.Paths()) > 4 {
				t.Errorf("%d paths", len(s.a.Paths()))
			}
		}
		if s.lostUp != 0 || s.gapUp > 40*ms || s.gapDown > 120*ms {
			t.Errorf("%d lost, gaps %v up, %v down", s.lostUp, s.gapUp, s.gapDown)
		}
	}
}

// The balancer moves a client to another relay and the old one dies.
func TestRelayChangeInMidCall(t *testing.T) {
	for _, rtt := range rtts {
		s := newSim(t, rtt, true, pathA)
		s.chromium(pathA, 0)
		s.run(4 * time.Second)
		s.resetGaps()
		before := len(s.moves)
		s.down[relay1] = true
		s.relay = relay2
		s.run(10 * time.Second)
		if limit := rtt + 60*ms; s.gapDown > limit || s.gapUp > limit {
			t.Errorf("rtt %v: gaps %v up, %v down", rtt, s.gapUp, s.gapDown)
		}
		// And back, to a relay that the path was behind before.
		s.resetGaps()
		s.down[relay1], s.down[relay2] = false, true
		s.relay = relay1
		s.run(10 * time.Second)
		if limit := 2*rtt + 200*ms; s.gapDown > limit {
			t.Errorf("rtt %v: gap %v down on the way back", rtt, s.gapDown)
		}
		if len(s.moves) != before || len(s.a.Paths()) != 1 {
			t.Errorf("the path itself moved: %v", s.moves)
		}
	}
}

// A balancer that sprays packets over two relays keeps the path where it is.
func TestPacketsSprayedOverTwoRelays(t *testing.T) {
	s := newSim(t, 20*ms, true, pathA)
	s.chromium(pathA, 0)
	n := 0
	s.every(7*ms, func() {
		if n++; n%2 == 0 {
			s.relay = relay2
		} else {
			s.relay = relay1
		}
	})
	s.run(30 * time.Second)
	if c := s.a.Stats().RelayChanges; c > 30 {
		t.Errorf("%d relay changes for about a thousand packets", c)
	}
	if s.gapDown > 60*ms {
		t.Errorf("gap %v", s.gapDown)
	}
}

// The client is gone: disconnected, then failed, within the documented times.
func TestClientVanishes(t *testing.T) {
	s := newSim(t, 50*ms, true, pathA)
	s.chromium(pathA, 0)
	s.run(10 * time.Second)
	s.open[pathA] = false
	s.run(11 * time.Second)
	s.wantState(StateDisconnected, ReasonNone)
	s.run(20 * time.Second)
	s.wantState(StateFailed, ReasonConsentLost)
	if !s.a.Next().IsZero() {
		t.Error("timers are left")
	}
}
