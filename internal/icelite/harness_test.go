package icelite

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/stun"
)

var (
	relay1 = netip.MustParseAddrPort("10.0.0.1:4000")
	relay2 = netip.MustParseAddrPort("10.0.0.2:4000")
	relay3 = netip.MustParseAddrPort("10.0.0.3:4000")

	pathA = Path{Client: netip.MustParseAddrPort("192.0.2.7:5000"), Ingress: 1}
	pathB = Path{Client: netip.MustParseAddrPort("192.0.2.7:5000"), Ingress: 2}
	pathC = Path{Client: netip.MustParseAddrPort("192.0.2.7:6000"), Ingress: 1}
	pathX = Path{Client: netip.MustParseAddrPort("198.51.100.9:9999"), Ingress: 1}
)

// creds are those of generation n, with ufrags as long as real ones.
func creds(n int) Credentials {
	return Credentials{
		LocalUfrag:     fmt.Sprintf("A%022d", n),
		LocalPassword:  fmt.Sprintf("%032d", n),
		RemoteUfrag:    fmt.Sprintf("c%03d", n),
		RemotePassword: fmt.Sprintf("client%018d", n),
	}
}

// checkOpts says what a client's check looks like.
type checkOpts struct {
	creds      Credentials
	use        bool // USE-CANDIDATE
	controlled bool
	password   string // instead of the right one
	raw        func(*stun.Builder)
	id         stun.TransactionID // zero: a fresh one
}

type packet struct {
	raw []byte
	m   stun.Message
}

// harness drives one agent and plays the client.
type harness struct {
	t    testing.TB
	a    *Agent
	now  time.Time
	out  Output
	auth stun.Authenticator
	txid uint64
}

