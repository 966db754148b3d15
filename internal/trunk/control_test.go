package trunk

import (
	"bytes"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/usher-rtc/usher/ufrag"
)

// body opens a control datagram of the type t.
func body(t testing.TB, keys Keys, b []byte, typ Type) []byte {
	t.Helper()
	var r Reader
	var h Header
	if p := r.Open(b, keys, &h); p != OK {
		t.Fatal(p)
	}
	if h.Type != typ || h.Epoch != sampleHeader.Epoch || h.Seq != sampleHeader.Seq || h.Hops != 1 {
		t.Fatalf("%+v", h)
	}
	return r.Body()
}

func sampleFlows(t testing.TB) []Frame {
	return []Frame{
		{Flags: HasRoute, Ingress: 1, Client: clientV4, Route: route(t, "10.0.0.7:3478", 1)},
		{
			Flags: IPv6 | TCP | Validated | HasRoute | HasReturn | HasSSRCs, Ingress: 2, Client: clientV6,
			Route: route(t, "10.0.0.7:3478", 2), Return: returnV4, SSRCs: [4]uint32{7, 8}, NSSRC: 2,
		},
	}
}

// controls is one of every kind of control datagram, and what reads it.
func controls(t testing.TB, keys Keys) []struct {
	name  string
	typ   Type
	bytes []byte
	parse func([]byte) (any, Problem)
	want  any
} {
	hello := Hello{Nonce: 0x1111111111111111, Role: RoleRelay, Ingresses: []uint16{1, 65535}}
	ack := HelloAck{Echo: 0x1111111111111111, Nonce: 0x2222222222222222, Role: RoleHost}
	announce := Announce{To: 0x3333333333333333, Token: 5, Flows: sampleFlows(t)}
	announced := Announce{To: 0x3333333333333333, Token: 5, Reply: true, Flows: []Frame{}}
	keepalive := Keepalive{To: 0x3333333333333333, Token: 6}
	goodbye := Goodbye{To: 0x3333333333333333, Token: 7, Reply: true, Reason: ReasonDraining}
	type row = struct {
		name  string
		typ   Type
		bytes []byte
		parse func([]byte) (any, Problem)
		want  any
	}
	must := func(b []byte, ok bool) []byte {
		t.Helper()
		if !ok {
			t.Fatal("not appended")
		}
		return b
	}
	mustAnnounce := func(m *Announce) []byte {
		b, n, ok := m.Append(nil, &sampleHeader, keys, 0)
		if !m.Reply && n != len(m.Flows) {
			t.Fatalf("%d flows", n)
		}
		return must(b, ok)
	}
	parseHello := func(b []byte) (any, Problem) { var m Hello; p := m.Parse(b); return m, p }
	parseAck := func(b []byte) (any, Problem) { var m HelloAck; p := m.Parse(b); return m, p }
	parseAnnounce := func(b []byte) (any, Problem) {
		m := Announce{Flows: []Frame{}}
		p := m.Parse(b)
		for i := range m.Flows {
			if len(m.Flows[i].Payload) == 0 {
				m.Flows[i].Payload = nil
			}
		}
		return m, p
	}
	parseKeepalive := func(b []byte) (any, Problem) { var m Keepalive; p := m.Parse(b); return m, p }
	parseGoodbye := func(b []byte) (any, Problem) { var m Goodbye; p := m.Parse(b); return m, p }
	return []row{
		{"hello", TypeHello, must(hello.Append(nil, &sampleHeader, keys)), parseHello, hello},
		{"hello-ack", TypeHelloAck, must(ack.Append(nil, &sampleHeader, keys)), parseAck, ack},
		{"announce", TypeAnnounce, mustAnnounce(&announce), parseAnnounce, announce},
		{"announce, reply", TypeAnnounce, mustAnnounce(&announced), parseAnnounce, announced},
		{"keepalive", TypeKeepalive, must(keepalive.Append(nil, &sampleHeader, keys)), parseKeepalive, keepalive},
		{"goodbye, reply", TypeGoodbye, must(goodbye.Append(nil, &sampleHeader, keys)), parseGoodbye, goodbye},
	}
}

