package peers

import (
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/pion/stun/v3"

	"github.com/usher-rtc/usher/internal/bench/load"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/ufrag"
)

// keyEnv carries the key to the relay's process.
const keyEnv = "USHER_BENCH_KEY"

// usherPeer is usher's relay, with Host stubs that speak the trunk protocol.
type usherPeer struct {
	env     *Env
	name    string
	delay   time.Duration
	profile string // address of the process' profiles; empty without
	keys    *ufrag.Keyring
	codec   ufrag.Codec
	proc    *load.Process
	ingress load.Endpoint
	minters []*ufrag.Minter
	flows   []usherFlow
	builder *trunk.Builder
	reader  trunk.Reader
	epochs  []uint64 // of each Host
	links   map[linkKey]*trunk.Link
	spoke   map[linkKey]time.Time // when the Host last said that it is alive
}

type usherFlow struct {
	ufrag, password string
	route           ufrag.Route
	relay           load.Endpoint // trunk address of the worker that has the flow
	taught          time.Time     // when a frame last carried the route
	answered        bool
}

type linkKey struct {
	host  int
	relay load.Endpoint
}

// NewUsher returns usher's relay. delay is its MaxBatchDelay.
func NewUsher(name string, delay time.Duration) Peer { return &usherPeer{name: name, delay: delay} }

// Profiled is a relay whose process can be asked for a CPU profile.
type Profiled interface {
	Peer
	// ProfileURL is where a profile of this length is to be had, in whole seconds.
	ProfileURL(took time.Duration) string
}

// NewProfiledUsher returns usher's relay with a server for profiles beside it.
func NewProfiledUsher() Profiled { return &usherPeer{name: "usher", profile: "127.0.0.1:0"} }

func (p *usherPeer) ProfileURL(took time.Duration) string {
	return fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", p.profile, int(took/time.Second))
}

func (p *usherPeer) Name() string           { return p.name }
func (p *usherPeer) Process() *load.Process { return p.proc }
func (p *usherPeer) Stop() error            { return p.proc.Stop() }

func (p *usherPeer) Start(env *Env) error {
	p.env = env
	key, err := ufrag.GenerateKey(benchKeyID)
	if err != nil {
		return err
	}
	if p.keys, err = ufrag.NewKeyring(key.ID, key); err != nil {
		return err
	}
	p.codec = ufrag.NewCodec(p.keys)
	p.builder = trunk.NewBuilder(0)
	p.links = make(map[linkKey]*trunk.Link)
	p.spoke = make(map[linkKey]time.Time)
	for h := range env.Upstreams {
		route, err := ufrag.IPv4Route(benchCluster, addrPort(env.HostAddr(h)), 0)
		if err != nil {
			return err
		}
		p.minters = append(p.minters, ufrag.NewMinter(p.codec, route))
		p.epochs = append(p.epochs, uint64(load.Now())^uint64(h)<<56)
	}
	if err := os.Setenv(keyEnv, hex.EncodeToString(key.Secret[:])); err != nil {
		return err
	}
	p.proc, err = load.StartProcess(env.CPUs, env.Exe, "serve", "usher", "127.0.0.1:0",
		strconv.Itoa(env.Workers), p.delay.String(), p.profile)
	_ = os.Unsetenv(keyEnv)
	if err != nil {
		return err
	}
	line, err := p.proc.Line(10 * time.Second)
	if err != nil {
		return err
	}
	p.proc.Discard()
	words := strings.Fields(line)
	if len(words) == 2 {
		p.profile = words[1]
	}
	p.ingress, err = parseEndpoint(words[0])
	return err
}

// Establish sends a check with a minted ufrag for every client and answers it
// as a Host does, until every client has its answer.
func (p *usherPeer) Establish(n int) error {
	for len(p.flows) < n {
		u, pw, r, err := p.minters[len(p.flows)%len(p.minters)].Mint()
		if err != nil {
			return err
		}
		p.flows = append(p.flows, usherFlow{ufrag: u, password: pw, route: r})
	}
	poll := func() int {
		up := p.env.FromRelay(p, func(load.Endpoint, []byte) {})
		down := p.env.Clients.Recv()
		for i := range down {
			m := &stun.Message{Raw: append([]byte(nil), p.env.Clients.Data(i)...)}
			if m.Decode() == nil && m.Type == stun.BindingSuccess {
				if c, ok := transactionClient(m); ok && c < n {
					p.flows[c].answered = true
				}
			}
		}
		return up + down
	}
	err := exchange(p.env, n, func(c int) bool { return p.flows[c].answered }, p.check, poll)
	if err != nil {
		return fmt.Errorf("%s: checks: %w", p.name, err)
	}
	return checkBothWays(p.env, p, n, nil)
}

