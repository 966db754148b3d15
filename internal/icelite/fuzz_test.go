package icelite

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/race"
	"github.com/usher-rtc/usher/internal/stun"
)

// model keeps, without any of the agent's code, what an agent must never do:
// send an address more than it may have, send media to one that has not shown
// that it receives, believe one that has not, grow without bounds.
type model struct {
	*harness
	first     Path
	hasFirst  bool
	in, spent map[Path]int // bytes, since the beginning
	stateless map[Path]int // bytes that entitle to one answer each
	signed    map[Path]bool
	live      map[Path]bool
	provedAt  map[Path]time.Time
	lapsed    map[Path]bool // proved once, and not any more
	asked     []Outgoing    // own checks, newest last
	old       []packet      // checks of the client's
	generated int
	retired   map[string]bool
}

var fuzzPaths = func() (ps []Path) {
	for i := range 12 {
		ps = append(ps, Path{
			Client:  netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i / 2)}), uint16(1000+i%3)),
			Ingress: uint16(i % 2),
		})
	}
	return ps
}()

func (m *model) proved(p Path) bool {
	at, ok := m.provedAt[p]
	return ok && m.now.Before(at.Add(30*time.Second))
}

// lapse gives paths whose proof has aged their allowance anew. What they have sent
// before still counts: the agent may or may not have begun to count again.
func (m *model) lapse() {
	for p := range m.provedAt {
		if !m.proved(p) && !m.lapsed[p] {
			m.lapsed[p], m.spent[p] = true, 0
		}
	}
}

func (m *model) limit(p Path) int {
	switch {
	case m.hasFirst && p == m.first:
		return max(1200, m.in[p]) + m.stateless[p]
	case m.signed[p]:
		return 3*m.in[p] + m.stateless[p]
	default:
		return m.in[p] + m.stateless[p]
	}
}

// sent checks everything the agent wants sent.
func (m *model) sent() {
	m.lapse()
	for _, o := range clone(m.out.Packets) {
		m.spend(o.Path, len(o.Data))
		if o.Validated && !m.proved(o.Path) {
			m.t.Fatalf("%v is called validated", o.Path)
		}
		if m.parse(o.Data).m.Type == stun.BindingRequest {
			m.asked = append(m.asked, o)
			if len(m.asked) > 64 {
				m.asked = m.asked[1:]
			}
		}
	}
	if m.out.Events.Has(EventPathValidated) && !m.proved(m.out.ValidatedPath) {
		m.t.Fatal("validated without an answer")
	}
}

func (m *model) spend(p Path, n int) {
	if m.proved(p) {
		return
	}
	m.spent[p] += n
	if got := m.spent[p]; got > m.limit(p) {
		m.t.Fatalf("%d bytes to %v, limit %d (in %d, stateless %d)", got, p, m.limit(p), m.in[p], m.stateless[p])
	}
}

func (m *model) invariants() {
	a := m.a
	a.tick(m.now)
	if n := len(a.Paths()); n > MaxPaths {
		m.t.Fatalf("%d paths", n)
	}
	// A path that was forgotten starts over, but there is only one first path.
	for p := range m.live {
		if !m.has(p) {
			delete(m.live, p)
			m.in[p], m.spent[p], m.stateless[p] = 0, 0, 0
			if m.first == p {
				m.first = Path{}
			}
		}
	}
	current := 0
	for _, i := range a.Paths() {
		m.live[i.Path] = true
		if i.Current {
			current++
		}
		if i.Validated && !m.proved(i.Path) {
			m.t.Fatalf("%v is proven without an answer", i.Path)
		}
	}
	if p, ok := a.SelectedPath(); ok != (current == 1) || ok && !m.proved(p) && p != m.first && m.provedAt[p].IsZero() {
		m.t.Fatalf("current path %v (%v) is neither proven nor the first", p, ok)
	}
	for _, u := range a.RetiredUfrags() {
		if m.retired[u] {
			m.t.Fatalf("%s retired twice", u)
		}
		m.retired[u] = true
	}
	live := 0
	for n := 1; n <= m.generated; n++ {
		if !m.retired[creds(n).LocalUfrag] {
			live++
		}
	}
	if live > maxGenerations || m.retired[creds(m.generated).LocalUfrag] {
		m.t.Fatalf("%d generations live", live)
	}
}