func TestControlRoundTrip(t *testing.T) {
	keys := keyring(t, 'a', 'a')
	for _, c := range controls(t, keys) {
		b := body(t, keys, c.bytes, c.typ)
		if got, p := c.parse(b); p != OK || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v\ngot  %+v\nwant %+v", c.name, p, got, c.want)
		}
		for n := range b {
			if _, p := c.parse(b[:n:n]); p == OK {
				// An announcement without its last flow is an announcement:
				// the tag, over all of it, is what says that something is missing.
				if c.name != "announce" || n != prefixLen+FrameLen+ufrag.RouteLen {
					t.Errorf("%s: %d of %d bytes are accepted", c.name, n, len(b))
				}
			}
		}
		if _, p := c.parse(append(bytes.Clone(b), 0)); p == OK {
			t.Errorf("%s: a stray byte is accepted", c.name)
		}
	}
}

// TestEveryControlBitCounts: control is tagged whole.
func TestEveryControlBitCounts(t *testing.T) {
	keys := keyring(t, 'a', 'a', 'b', 'c', 'e', 'i', 'q', 'A')
	for _, c := range controls(t, keys) {
		for bit := range len(c.bytes) * 8 {
			b := bytes.Clone(c.bytes)
			b[bit/8] ^= 1 << (bit % 8)
			if _, _, p := open(t, keys, b); p == OK {
				t.Errorf("%s: bit %d may be flipped", c.name, bit)
			}
		}
		for n := range c.bytes {
			if _, _, p := open(t, keys, c.bytes[:n:n]); p == OK {
				t.Errorf("%s: %d of %d bytes are accepted", c.name, n, len(c.bytes))
			}
		}
	}
}

func TestControlRefusals(t *testing.T) {
	keys := keyring(t, 'a', 'a')
	rows := map[string]int{}
	all := controls(t, keys)
	for i, c := range all {
		rows[c.name] = i
	}
	for name, test := range map[string]struct {
		of   string
		at   int
		v    byte
		want Problem
	}{
		"hello without a role":           {"hello", 8, 0, ProblemControl},
		"hello with role 3":              {"hello", 8, 3, ProblemControl},
		"hello with a reserved bit":      {"hello", 9, 1, ProblemControl},
		"hello with an ingress missing":  {"hello", 11, 3, ProblemControl},
		"hello with 514 ingresses":       {"hello", 10, 2, ProblemControl},
		"hello-ack with role 0":          {"hello-ack", 16, 0, ProblemControl},
		"announce with a flag":           {"announce", 12, 2, ProblemControl},
		"announce with a detail":         {"announce", 13, 1, ProblemControl},
		"announce, reserved":             {"announce", 15, 1, ProblemControl},
		"announce, reply with flows":     {"announce", 12, 1, ProblemControl},
		"announce of nothing":            {"announce, reply", 12, 0, ProblemEmpty},
		"announce with a payload length": {"announce", prefixLen + 1, 1, ProblemControl},
		"announce without a route":       {"announce", prefixLen + 2, 0, ProblemControl},
		"announce to a client":           {"announce", prefixLen + 2, byte(HasRoute | ToClient), ProblemControl},
		"announce, unverified":           {"announce", prefixLen + 2, byte(HasRoute | Unverified), ProblemControl},
		"announce with a bad route":      {"announce", prefixLen + FrameLen, 0, ProblemRoute},
		"keepalive with a detail":        {"keepalive", 13, 1, ProblemControl},
		"keepalive, reserved":            {"keepalive", 14, 1, ProblemControl},
		"goodbye without a reason":       {"goodbye, reply", 13, 0, ProblemControl},
		"goodbye with reason 3":          {"goodbye, reply", 13, 3, ProblemControl},
	} {
		c := all[rows[test.of]]
		b := bytes.Clone(c.bytes[HeaderLen:])
		b[test.at] = test.v
		got, p := c.parse(b)
		if p != test.want {
			t.Errorf("%s: %v, want %v", name, p, test.want)
		}
		if m, ok := got.(Announce); ok && len(m.Flows) != 0 {
			t.Errorf("%s: flows of a refused announcement", name)
		}
	}
}