func newHarness(t testing.TB) *harness {
	h := &harness{t: t, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	h.a = New(Config{Now: h.now, Credentials: creds(1), Seed: [32]byte{1}})
	return h
}

func (h *harness) freshID() (id stun.TransactionID) {
	h.txid++
	copy(id[:], fmt.Sprintf("%012d", h.txid))
	return id
}

func (h *harness) parse(raw []byte) packet {
	h.t.Helper()
	p := packet{raw: raw}
	if pr := stun.Parse(raw, &p.m); pr != stun.OK {
		h.t.Fatalf("parse: %v", pr)
	}
	return p
}

func (h *harness) makeCheck(o checkOpts) packet {
	h.t.Helper()
	if o.creds == (Credentials{}) {
		o.creds = creds(1)
	}
	if o.password == "" {
		o.password = o.creds.LocalPassword
	}
	if o.id == (stun.TransactionID{}) {
		o.id = h.freshID()
	}
	var b stun.Builder
	b.Reset(nil, stun.BindingRequest, o.id)
	b.AddUsername(o.creds.LocalUfrag, o.creds.RemoteUfrag)
	if o.controlled {
		b.AddControlled(42)
	} else {
		b.AddControlling(42)
	}
	if o.use {
		b.AddUseCandidate()
	}
	b.AddPriority(0x6e7f00ff)
	if o.raw != nil {
		o.raw(&b)
	}
	b.AddIntegrity(&h.auth, []byte(o.password))
	b.AddFingerprint()
	return h.parse(b.Bytes())
}

// stunFrom hands a message to the agent and returns what it sends.
func (h *harness) stunFrom(p Path, via netip.AddrPort, m packet) []Outgoing {
	h.out.Reset()
	h.a.HandleSTUN(h.now, p, via, &m.m, m.raw, &h.out)
	return h.out.Packets
}

func (h *harness) check(p Path, o checkOpts) []Outgoing {
	h.t.Helper()
	return h.stunFrom(p, relay1, h.makeCheck(o))
}

// data hands a packet to the agent that is not STUN.
func (h *harness) data(p Path, via netip.AddrPort, class stun.Class, known bool, size int) DataVerdict {
	h.out.Reset()
	return h.a.HandleData(h.now, p, via, class, known, size, &h.out)
}

// rtp is a packet of audio with a known SSRC.
func (h *harness) rtp(p Path) DataVerdict { return h.data(p, relay1, stun.ClassRTP, true, 150) }

func (h *harness) poll() []Outgoing {
	h.t.Helper()
	h.out.Reset()
	next := h.a.Poll(h.now, &h.out)
	if !next.IsZero() && !next.After(h.now) {
		h.t.Fatalf("Poll at %v returned %v", h.now, next)
	}
	return h.out.Packets
}

// wait lets d pass and polls whenever the agent wants. It returns copies of
// what was sent, and all events.
func (h *harness) wait(d time.Duration) (sent []Outgoing, events Events) {
	h.t.Helper()
	end := h.now.Add(d)
	for n := 0; ; n++ {
		if n > 100000 {
			h.t.Fatal("the agent polls without end")
		}
		next := h.a.Next()
		if next.IsZero() || next.After(end) {
			break
		}
		if next.After(h.now) {
			h.now = next
		}
		sent = append(sent, clone(h.poll())...)
		events |= h.out.Events
	}
	h.now = end
	sent = append(sent, clone(h.poll())...)
	return sent, events | h.out.Events
}

// sleep lets d pass without polling.
func (h *harness) sleep(d time.Duration) { h.now = h.now.Add(d) }

func clone(ps []Outgoing) []Outgoing {
	var r []Outgoing
	for _, p := range ps {
		p.Data = append([]byte(nil), p.Data...)
		r = append(r, p)
	}
	return r
}

// ownCheckIn returns the own check among packets, and fails if there is none.
func (h *harness) ownCheckIn(ps []Outgoing, to Path) Outgoing {
	h.t.Helper()
	if o, ok := findOwnCheck(h, ps, to); ok {
		return clone([]Outgoing{o})[0]
	}
	h.t.Fatalf("no own check to %v among %d packets", to, len(ps))
	return Outgoing{}
}

func findOwnCheck(h *harness, ps []Outgoing, to Path) (Outgoing, bool) {
	h.t.Helper()
	for _, o := range ps {
		if o.Path == to && h.parse(o.Data).m.Type == stun.BindingRequest {
			return o, true
		}
	}
	return Outgoing{}, false
}

// makeAnswer is the client's answer to an own check.
func (h *harness) makeAnswer(o Outgoing, c Credentials, code int) packet {
	h.t.Helper()
	req := h.parse(o.Data)
	typ := stun.BindingSuccess
	if code != 0 {
		typ = stun.BindingError
	}
	var b stun.Builder
	b.Reset(nil, typ, req.m.TransactionID)
	if code != 0 {
		b.AddErrorCode(code, "")
	} else {
		b.AddXORMappedAddress(relay1)
	}
	b.AddIntegrity(&h.auth, []byte(c.RemotePassword))
	b.AddFingerprint()
	return h.parse(b.Bytes())
}

func (h *harness) answer(o Outgoing, c Credentials) []Outgoing {
	h.t.Helper()
	return h.stunFrom(o.Path, o.Via, h.makeAnswer(o, c, 0))
}

// prove brings a path to life: a check, and the answer to ours after rtt.
func (h *harness) prove(p Path, o checkOpts, rtt time.Duration) {
	h.t.Helper()
	own := h.ownCheckIn(h.check(p, o), p)
	h.sleep(rtt)
	c := o.creds
	if c == (Credentials{}) {
		c = creds(1)
	}
	h.answer(own, c)
	if !h.info(p).Validated {
		h.t.Fatalf("%v is not proven", p)
	}
}

func (h *harness) info(p Path) PathInfo {
	h.t.Helper()
	for _, i := range h.a.Paths() {
		if i.Path == p {
			return i
		}
	}
	h.t.Fatalf("no path %v", p)
	return PathInfo{}
}

func (h *harness) has(p Path) bool {
	for _, i := range h.a.Paths() {
		if i.Path == p {
			return true
		}
	}
	return false
}

func (h *harness) wantCurrent(p Path) {
	h.t.Helper()
	if got, ok := h.a.SelectedPath(); !ok || got != p {
		h.t.Fatalf("current path is %v (%v), want %v", got, ok, p)
	}
}

func (h *harness) wantState(s State, r Reason) {
	h.t.Helper()
	if gs, gr := h.a.State(); gs != s || gr != r {
		h.t.Fatalf("state is %v (%v), want %v (%v)", gs, gr, s, r)
	}
}

// keepAlive lets d pass in steps, with audio on p and all own checks answered.
func (h *harness) keepAlive(d time.Duration, p Path, c Credentials) {
	h.t.Helper()
	for end := h.now.Add(d); h.now.Before(end); {
		h.sleep(20 * time.Millisecond)
		h.rtp(p)
		for _, o := range clone(h.poll()) {
			if h.parse(o.Data).m.Type == stun.BindingRequest && o.Path == p {
				h.answer(o, c)
			}
		}
	}
}