// step takes one operation off the input.
func (m *model) step(b []byte) []byte {
	var op [4]byte
	n := copy(op[:], b)
	m.lapse()
	p := fuzzPaths[int(op[1])%len(fuzzPaths)]
	via := []netip.AddrPort{relay1, relay2, relay3}[int(op[2])%3]
	gen := max(1, m.generated-int(op[3]>>2)%5)
	use := op[3]&1 != 0
	switch op[0] % 12 {
	case 0, 1: // an authentic check
		c := m.makeCheck(checkOpts{creds: creds(gen), use: use})
		m.fresh(p, via, c)
		m.old = append(m.old, c)
		if len(m.old) > 64 {
			m.old = m.old[1:]
		}
	case 2: // a replay, perhaps from elsewhere
		if len(m.old) > 0 {
			c := m.old[int(op[3])%len(m.old)]
			m.fresh(p, via, c)
		}
	case 3: // refused ones
		o := checkOpts{creds: creds(gen)}
		switch op[3] % 3 {
		case 0:
			o.password = "wrong"
		case 1:
			o.controlled = true
		default:
			o.raw = func(b *stun.Builder) { b.AddRaw(0x7fff, nil) }
		}
		c := m.makeCheck(o)
		m.stateless[p] += len(c.raw)
		m.stunFrom(p, via, c)
		m.sent()
		if m.out.Events.Has(EventAuthenticated) {
			m.t.Fatal("a refused check counts")
		}
	case 4, 5: // the answer to an own check, right or wrong
		if len(m.asked) == 0 {
			break
		}
		o := m.asked[len(m.asked)-1-int(op[3]>>1)%len(m.asked)]
		c := creds(m.generationOf(o))
		code := 0
		if op[2]&8 != 0 {
			code = 487
		}
		if op[2]&16 != 0 {
			c.RemotePassword = "wrong"
		}
		if op[2]&32 == 0 { // else from elsewhere, which is no worse
			p = o.Path
		}
		a := m.makeAnswer(o, c, code)
		m.in[p] += len(a.raw)
		if code == 0 && c.RemotePassword != "wrong" {
			m.provedAt[o.Path] = m.now
			m.lapsed[o.Path] = false
		}
		m.stunFrom(p, via, a)
		m.sent()
	case 6, 7: // DTLS or SRTP
		class := stun.ClassRTP
		if op[3]&2 != 0 {
			class = stun.ClassDTLS
		}
		size := 20 + int(op[3])*4
		m.in[p] += size
		v := m.data(p, via, class, use, size)
		m.sent()
		if v == Deliver && !m.proved(p) && !(m.hasFirst && p == m.first) {
			m.t.Fatalf("believed %v", p)
		}
		if v == DeliverSRTP && (class != stun.ClassRTP || !use) {
			m.t.Fatal("DTLS or an unknown SSRC from an address that is not proven")
		}
	case 8: // media of ours
		size := 50 + int(op[3])*4
		if to, _, validated, ok := m.a.Allow(m.now, size); ok {
			if !m.proved(to) && (!m.hasFirst || to != m.first) {
				m.t.Fatalf("media to %v", to)
			}
			if validated != m.proved(to) && validated {
				m.t.Fatalf("%v is called validated", to)
			}
			m.spend(to, size)
		}
	case 9: // time, polled when it is due
		for end := m.now.Add(time.Duration(op[1])*20*time.Millisecond + time.Duration(op[2])); ; {
			next := m.a.Next()
			if next.IsZero() || next.After(end) {
				m.now = end
				break
			}
			m.now = later(next, m.now)
			m.poll()
			m.sent()
		}
	case 10: // time, not polled
		m.sleep(time.Duration(op[1]) * time.Duration(op[2]) * time.Millisecond)
		if use {
			m.poll()
			m.sent()
		}
	case 11:
		switch {
		case op[3] == 255:
			m.a.Close()
		case use && m.generated < 40:
			m.generated++
			if g := m.a.Restart(creds(m.generated)); g != m.generated {
				m.t.Fatalf("generation %d", g)
			}
		default:
			m.a.Restart(creds(m.generated))
		}
	}
	m.invariants()
	return b[n:]
}

