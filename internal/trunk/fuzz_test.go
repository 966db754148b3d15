package trunk

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/usher-rtc/usher/ufrag"
)

// FuzzOpen throws bytes at the reader, as they are and with header and tag put
// right, and compares with a reader that is written the long way round.
func FuzzOpen(f *testing.F) {
	keys := keyring(f, 'a', 'a')
	f.Add(build(f, keys, sampleHeader, sampleFrames(f)...))
	for _, frame := range sampleFrames(f) {
		f.Add(build(f, keys, sampleHeader, frame))
	}
	for _, c := range controls(f, keys) {
		f.Add(c.bytes)
	}
	var r Reader
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		var h Header
		r.Open(b, keys, &h)
		if !bytes.Equal(b, before) {
			t.Fatal("Open writes to the datagram")
		}
		if len(b) < HeaderLen {
			return
		}
		c := bytes.Clone(b)
		c[0], c[1], c[2], c[3] = Version, (c[1]-1)%6+1, 'a', max(c[3], 1)
		c = reseal(t, keys, c)
		p := r.Open(c, keys, &h)
		if c[1] != byte(TypeData) {
			if p != OK {
				if p != ProblemControl || len(c) <= MaxTagged {
					t.Fatal(p)
				}
				return
			}
			control(t, keys, h, r.Body())
			return
		}
		var want []Frame
		good := slowFrames(c[HeaderLen:], func(_ []byte, f Frame) { want = append(want, f) })
		good = good && len(want) > 0 && len(want) <= MaxFrames
		if good != (p == OK) {
			t.Fatalf("%v, the other reader says %v", p, good)
		}
		if !good {
			var f Frame
			if r.Next(&f) {
				t.Fatal("a frame of a refused datagram")
			}
			return
		}
		var got []Frame
		var f Frame
		for r.Next(&f) {
			got = append(got, f)
		}
		if len(got) != len(want) {
			t.Fatalf("%d frames, want %d", len(got), len(want))
		}
		for i := range got {
			if !equal(&got[i], &want[i]) {
				t.Fatalf("frame %d:\ngot  %+v\nwant %+v", i, got[i], want[i])
			}
		}
		// What was read builds the same bytes: there is one spelling.
		w := NewBuilder(MaxDatagram)
		w.Reset(&h)
		for i := range got {
			if !w.Add(&got[i]) {
				return // larger than a UDP datagram can be
			}
		}
		if !w.Seal(keys) || !bytes.Equal(bytes.Join(w.Buffers(), nil), c) {
			t.Fatalf("built again:\n%x\n%x", bytes.Join(w.Buffers(), nil), c)
		}
	})
}

// control parses a body, and what parses builds the same bytes again.
func control(t *testing.T, keys Keys, h Header, body []byte) {
	t.Helper()
	var again []byte
	var p Problem
	ok := true
	switch h.Type {
	case TypeHello:
		var m Hello
		if p = m.Parse(body); p == OK {
			again, ok = m.Append(nil, &h, keys)
		}
	case TypeHelloAck:
		var m HelloAck
		if p = m.Parse(body); p == OK {
			again, ok = m.Append(nil, &h, keys)
		}
	case TypeAnnounce:
		var m Announce
		if p = m.Parse(body); p == OK {
			var n int
			again, n, ok = m.Append(nil, &h, keys, MaxTagged)
			if !m.Reply && n != len(m.Flows) {
				t.Fatalf("%d of %d flows", n, len(m.Flows))
			}
		} else if len(m.Flows) != 0 {
			t.Fatal("flows of a refused announcement")
		}
	case TypeKeepalive:
		var m Keepalive
		if p = m.Parse(body); p == OK {
			again, ok = m.Append(nil, &h, keys)
		}
	case TypeGoodbye:
		var m Goodbye
		if p = m.Parse(body); p == OK {
			again, ok = m.Append(nil, &h, keys)
		}
	}
	if p == OK && (!ok || !bytes.Equal(again[HeaderLen:], body)) {
		t.Fatalf("%v: built again %v\n%x\n%x", h.Type, ok, again, body)
	}
}