// check sends a client's connectivity check.
func (p *usherPeer) check(c int) {
	f := &p.flows[c]
	m, err := stun.Build(stun.BindingRequest, transaction(c),
		stun.NewUsername(f.ufrag+":bench"),
		stun.RawAttribute{Type: stun.AttrPriority, Value: []byte{0x6e, 0x7f, 0xff, 0xff}},
		stun.RawAttribute{Type: stun.AttrICEControlling, Value: []byte{0, 0, 0, 0, 0, 0, 0, 1}},
		stun.RawAttribute{Type: stun.AttrUseCandidate},
		stun.NewShortTermIntegrity(f.password), stun.Fingerprint)
	if err != nil {
		return // the exchange reports the client as unanswered
	}
	p.env.Raw.Push(p.env.ClientAddr(c), p.ingress, copy(p.env.Raw.Buffer(), m.Raw))
}

func (p *usherPeer) Up(buf []byte, _ int, payload []byte) (int, load.Endpoint) {
	return copy(buf, payload), p.ingress
}

// Down bundles the leading payloads that go by the same Host and relay worker,
// as many as a datagram takes.
func (p *usherPeer) Down(buf []byte, clients []int, payloads [][]byte) (n, used int, src, dst load.Endpoint) {
	host, relay := p.host(clients[0]), p.flows[clients[0]].relay
	h, now := p.link(host, relay).Header(trunk.TypeData), time.Now()
	p.builder.Reset(&h)
	for used < len(clients) && p.host(clients[used]) == host && p.flows[clients[used]].relay == relay {
		f := trunk.Frame{
			Flags: trunk.ToClient | trunk.Validated, Ingress: benchIngress,
			Client: addrPort(p.env.ClientAddr(clients[used])), Payload: payloads[used],
		}
		teach := now.Sub(p.flows[clients[used]].taught) >= teachInterval
		if teach {
			p.teach(clients[used], &f)
		}
		if !p.builder.Add(&f) {
			break
		}
		if teach {
			p.flows[clients[used]].taught = now
		}
		used++
	}
	p.builder.Seal(p.keys)
	for _, b := range p.builder.Buffers() {
		n += copy(buf[n:], b)
	}
	return n, used, p.env.HostAddr(host), relay
}

// teachInterval is how often a Host puts the route and the SSRCs into a frame of
// a flow, for relays that have restarted.
const teachInterval = 100 * time.Millisecond

func (p *usherPeer) teach(c int, f *trunk.Frame) {
	f.Route = p.flows[c].route
	f.SSRCs, f.NSSRC = [trunk.MaxSSRCs]uint32{ssrcTag<<24 | uint32(c)}, 1
}

// Group tells apart Hosts and relay workers: each Host has a writer of its own,
// and a flow's packets go to the worker that has the flow.
func (p *usherPeer) Group(client int) uint64 {
	return uint64(p.host(client))<<16 | uint64(p.flows[client].relay.Port)
}

// The only ingress, cluster and key.
const (
	benchIngress = 1
	benchCluster = 1
	benchKeyID   = 'b'
)

func (p *usherPeer) host(client int) int { return client % len(p.minters) }

func (p *usherPeer) link(host int, relay load.Endpoint) *trunk.Link {
	k := linkKey{host, relay}
	l := p.links[k]
	if l == nil {
		var secret [16]byte
		copy(secret[:], fmt.Sprintf("%d %v", p.epochs[host], relay))
		l = trunk.NewLink(p.epochs[host], secret)
		p.links[k] = l
	}
	return l
}

func (p *usherPeer) SplitUp(host int, from load.Endpoint, d []byte, out [][]byte) [][]byte {
	var h trunk.Header
	if p.reader.Open(d, p.keys, &h) != trunk.OK {
		return out
	}
	l := p.link(host, from)
	if !l.Observe(&h) {
		if nonce, ok := l.Hello(time.Now()); ok {
			m := trunk.Hello{Nonce: nonce, Role: trunk.RoleHost}
			hd := l.Header(trunk.TypeHello)
			b, _ := m.Append(nil, &hd, p.keys)
			p.send(host, from, b)
		}
	}
	p.keepalive(host, from, l)
	if h.Type != trunk.TypeData {
		p.control(host, from, l, &h)
		return out
	}
	var f trunk.Frame
	for p.reader.Next(&f) {
		if c, ok := p.clientOf(&f); ok {
			p.flows[c].relay = from
			if len(f.Payload) > 0 && f.Payload[0] < 4 {
				p.answer(host, from, c, &f)
				continue
			}
		}
		out = append(out, f.Payload)
	}
	return out
}

