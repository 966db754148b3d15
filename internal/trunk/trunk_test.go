package trunk

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/dchest/siphash"

	"github.com/usher-rtc/usher/ufrag"
)

// secret is 32 bytes that count up from start.
func secret(start byte) (s [32]byte) {
	for i := range s {
		s[i] = start + byte(i)
	}
	return s
}

func keyring(t testing.TB, mint byte, ids ...byte) *ufrag.Keyring {
	t.Helper()
	var keys []ufrag.Key
	for i, id := range ids {
		keys = append(keys, ufrag.Key{ID: id, Secret: secret(byte(32 * i))})
	}
	k, err := ufrag.NewKeyring(mint, keys...)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func route(t testing.TB, host string, session uint32) ufrag.Route {
	t.Helper()
	r, err := ufrag.IPv4Route(7, netip.MustParseAddrPort(host), session)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var (
	clientV4 = netip.MustParseAddrPort("203.0.113.9:54321")
	clientV6 = netip.MustParseAddrPort("[2001:db8::9]:54321")
	returnV4 = netip.MustParseAddrPort("10.1.2.3:4000")
	returnV6 = netip.MustParseAddrPort("[fd00::1]:4000")
)

// sampleFrames has every flag and every optional field, in both families.
func sampleFrames(t testing.TB) []Frame {
	r := route(t, "10.0.0.7:3478", 0xdecafbad)
	return []Frame{
		{Ingress: 3, Client: clientV4, Payload: []byte("a check")},
		{Flags: IPv6, TOS: 0xb9, Ingress: 65535, Client: clientV6, Payload: []byte("a packet")},
		{Flags: ToClient | TCP | Validated | HasSSRCs, Client: clientV4, SSRCs: [4]uint32{1}, NSSRC: 1, Payload: []byte{0}},
		{Flags: Unverified | HasRoute, Client: clientV4, Route: r},
		{Flags: HasReturn, Client: clientV4, Return: returnV4, Payload: []byte("x")},
		{Flags: HasReturn, Client: clientV4, Return: returnV6, Payload: []byte("y")},
		{
			Flags: ToClient | IPv6 | TCP | Unverified | Validated | HasRoute | HasReturn | HasSSRCs, TOS: 1, Ingress: 9,
			Client: clientV6, Route: r, Return: returnV6, SSRCs: [4]uint32{1, 2, 3, 0xffffffff}, NSSRC: 4,
			Payload: bytes.Repeat([]byte("z"), 300),
		},
	}
}

var sampleHeader = Header{Type: TypeData, KeyID: 'a', Hops: DefaultHops, Epoch: 0x0123456789abcdef, Seq: 42}

// build makes one datagram of all frames, which must fit.
func build(t testing.TB, keys Keys, h Header, frames ...Frame) []byte {
	t.Helper()
	b := NewBuilder(9000)
	b.Reset(&h)
	for i := range frames {
		if !b.Add(&frames[i]) {
			t.Fatalf("frame %d does not fit", i)
		}
	}
	if !b.Seal(keys) {
		t.Fatal("not sealed")
	}
	return bytes.Join(b.Buffers(), nil)
}

func open(t testing.TB, keys Keys, b []byte) (h Header, frames []Frame, p Problem) {
	t.Helper()
	var r Reader
	if p = r.Open(b, keys, &h); p != OK {
		var f Frame
		if r.Next(&f) || r.Body() != nil {
			t.Fatalf("%v, and still something to read", p)
		}
		return h, nil, p
	}
	for {
		var f Frame
		if !r.Next(&f) {
			return h, frames, p
		}
		frames = append(frames, f)
	}
}

func equal(a, b *Frame) bool {
	return a.Flags == b.Flags && a.TOS == b.TOS && a.Ingress == b.Ingress && a.Client == b.Client && a.Route == b.Route &&
		a.Return == b.Return && a.SSRCs == b.SSRCs && a.NSSRC == b.NSSRC && bytes.Equal(a.Payload, b.Payload)
}

// reseal makes the tag right again, for tests that change a datagram. It finds
// the frames in its own way; of a datagram that is wrong in itself the tag does
// not matter.
func reseal(t testing.TB, keys Keys, b []byte) []byte {
	t.Helper()
	b = bytes.Clone(b)
	key, _ := keys.TrunkKey(b[2])
	tagged := append(bytes.Clone(b[:16]), make([]byte, 8)...)
	if b[1] == byte(TypeData) {
		slowFrames(b[24:], func(header []byte, _ Frame) { tagged = append(tagged, header...) })
	} else {
		tagged = append(tagged, b[24:]...)
	}
	h := siphash.New(key[:])
	h.Write(tagged)
	binary.BigEndian.PutUint64(b[16:], h.Sum64())
	return b
}

// slowFrames reads frames the long way round.
func slowFrames(b []byte, visit func(header []byte, f Frame)) (ok bool) {
	for len(b) > 0 {
		r := bytes.NewReader(b)
		next := func(n int) []byte {
			p := make([]byte, n)
			if m, _ := r.Read(p); m != n && n > 0 {
				panic("short")
			}
			return p
		}
		address := func(n int) netip.AddrPort {
			ip, _ := netip.AddrFromSlice(next(n))
			if ip.Is4In6() {
				panic("mapped")
			}
			port := next(2)
			return netip.AddrPortFrom(ip, uint16(port[0])<<8|uint16(port[1]))
		}
		good := func() (good bool) {
			defer func() { _ = recover() }()
			var f Frame
			head := next(6)
			f.Flags, f.TOS, f.Ingress = Flags(head[2]), head[3], uint16(head[4])<<8|uint16(head[5])
			f.Client = address([]int{4, 16}[f.Flags>>1&1])
			if f.Flags>>5&1 == 1 {
				rt := next(12)
				var err error
				if f.Route, err = ufrag.ParseRoute(rt); err != nil {
					panic(err)
				}
			}
			if f.Flags>>6&1 == 1 {
				f.Return = address(map[byte]int{4: 4, 6: 16, 0: -1}[next(1)[0]])
				if !f.Return.IsValid() {
					panic("family")
				}
			}
			if f.Flags>>7&1 == 1 {
				f.NSSRC = next(1)[0]
				if f.NSSRC == 0 {
					panic("no ssrc")
				}
				for i := range f.NSSRC {
					f.SSRCs[i] = binary.BigEndian.Uint32(next(4)) // panics for the fifth
				}
			}
			header := b[:len(b)-r.Len()]
			f.Payload = next(int(head[0])<<8 | int(head[1]))
			b = b[len(b)-r.Len():]
			visit(header, f)
			return true
		}()
		if !good {
			return false
		}
	}
	return true
}

func TestRoundTrip(t *testing.T) {
	keys := keyring(t, 'a', 'a')
	frames := sampleFrames(t)
	for i := range frames {
		h, got, p := open(t, keys, build(t, keys, sampleHeader, frames[i]))
		if p != OK || h != sampleHeader || len(got) != 1 || !equal(&got[0], &frames[i]) {
			t.Errorf("frame %d: %v %+v\ngot  %+v\nwant %+v", i, p, h, got, frames[i])
		}
	}
	_, got, p := open(t, keys, build(t, keys, sampleHeader, frames...))
	if p != OK || len(got) != len(frames) {
		t.Fatalf("%v, %d frames", p, len(got))
	}
	for i := range frames {
		if !equal(&got[i], &frames[i]) {
			t.Errorf("frame %d of a bundle:\ngot  %+v\nwant %+v", i, got[i], frames[i])
		}
	}
}

func TestSizesOfHeaders(t *testing.T) {
	for i, f := range sampleFrames(t) {
		if got := len(AppendFrameHeader(nil, &f)); got != f.headerLen() {
			t.Errorf("frame %d: %d bytes, headerLen says %d", i, got, f.headerLen())
		}
	}
	v4 := Frame{Client: clientV4}
	v6 := Frame{Client: clientV6}
	if v4.headerLen() != FrameLen || v6.headerLen() != FrameLen+12 {
		t.Error("headers without optional fields have the wrong size")
	}
	all := sampleFrames(t)[6]
	if all.headerLen() != MaxFrameHeaderLen {
		t.Errorf("%d, MaxFrameHeaderLen is %d", all.headerLen(), MaxFrameHeaderLen)
	}
	if h := AppendHeader(nil, &sampleHeader); len(h) != HeaderLen {
		t.Errorf("header of %d bytes", len(h))
	}
}

// TestWhateverIsAddedCanBeRead: one frame that a reader refuses would take the
// frames of other clients in the same datagram with it.
func TestWhateverIsAddedCanBeRead(t *testing.T) {
	keys := keyring(t, 'a', 'a')
	for name, f := range map[string]Frame{
		"flags without fields": {Flags: 0xff, Client: clientV4},
		"no client":            {Payload: []byte("x")},
		"client with a zone":   {Client: netip.MustParseAddrPort("[fe80::1%eth0]:1")},
		"mapped client":        {Client: netip.MustParseAddrPort("[::ffff:192.0.2.1]:1")},
		"mapped return":        {Client: clientV4, Return: netip.MustParseAddrPort("[::ffff:192.0.2.1]:1")},
		"port 0":               {Client: netip.MustParseAddrPort("192.0.2.1:0")},
		"too many SSRCs":       {Client: clientV4, NSSRC: 255},
		"unknown kind":         {Client: clientV4, Route: ufrag.Route{Kind: 9, Session: 1}},
		"cluster too large":    {Client: clientV4, Route: ufrag.Route{Kind: 1, Cluster: 4096}},
		"host too large":       {Client: clientV4, Route: ufrag.Route{Kind: 1, Host: 1 << 48}},
	} {
		b := build(t, keys, sampleHeader, f, Frame{Client: clientV4, Payload: []byte("innocent")})
		if _, got, p := open(t, keys, b); p != OK || len(got) != 2 || string(got[1].Payload) != "innocent" {
			t.Errorf("%s: %v, %+v", name, p, got)
		} else if a := got[0].Client.Addr(); a.Is4In6() || a.Zone() != "" {
			t.Errorf("%s: client %v", name, got[0].Client)
		}
	}
}

// A large payload stays where it is; small ones travel with the headers around them.
func TestBuilderCopiesOnlySmallPayloads(t *testing.T) {
	keys := keyring(t, 'a', 'a')
	small, large := make([]byte, maxCopied), make([]byte, maxCopied+1)
	b := NewBuilder(0)
	b.Reset(&sampleHeader)
	for _, f := range []Frame{
		{Client: clientV4, Payload: small},
		{Client: clientV4}, // no payload
		{Client: clientV4, Payload: large},
		{Client: clientV6, Payload: small[:1]},
	} {
		if !b.Add(&f) {
			t.Fatal("does not fit")
		}
	}
	if !b.Seal(keys) {
		t.Fatal("not sealed")
	}
	got := b.Buffers()
	want := []int{HeaderLen + 3*FrameLen + len(small), len(large), FrameLen + 12 + 1}
	if len(got) != len(want) {
		t.Fatalf("%d buffers", len(got))
	}
	for i, n := range want {
		if len(got[i]) != n {
			t.Errorf("buffer %d has %d bytes, want %d", i, len(got[i]), n)
		}
	}
	if &got[1][0] != &large[0] {
		t.Error("a large payload was copied")
	}
	if n := len(bytes.Join(got, nil)); n != b.Size() || b.Len() != 4 {
		t.Errorf("Size %d, Len %d, %d bytes", b.Size(), b.Len(), n)
	}
	b.Reset(&sampleHeader)
	if len(b.Buffers()) != 0 || b.Len() != 0 || b.Seal(keys) {
		t.Error("Reset leaves something to send")
	}
}

// With CopyAll what is built does not depend on what becomes of the payloads. It has the
// header that was given last.
func TestBuilderCopiesAll(t *testing.T) {
	b := NewBuilder(0)
	b.CopyAll = true
	for _, sizes := range [][]int{{100, 0, 600, 1}, {DefaultMTU + maxCopied}, {1, 2}} {
		copiesAll(t, b, sizes)
	}
}

func copiesAll(t *testing.T, b *Builder, sizes []int) {
	t.Helper()
	keys := keyring(t, 'a', 'a')
	b.Reset(&Header{})
	var want [][]byte
	for _, size := range sizes {
		payload := bytes.Repeat([]byte{byte(size)}, size)
		want = append(want, bytes.Clone(payload))
		f := Frame{Client: clientV4, Payload: payload}
		if !b.Add(&f) {
			t.Fatal("does not fit")
		}
		clear(payload)
		f.Client = clientV6
	}
	if len(b.Buffers()) != 0 {
		t.Error("something to send before it is sealed")
	}
	b.SetHeader(&sampleHeader)
	if !b.Seal(keys) {
		t.Fatal("not sealed")
	}
	whole := bytes.Join(b.Buffers(), nil)
	h, got, p := open(t, keys, whole)
	if p != OK || len(got) != len(want) || h.Seq != sampleHeader.Seq || h.Epoch != sampleHeader.Epoch || h.Type != TypeData {
		t.Fatalf("%v, %d frames, %+v", p, len(got), h)
	}
	for i := range want {
		if got[i].Client != clientV4 || !bytes.Equal(got[i].Payload, want[i]) {
			t.Errorf("frame %d: %+v", i, got[i])
		}
	}
	if len(whole) != b.Size() || b.Len() != len(want) {
		t.Errorf("Size %d, Len %d, %d bytes", b.Size(), b.Len(), len(whole))
	}
	b.Reset(&sampleHeader)
	if len(b.Buffers()) != 0 || b.Len() != 0 || b.Seal(keys) {
		t.Error("Reset leaves something to send")
	}
}

func TestBuilderKeepsToTheMTU(t *testing.T) {
	keys := keyring(t, 'a', 'a')
	for _, mtu := range []int{0, 100, 576, 9000, 1 << 20} {
		for _, size := range []int{0, 1, 20, 100, 1200, 1400} {
			f := Frame{Client: clientV4, Payload: make([]byte, size)}
			b := NewBuilder(mtu)
			b.Reset(&sampleHeader)
			for b.Add(&f) {
			}
			limit := mtu
			if mtu == 0 {
				limit = DefaultMTU
			}
			room := (min(limit, MaxDatagram) - HeaderLen) / (FrameLen + size)
			if want := max(1, min(room, MaxFrames)); b.Len() != want {
				t.Errorf("MTU %d, payload %d: %d frames, want %d", mtu, size, b.Len(), want)
			}
			if !b.Seal(keys) {
				t.Fatal("not sealed")
			}
			if _, got, p := open(t, keys, bytes.Join(b.Buffers(), nil)); p != OK || len(got) != b.Len() {
				t.Errorf("MTU %d, payload %d: %v, %d frames", mtu, size, p, len(got))
			}
		}
	}
}

func TestLargestPayload(t *testing.T) {
	keys := keyring(t, 'a', 'a')
	var b Builder // the zero value has the default MTU
	b.Reset(&sampleHeader)
	room := MaxDatagram - HeaderLen - FrameLen
	if b.Add(&Frame{Client: clientV4, Payload: make([]byte, room+1)}) {
		t.Error("took what no datagram holds")
	}
	payload := bytes.Repeat([]byte("abc"), room)[:room]
	if !b.Add(&Frame{Client: clientV4, Payload: payload}) || b.Add(&Frame{Client: clientV4}) {
		t.Error("the largest payload must travel, and alone")
	}
	if !b.Seal(keys) {
		t.Fatal("not sealed")
	}
	if _, got, p := open(t, keys, bytes.Join(b.Buffers(), nil)); p != OK || !bytes.Equal(got[0].Payload, payload) {
		t.Errorf("%v", p)
	}
}

func TestSealRefuses(t *testing.T) {
	f := Frame{Client: clientV4}
	for name, test := range map[string]struct {
		keys Keys
		h    Header
		want bool
	}{
		"the key asked for":     {keyring(t, 'a', 'a', 'b'), Header{KeyID: 'b', Hops: 1}, true},
		"the minting key":       {keyring(t, 'b', 'a', 'b'), Header{Hops: 1}, true},
		"a key that is not":     {keyring(t, 'a', 'a'), Header{KeyID: 'b', Hops: 1}, false},
		"an empty keyring":      {new(ufrag.Keyring), Header{Hops: 1}, false},
		"a header without hops": {keyring(t, 'a', 'a'), Header{}, false},
	} {
		b := NewBuilder(0)
		b.Reset(&test.h)
		b.Add(&f)
		if got := b.Seal(test.keys); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
		out, ok := (&Keepalive{}).Append([]byte("before"), &test.h, test.keys)
		if wantControl := test.want || test.h.Hops == 0 && test.keys.MintID() != 0; ok != wantControl {
			t.Errorf("%s: control %v", name, ok)
		}
		if !bytes.HasPrefix(out, []byte("before")) || !ok && len(out) != 6 {
			t.Errorf("%s: %q", name, out)
		}
		if test.want {
			if h, _, p := open(t, test.keys, bytes.Join(b.Buffers(), nil)); p != OK || h.KeyID != 'b' {
				t.Errorf("%s: %v, key %c", name, p, h.KeyID)
			}
		}
	}
}

// TestKeysRotateWhileRunning goes through a rotation as an operator does it.
func TestKeysRotateWhileRunning(t *testing.T) {
	old, both, fresh := keyring(t, 'a', 'a'), keyring(t, 'a', 'a', 'b'), keyring(t, 'b', 'a', 'b')
	h := Header{Hops: 1}
	f := Frame{Client: clientV4}
	for i, test := range []struct {
		from, to Keys
		want     Problem
	}{
		{old, both, OK},          // the receiver got the new key first
		{fresh, both, OK},        // then the sender mints with it
		{both, fresh, OK},        // answers still have the old one
		{fresh, old, ProblemKey}, // the wrong order
	} {
		if _, _, p := open(t, test.to, build(t, test.from, h, f)); p != test.want {
			t.Errorf("%d: %v, want %v", i, p, test.want)
		}
	}
	// The same id with another secret is not the same key.
	other, err := ufrag.NewKeyring('a', ufrag.Key{ID: 'a', Secret: secret(99)})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, p := open(t, other, build(t, old, h, f)); p != ProblemTag {
		t.Errorf("another secret: %v", p)
	}
}

func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for p := range NumProblems {
		if s := p.String(); s == "" || s == "unknown" || seen[s] {
			t.Errorf("problem %d is called %q", p, s)
		} else {
			seen[s] = true
		}
	}
	for typ := TypeData; typ <= TypeGoodbye; typ++ {
		if s := typ.String(); s == "unknown" || seen[s] {
			t.Errorf("type %d is called %q", typ, s)
		} else {
			seen[s] = true
		}
	}
	if s := fmt.Sprint(NumProblems, Type(0), TypeGoodbye+1); s != "unknown unknown unknown" {
		t.Error(s)
	}
}