// FuzzBuild makes frames of any content, sensible or not, and expects that a
// reader takes whatever the builder took, and that no bit of a header can be
// flipped.
func FuzzBuild(f *testing.F) {
	f.Add([]byte("\xff\x00\x00\x01\x04\x20\x01\x00\x02\x01aaaabbbbccccddddeeee"), uint16(1400), uint32(7))
	f.Add([]byte("\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00"), uint16(0), uint32(0))
	keys := keyring(f, 'a', 'a')
	f.Fuzz(func(t *testing.T, program []byte, mtu uint16, flip uint32) {
		w := NewBuilder(int(mtu))
		h := Header{Hops: 1 + byte(flip)%4, Epoch: uint64(flip), Seq: flip}
		w.Reset(&h)
		var added []Frame
		byteAt := func(i int) byte {
			if i < len(program) {
				return program[i]
			}
			return 0
		}
		address := func(b byte) netip.AddrPort {
			switch b % 5 {
			case 0:
				return clientV4
			case 1:
				return clientV6
			case 2:
				return netip.MustParseAddrPort("[fe80::1%eth0]:65535")
			case 3:
				return netip.MustParseAddrPort("[::ffff:192.0.2.1]:0")
			default:
				return netip.AddrPort{}
			}
		}
		for len(program) > 0 {
			f := Frame{
				Flags: Flags(byteAt(0)), TOS: byteAt(1), Ingress: uint16(byteAt(2))<<8 | uint16(byteAt(3)),
				Client: address(byteAt(4)), Return: address(byteAt(5)), NSSRC: byteAt(6),
				Route: ufrag.Route{Kind: ufrag.Kind(byteAt(7)), Cluster: uint16(byteAt(8)) << 5, Host: uint64(byteAt(9)) << 41, Session: flip},
				SSRCs: [4]uint32{flip, 1, 2, 3},
			}
			f.Payload = make([]byte, int(byteAt(10))*int(byteAt(11)))
			program = program[min(12, len(program)):]
			if w.Add(&f) {
				added = append(added, f)
			}
		}
		if !w.Seal(keys) {
			if len(added) != 0 {
				t.Fatal("not sealed")
			}
			return
		}
		out := bytes.Join(w.Buffers(), nil)
		if len(out) != w.Size() || len(added) > 1 && len(out) > max(int(mtu), DefaultMTU) {
			t.Fatalf("%d bytes, Size %d, %d frames, MTU %d", len(out), w.Size(), len(added), mtu)
		}
		_, got, p := open(t, keys, out)
		if p != OK || len(got) != len(added) {
			t.Fatalf("%v, %d of %d frames", p, len(got), len(added))
		}
		for i := range got {
			g, a := &got[i], &added[i]
			if g.Flags&givenFlags != a.Flags&givenFlags || g.TOS != a.TOS || g.Ingress != a.Ingress ||
				g.Route.IsValid() != a.Route.IsValid() || g.Return.IsValid() != a.Return.IsValid() ||
				g.NSSRC != min(a.NSSRC, MaxSSRCs) || !bytes.Equal(g.Payload, a.Payload) ||
				g.Client.Port() != a.Client.Port() ||
				a.Client.Addr().IsValid() && g.Client.Addr() != a.Client.Addr().Unmap().WithZone("") {
				t.Fatalf("frame %d:\ngot  %+v\nwant %+v", i, g, a)
			}
		}
		// Flip a bit of what the tag covers: the header and all frame headers.
		n := HeaderLen + added[0].headerLen()
		bit := int(flip % uint32(8*n))
		out[bit/8] ^= 1 << (bit % 8)
		if _, _, p := open(t, keys, out); p == OK {
			t.Fatalf("bit %d may be flipped", bit)
		}
	})
}