func TestAnnounceGoesInPieces(t *testing.T) {
	keys := keyring(t, 'a', 'a')
	var flows []Frame
	for i := range uint32(500) {
		f := sampleFlows(t)[i%2]
		f.Flags |= ToClient | Unverified // make no sense here and are left out
		f.Client = netip.AddrPortFrom(f.Client.Addr(), uint16(i))
		f.Route.Session = i
		f.Payload = []byte("is left out too")
		flows = append(flows, f, Frame{Client: clientV4}) // the second has no route
	}
	var got []Frame
	rest := flows
	for len(rest) > 0 {
		m := Announce{To: 1, Flows: rest}
		b, n, ok := m.Append(nil, &sampleHeader, keys, 0)
		if !ok || n == 0 || len(b) > DefaultMTU {
			t.Fatalf("%v, %d flows in %d bytes", ok, n, len(b))
		}
		if len(rest) > n && len(b) < DefaultMTU-MaxFrameHeaderLen {
			t.Errorf("only %d bytes used", len(b))
		}
		var back Announce
		if p := back.Parse(body(t, keys, b, TypeAnnounce)); p != OK {
			t.Fatal(p)
		}
		got = append(got, back.Flows...)
		rest = rest[n:]
	}
	if len(got) != 500 {
		t.Fatalf("%d flows", len(got))
	}
	for i, f := range got {
		want := flows[2*i]
		if f.Client != want.Client || f.Route != want.Route || f.Flags&(ToClient|Unverified) != 0 || len(f.Payload) != 0 {
			t.Errorf("flow %d: %+v", i, f)
		}
	}
	nothing := Announce{Flows: []Frame{{Client: clientV4}}}
	if _, n, ok := nothing.Append(nil, &sampleHeader, keys, 0); ok || n != 1 {
		t.Errorf("announces nothing: %v, %d", ok, n)
	}
	// However small or large the MTU, a datagram has a flow, and can be read.
	for _, mtu := range []int{1, 1 << 20} {
		m := Announce{Flows: slices.Repeat(sampleFlows(t), 1000)}
		b, n, ok := m.Append(nil, &sampleHeader, keys, mtu)
		var back Announce
		if p := back.Parse(body(t, keys, b, TypeAnnounce)); !ok || p != OK || len(back.Flows) != n || n == 0 {
			t.Errorf("MTU %d: %v, %d flows, %v", mtu, ok, n, p)
		}
	}
}

func TestControlBounds(t *testing.T) {
	keys := keyring(t, 'a', 'a')
	full := Hello{Role: RoleRelay, Ingresses: make([]uint16, MaxIngresses)}
	b, ok := full.Append(nil, &sampleHeader, keys)
	if !ok || len(b) > DefaultMTU {
		t.Errorf("%v, %d bytes", ok, len(b))
	}
	var back Hello
	if p := back.Parse(body(t, keys, b, TypeHello)); p != OK || len(back.Ingresses) != MaxIngresses {
		t.Error(p)
	}
	fullAck := HelloAck{Role: RoleRelay, Ingresses: full.Ingresses}
	if b, ok := fullAck.Append(nil, &sampleHeader, keys); !ok || len(b) > DefaultMTU {
		t.Errorf("%v, %d bytes", ok, len(b))
	}
	full.Ingresses = make([]uint16, MaxIngresses+1)
	if _, ok := full.Append(nil, &sampleHeader, keys); ok {
		t.Error("more than MaxIngresses")
	}
	// A control datagram larger than what a reader has room for.
	large := reseal(t, keys, append(AppendHeader(nil, &Header{Type: TypeHello, KeyID: 'a', Hops: 1}), make([]byte, MaxTagged)...))
	if _, _, p := open(t, keys, large); p != ProblemControl {
		t.Error(p)
	}
	// And flows that are more than a datagram may have.
	many := appendPrefix(nil, 1, 2, false, 0)
	for range MaxFrames + 1 {
		many = appendFrameHeader(many, &sampleFlows(t)[0], HasRoute, 0)
	}
	var m Announce
	if p := m.Parse(many); p != ProblemFrames || len(m.Flows) != 0 {
		t.Errorf("%v, %d flows", p, len(m.Flows))
	}
}
