package peers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/pion/stun/v3"

	"github.com/usher-rtc/usher/internal/bench/load"
)

const (
	turnUser     = "bench"
	turnPassword = "bench"
	turnRealm    = "bench"
	turnChannel  = 0x4000
)

var errTURN = errors.New("the TURN server refused")

// turnPeer is a TURN server. Every client makes an allocation and binds one
// channel to the upstream, so that all media is ChannelData.
type turnPeer struct {
	env     *Env
	name    string
	argv    func(env *Env, port uint16) []string
	proc    *load.Process
	ingress load.Endpoint
	flows   []turnFlow
	key     stun.MessageIntegrity
}

type turnFlow struct {
	nonce   stun.Nonce
	relayed load.Endpoint
	bound   bool
}

// NewCoturn returns Debian's coturn: one relay thread per worker, no
// authentication, no log, no TLS, no TCP, lifetimes longer than the run.
func NewCoturn() Peer {
	return &turnPeer{name: "coturn", argv: func(env *Env, port uint16) []string {
		return []string{"turnserver", "-n", "-z", "--realm", turnRealm,
			"--listening-ip", "127.0.0.1", "--relay-ip", "127.0.0.1", "--listening-port", strconv.Itoa(int(port)),
			"--relay-threads", strconv.Itoa(env.Workers), "--allow-loopback-peers",
			"--no-tcp", "--no-tls", "--no-dtls", "--no-tcp-relay", "--no-cli", "--no-rfc5780",
			"--no-software-attribute", "--no-dynamic-ip-list", "--no-dynamic-realms", "--no-auth-pings",
			"--channel-lifetime", "7200", "--permission-lifetime", "7200", "--max-allocate-lifetime", "7200",
			"--no-stdout-log", "--log-file", "/dev/null", "--simple-log",
			"--userdb", filepath.Join(env.Dir, "turndb"), "--pidfile", filepath.Join(env.Dir, "turnserver.pid")}
	}}
}

// NewPionTURN returns pion/turn, in a process of its own.
func NewPionTURN() Peer {
	return &turnPeer{name: "pion-turn", argv: func(env *Env, port uint16) []string {
		return []string{env.Exe, "serve", "pion-turn", loopback(port).String()}
	}}
}

func (p *turnPeer) Name() string           { return p.name }
func (p *turnPeer) Process() *load.Process { return p.proc }
func (p *turnPeer) Stop() error            { return p.proc.Stop() }

func (p *turnPeer) Start(env *Env) error {
	p.env = env
	p.key = stun.NewLongTermIntegrity(turnUser, turnRealm, turnPassword)
	port, err := freePort()
	if err != nil {
		return err
	}
	p.ingress = loopback(port)
	if p.proc, err = load.StartProcess(env.CPUs, p.argv(env, port)...); err != nil {
		return err
	}
	p.proc.Discard()
	return waitListening(port, 5*time.Second)
}

func (p *turnPeer) Establish(n int) error {
	for len(p.flows) < n {
		p.flows = append(p.flows, turnFlow{})
	}
	var refused error
	poll := func() int {
		k := p.env.Clients.Recv()
		for i := range k {
			if err := p.answer(p.env.Clients.Data(i)); err != nil {
				refused = err
			}
		}
		return k
	}
	err := exchange(p.env, n, func(c int) bool { return p.flows[c].bound }, p.request, poll)
	if err != nil {
		return fmt.Errorf("%s: %w", p.name, errors.Join(err, refused))
	}
	return checkBothWays(p.env, p, n, nil)
}

// transaction sets an id that carries the client, so that answers need no table.
func transaction(c int) stun.Setter {
	var id [stun.TransactionIDSize]byte
	binary.BigEndian.PutUint32(id[:], uint32(c))
	binary.BigEndian.PutUint64(id[4:], uint64(load.Now()))
	return stun.NewTransactionIDSetter(id)
}

// transactionClient returns the client in a transaction id.
func transactionClient(m *stun.Message) (int, bool) {
	c := binary.BigEndian.Uint32(m.TransactionID[:])
	return int(c), c < 1<<24
}

