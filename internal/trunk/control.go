package trunk

import "encoding/binary"

// Role says what the sender of a hello is.
type Role uint8

const (
	// RoleRelay is a relay worker.
	RoleRelay Role = 1
	// RoleHost is a transceiver's Host.
	RoleHost Role = 2
)

// MaxIngresses bounds the ingress ids in a Hello and a HelloAck, so that both
// fit into a datagram of DefaultMTU.
const MaxIngresses = 512

const (
	helloLen  = 12     // nonce, role, reserved, number of ingress ids
	prefixLen = 16     // of announce, keepalive and goodbye
	flagReply = 1 << 0 // of the prefix
)

// Hello asks a peer for proof that it is there: whoever starts, or sees an
// epoch it does not know, sends one. It changes nothing at the receiver, which
// answers with a HelloAck.
type Hello struct {
	// Nonce comes back in the answer. It is random and not 0.
	Nonce uint64
	// Role is the sender's.
	Role Role
	// Ingresses are the ids that a relay serves, at most MaxIngresses; a Host
	// sends none. Parse reuses the slice.
	Ingresses []uint16
}

// Append appends the whole datagram, sealed. It reports false and returns dst
// unchanged if there are more than MaxIngresses or Seal refuses.
func (m *Hello) Append(dst []byte, h *Header, keys Keys) ([]byte, bool) {
	out := appendControl(dst, h, TypeHello)
	out = appendHello(out, m.Nonce, m.Role, m.Ingresses)
	return finish(dst, out, keys, len(m.Ingresses) <= MaxIngresses)
}

// Parse reads the body of a datagram of TypeHello into m.
func (m *Hello) Parse(body []byte) Problem {
	return parseHello(body, &m.Nonce, &m.Role, &m.Ingresses)
}

// HelloAck answers a Hello, and an ack that asks for one.
type HelloAck struct {
	// Echo is the nonce that this answers.
	Echo uint64
	// Nonce, if not 0, asks for an ack in return, which then has none: a
	// handshake is hello, ack, ack, and both sides know that the other is
	// there. See Link.
	Nonce uint64
	// Role and Ingresses are the sender's, as in Hello.
	Role      Role
	Ingresses []uint16
}

// Append appends the whole datagram, sealed. It reports false and returns dst
// unchanged if there are more than MaxIngresses or Seal refuses.
func (m *HelloAck) Append(dst []byte, h *Header, keys Keys) ([]byte, bool) {
	out := appendControl(dst, h, TypeHelloAck)
	out = binary.BigEndian.AppendUint64(out, m.Echo)
	out = appendHello(out, m.Nonce, m.Role, m.Ingresses)
	return finish(dst, out, keys, len(m.Ingresses) <= MaxIngresses)
}

// Parse reads the body of a datagram of TypeHelloAck into m.
func (m *HelloAck) Parse(body []byte) Problem {
	if len(body) < 8 {
		return ProblemControl
	}
	m.Echo = binary.BigEndian.Uint64(body)
	return parseHello(body[8:], &m.Nonce, &m.Role, &m.Ingresses)
}

func appendHello(dst []byte, nonce uint64, role Role, ingresses []uint16) []byte {
	dst = binary.BigEndian.AppendUint64(dst, nonce)
	dst = append(dst, byte(role), 0)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(ingresses)))
	for _, id := range ingresses {
		dst = binary.BigEndian.AppendUint16(dst, id)
	}
	return dst
}

func parseHello(b []byte, nonce *uint64, role *Role, ingresses *[]uint16) Problem {
	*ingresses = (*ingresses)[:0]
	if len(b) < helloLen {
		return ProblemControl
	}
	n := int(binary.BigEndian.Uint16(b[10:]))
	*nonce, *role = binary.BigEndian.Uint64(b), Role(b[8])
	if *role != RoleRelay && *role != RoleHost || b[9] != 0 || n > MaxIngresses || len(b) != helloLen+2*n {
		return ProblemControl
	}
	for i := range n {
		*ingresses = append(*ingresses, binary.BigEndian.Uint16(b[helloLen+2*i:]))
	}
	return OK
}

// Announce tells a relay which flows it has: after it restarted, and before
// another relay takes them over. The receiver answers with an Announce that has
// Reply set, the same Token, and no flows.
type Announce struct {
	// To is the receiver's epoch, as the sender knows it. See Link.Accept.
	To uint64
	// Token is the sender's to choose and comes back in the reply.
	Token uint32
	// Reply marks an answer.
	Reply bool
	// Flows use Flags (TCP and Validated), Ingress, Client, Route, Return and
	// SSRCs of Frame. Parse reuses the slice.
	Flows []Frame
}

// Append appends one whole datagram of at most mtu bytes, 0 meaning DefaultMTU,
// sealed, with as many of the flows as fit. It returns how many of m.Flows are
// dealt with: send the rest in another one. Flows without a valid route cannot
// be announced and are passed over. It reports false and returns dst unchanged
// if nothing is left to announce or Seal refuses.
func (m *Announce) Append(dst []byte, h *Header, keys Keys, mtu int) (out []byte, n int, ok bool) {
	if mtu <= 0 {
		mtu = DefaultMTU
	}
	mtu = max(min(mtu, MaxTagged), HeaderLen+prefixLen+MaxFrameHeaderLen)
	out = appendPrefix(appendControl(dst, h, TypeAnnounce), m.To, m.Token, m.Reply, 0)
	if m.Reply {
		out, ok = finish(dst, out, keys, true)
		return out, 0, ok
	}
	packed := 0
	for n < len(m.Flows) && packed < MaxFrames {
		f := &m.Flows[n]
		if f.Route.IsValid() {
			if len(out)-len(dst)+f.headerLen() > mtu {
				break
			}
			flags := f.wireFlags() &^ (ToClient | Unverified)
			out = appendFrameHeader(out, f, flags, 0)
			packed++
		}
		n++
	}
	out, ok = finish(dst, out, keys, packed > 0)
	return out, n, ok
}