// fresh hands in a signed check, new or not.
func (m *model) fresh(p Path, via netip.AddrPort, c packet) {
	m.in[p] += len(c.raw)
	before := m.a.Stats().Checks
	wasFirst := m.hasFirst
	m.out.Reset()
	// What the agent makes of it is not the model's business, but from here on
	// the address has sent a signed check, and the first to do so is the first.
	m.signed[p] = true
	if !m.hasFirst {
		m.first, m.hasFirst = p, true
	}
	m.a.HandleSTUN(m.now, p, via, &c.m, c.raw, &m.out)
	if m.a.Stats().Checks == before && !wasFirst {
		m.hasFirst = false // it was not accepted
		m.first = Path{}
	}
	m.sent()
}

func (m *model) generationOf(o Outgoing) int {
	req := m.parse(o.Data)
	remote, _, _ := req.m.SplitUsername()
	for n := 1; n <= m.generated; n++ {
		if creds(n).RemoteUfrag == string(remote) {
			return n
		}
	}
	m.t.Fatal("own check for unknown credentials")
	return 0
}

func FuzzAgent(f *testing.F) {
	// A call with two paths, a restart, a replay, and time.
	f.Add([]byte{0, 0, 0, 0, 4, 0, 0, 0, 6, 0, 0, 1, 8, 0, 0, 9, 0, 1, 1, 1, 4, 1, 1, 0, 6, 1, 1, 1, 11, 0, 0, 1, 0, 5, 0, 1, 4, 5, 0, 0, 2, 7, 2, 1, 9, 200, 0, 0})
	f.Add([]byte{0, 0, 0, 0, 3, 1, 0, 0, 3, 1, 0, 1, 3, 1, 0, 2, 6, 9, 0, 1, 6, 9, 0, 1, 6, 9, 0, 1, 10, 200, 200, 1, 9, 255, 0, 0})
	f.Add(slices.Repeat([]byte{0, 3, 0, 0, 9, 200, 0, 0, 5, 0, 0, 0, 6, 3, 1, 1}, 40))
	f.Fuzz(runModel)
}

func runModel(t *testing.T, b []byte) {
	m := &model{
		harness: newHarness(t), generated: 1,
		in: map[Path]int{}, spent: map[Path]int{}, stateless: map[Path]int{},
		signed: map[Path]bool{}, live: map[Path]bool{}, provedAt: map[Path]time.Time{}, lapsed: map[Path]bool{}, retired: map[string]bool{},
	}
	for steps := 0; len(b) > 0 && steps < 400; steps++ {
		b = m.step(b)
	}
}

// The same without a fuzzer, so that every test run has some of it.
func TestRandomOperations(t *testing.T) {
	runs := uint64(150)
	if race.Enabled {
		runs = 15 // it is much slower, and there is one goroutine only
	}
	for seed := range runs {
		r := rand.New(rand.NewPCG(seed, 1))
		b := make([]byte, 4*400)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		for i := 0; i < len(b); i += 4 {
			if b[i]%12 == 9 && r.IntN(4) > 0 {
				b[i+1] %= 8 // mostly short waits
			}
			if r.IntN(3) > 0 {
				b[i+1] %= 4 // mostly the same few paths
			}
			if b[i]%12 == 11 && b[i+3] == 255 {
				b[i] = 0 // not closed half-way
			}
		}
		runModel(t, b)
	}
}