// request sends the next request that the client's flow needs.
func (p *turnPeer) request(c int) {
	f := &p.flows[c]
	var attrs []stun.Setter
	if f.relayed.Port == 0 {
		attrs = []stun.Setter{
			stun.NewType(stun.MethodAllocate, stun.ClassRequest), transaction(c),
			stun.RawAttribute{Type: stun.AttrRequestedTransport, Value: []byte{17, 0, 0, 0}},
			stun.RawAttribute{Type: stun.AttrLifetime, Value: binary.BigEndian.AppendUint32(nil, 3600)},
		}
	} else {
		up := p.env.HostAddr(0)
		attrs = []stun.Setter{
			stun.NewType(stun.MethodChannelBind, stun.ClassRequest), transaction(c),
			stun.RawAttribute{Type: stun.AttrChannelNumber, Value: []byte{turnChannel >> 8, turnChannel & 0xff, 0, 0}},
			xorPeer{stun.XORMappedAddress{IP: up.IP[:], Port: int(up.Port)}},
		}
	}
	if len(f.nonce) > 0 {
		attrs = append(attrs, stun.NewUsername(turnUser), stun.NewRealm(turnRealm), f.nonce, p.key)
	}
	m, err := stun.Build(attrs...)
	if err != nil {
		return // the exchange reports the client as unanswered
	}
	p.env.Raw.Push(p.env.ClientAddr(c), p.ingress, copy(p.env.Raw.Buffer(), m.Raw))
}

// xorPeer writes XOR-PEER-ADDRESS, which is coded as XOR-MAPPED-ADDRESS.
type xorPeer struct{ addr stun.XORMappedAddress }

func (x xorPeer) AddTo(m *stun.Message) error { return x.addr.AddToAs(m, stun.AttrXORPeerAddress) }

// answer takes in a response.
func (p *turnPeer) answer(d []byte) error {
	m := &stun.Message{Raw: append([]byte(nil), d...)}
	if err := m.Decode(); err != nil {
		return nil // media
	}
	c, ok := transactionClient(m)
	if !ok || c >= len(p.flows) {
		return nil
	}
	f := &p.flows[c]
	switch m.Type {
	case stun.NewType(stun.MethodAllocate, stun.ClassSuccessResponse):
		var x stun.XORMappedAddress
		if err := x.GetFromAs(m, stun.AttrXORRelayedAddress); err != nil {
			return err
		}
		f.relayed = load.Endpoint{IP: [4]byte(x.IP.To4()), Port: uint16(x.Port)}
		p.request(c)
		p.env.Raw.Flush()
	case stun.NewType(stun.MethodChannelBind, stun.ClassSuccessResponse):
		f.bound = true
	default:
		var code stun.ErrorCodeAttribute
		if code.GetFrom(m) != nil {
			return nil
		}
		if code.Code != stun.CodeUnauthorized && code.Code != stun.CodeStaleNonce {
			return fmt.Errorf("%w: %v", errTURN, code)
		}
		if err := f.nonce.GetFrom(m); err != nil {
			return err
		}
		p.request(c)
		p.env.Raw.Flush()
	}
	return nil
}

func (p *turnPeer) Up(buf []byte, _ int, payload []byte) (int, load.Endpoint) {
	binary.BigEndian.PutUint16(buf, turnChannel)
	binary.BigEndian.PutUint16(buf[2:], uint16(len(payload)))
	return 4 + copy(buf[4:], payload), p.ingress
}

func (p *turnPeer) Down(buf []byte, clients []int, payloads [][]byte) (n, used int, src, dst load.Endpoint) {
	return copy(buf, payloads[0]), 1, p.env.HostAddr(0), p.flows[clients[0]].relayed
}

func (p *turnPeer) SplitUp(_ int, _ load.Endpoint, d []byte, out [][]byte) [][]byte {
	return append(out, d)
}

func (p *turnPeer) SplitDown(d []byte, out [][]byte) [][]byte {
	if len(d) < 4 || binary.BigEndian.Uint16(d) != turnChannel {
		return out
	}
	return append(out, d[4:min(len(d), 4+int(binary.BigEndian.Uint16(d[2:])))])
}