// Parse reads the body of a datagram of TypeAnnounce into m. It is all or
// nothing: with any Problem there are no flows.
func (m *Announce) Parse(body []byte) Problem {
	m.Flows = m.Flows[:0]
	var detail byte
	p := parsePrefix(body, &m.To, &m.Token, &m.Reply, &detail)
	if p != OK {
		return p
	}
	rest := body[prefixLen:]
	switch {
	case detail != 0 || m.Reply && len(rest) > 0:
		return ProblemControl
	case !m.Reply && len(rest) == 0:
		return ProblemEmpty
	}
	n := 0
	for b := rest; len(b) > 0; n++ {
		header, payload, p := checkFrame(b)
		if p != OK {
			return p
		}
		if n == MaxFrames {
			return ProblemFrames
		}
		if flags := Flags(b[2]); flags&HasRoute == 0 || flags&(ToClient|Unverified) != 0 || payload != 0 {
			return ProblemControl
		}
		b = b[header:]
	}
	for range n {
		m.Flows = append(m.Flows, Frame{})
		rest = readFrame(rest, &m.Flows[len(m.Flows)-1])
	}
	return OK
}

// Keepalive asks whether the peer is still the process it was. The receiver
// answers at once with the same Token and Reply set.
type Keepalive struct {
	// To is the receiver's epoch, as the sender knows it. See Link.Accept.
	To uint64
	// Token is the sender's to choose and comes back in the reply.
	Token uint32
	// Reply marks an answer.
	Reply bool
}

// Append appends the whole datagram, sealed. It reports false and returns dst
// unchanged if Seal refuses.
func (m *Keepalive) Append(dst []byte, h *Header, keys Keys) ([]byte, bool) {
	out := appendPrefix(appendControl(dst, h, TypeKeepalive), m.To, m.Token, m.Reply, 0)
	return finish(dst, out, keys, true)
}

// Parse reads the body of a datagram of TypeKeepalive into m.
func (m *Keepalive) Parse(body []byte) Problem {
	var detail byte
	if p := parsePrefix(body, &m.To, &m.Token, &m.Reply, &detail); p != OK {
		return p
	}
	if len(body) != prefixLen || detail != 0 {
		return ProblemControl
	}
	return OK
}

// Reason says why a process says goodbye.
type Reason uint8

const (
	// ReasonDraining means that the sender goes on serving its flows and takes
	// no new ones: announce its flows to the ingress's other relays.
	ReasonDraining Reason = 1
	// ReasonClosed means that the sender is gone with this datagram.
	ReasonClosed Reason = 2
)

// Goodbye says that the sender leaves. The receiver answers with the same Token
// and Reason and Reply set; a sender that drains repeats it until then.
type Goodbye struct {
	// To is the receiver's epoch, as the sender knows it. See Link.Accept.
	To uint64
	// Token is the sender's to choose and comes back in the reply.
	Token uint32
	// Reply marks an answer.
	Reply bool
	// Reason is why.
	Reason Reason
}

// Append appends the whole datagram, sealed. It reports false and returns dst
// unchanged if Seal refuses.
func (m *Goodbye) Append(dst []byte, h *Header, keys Keys) ([]byte, bool) {
	out := appendPrefix(appendControl(dst, h, TypeGoodbye), m.To, m.Token, m.Reply, byte(m.Reason))
	return finish(dst, out, keys, true)
}

// Parse reads the body of a datagram of TypeGoodbye into m.
func (m *Goodbye) Parse(body []byte) Problem {
	if p := parsePrefix(body, &m.To, &m.Token, &m.Reply, (*byte)(&m.Reason)); p != OK {
		return p
	}
	if len(body) != prefixLen || m.Reason != ReasonDraining && m.Reason != ReasonClosed {
		return ProblemControl
	}
	return OK
}

// appendControl appends the header of a control datagram. Nobody passes one on,
// so it has one hop, whatever h says.
func appendControl(dst []byte, h *Header, t Type) []byte {
	c := *h
	c.Type, c.Hops = t, 1
	return AppendHeader(dst, &c)
}

func appendPrefix(dst []byte, to uint64, token uint32, reply bool, detail byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, to)
	dst = binary.BigEndian.AppendUint32(dst, token)
	var flags byte
	if reply {
		flags = flagReply
	}
	return append(dst, flags, detail, 0, 0)
}

func parsePrefix(b []byte, to *uint64, token *uint32, reply *bool, detail *byte) Problem {
	if len(b) < prefixLen || b[12]&^flagReply != 0 || b[14] != 0 || b[15] != 0 {
		return ProblemControl
	}
	*to, *token = binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:])
	*reply, *detail = b[12]&flagReply != 0, b[13]
	return OK
}

// finish seals what was appended to dst, or takes it back.
func finish(dst, out []byte, keys Keys, ok bool) ([]byte, bool) {
	if !ok || !Seal(out[len(dst):], keys) {
		return dst, false
	}
	return out, true
}