// keepaliveInterval is that of a Host, which relays take for dead after three seconds
// without a word.
const keepaliveInterval = time.Second

// keepalive tells a relay that has proven itself that the Host is alive.
func (p *usherPeer) keepalive(host int, relay load.Endpoint, l *trunk.Link) {
	k, now := linkKey{host, relay}, time.Now()
	epoch, proven := l.Peer()
	if !proven || now.Sub(p.spoke[k]) < keepaliveInterval {
		return
	}
	p.spoke[k] = now
	hd := l.Header(trunk.TypeKeepalive)
	m := trunk.Keepalive{To: epoch}
	b, _ := m.Append(nil, &hd, p.keys)
	p.send(host, relay, b)
}

// clientOf returns whose frame it is.
func (p *usherPeer) clientOf(f *trunk.Frame) (int, bool) {
	ip := f.Client.Addr().As4()
	c := int(ip[2])*250 + int(ip[3]) - 1
	return c, c >= 0 && c < len(p.flows) && f.Client.Port() == p.env.Clients.Port()
}

// answer answers a client's check, with the flag that confirms its flow.
func (p *usherPeer) answer(host int, relay load.Endpoint, c int, f *trunk.Frame) {
	req := &stun.Message{Raw: append([]byte(nil), f.Payload...)}
	if req.Decode() != nil || req.Type != stun.BindingRequest {
		return
	}
	client := f.Client.Addr().As4()
	resp, err := stun.Build(req, stun.BindingSuccess,
		&stun.XORMappedAddress{IP: client[:], Port: int(f.Client.Port())},
		stun.NewShortTermIntegrity(p.flows[c].password), stun.Fingerprint)
	if err != nil {
		return // the exchange reports the client as unanswered
	}
	h := p.link(host, relay).Header(trunk.TypeData)
	b := trunk.NewBuilder(0)
	b.Reset(&h)
	fr := trunk.Frame{
		Flags: trunk.ToClient | trunk.Validated, Ingress: f.Ingress, Client: f.Client, Payload: resp.Raw,
	}
	p.teach(c, &fr)
	b.Add(&fr)
	b.Seal(p.keys)
	var d []byte
	for _, part := range b.Buffers() {
		d = append(d, part...)
	}
	p.send(host, relay, d)
}

// control answers the relay's control datagrams.
func (p *usherPeer) control(host int, from load.Endpoint, l *trunk.Link, h *trunk.Header) {
	var b []byte
	switch h.Type {
	case trunk.TypeHello:
		var m trunk.Hello
		if m.Parse(p.reader.Body()) != trunk.OK {
			return
		}
		ack := l.OnHello(h, &m)
		ack.Role = trunk.RoleHost
		hd := l.Header(trunk.TypeHelloAck)
		b, _ = ack.Append(nil, &hd, p.keys)
	case trunk.TypeHelloAck:
		var m trunk.HelloAck
		if m.Parse(p.reader.Body()) != trunk.OK {
			return
		}
		ack, reply, _ := l.OnHelloAck(h, &m)
		if !reply {
			return
		}
		ack.Role = trunk.RoleHost
		hd := l.Header(trunk.TypeHelloAck)
		b, _ = ack.Append(nil, &hd, p.keys)
	case trunk.TypeKeepalive:
		var m trunk.Keepalive
		if m.Parse(p.reader.Body()) != trunk.OK || m.Reply || !l.Accept(h, m.To) {
			return
		}
		m.Reply, m.To = true, h.Epoch
		hd := l.Header(trunk.TypeKeepalive)
		b, _ = m.Append(nil, &hd, p.keys)
	default:
		return
	}
	p.send(host, from, b)
}

// send sends one datagram of a Host at once.
func (p *usherPeer) send(host int, relay load.Endpoint, d []byte) {
	if len(d) == 0 {
		return
	}
	p.env.Raw.Push(p.env.HostAddr(host), relay, copy(p.env.Raw.Buffer(), d))
	p.env.Raw.Flush()
}

func (p *usherPeer) SplitDown(d []byte, out [][]byte) [][]byte { return append(out, d) }
