package trunk

import (
	"fmt"
	"testing"
	"time"
)

func TestNothingAllocates(t *testing.T) {
	keys := keyring(t, 'a', 'a')
	frames := sampleFrames(t)
	datagram := build(t, keys, sampleHeader, frames...)
	var (
		b         = NewBuilder(0)
		r         Reader
		h         Header
		f         Frame
		buf       = make([]byte, 0, DefaultMTU)
		link      = NewLink(1, [16]byte{1})
		hello     = Hello{Nonce: 1, Role: RoleRelay, Ingresses: []uint16{1, 2, 3}}
		announce  = Announce{To: 1, Flows: sampleFlows(t)}
		parsed    Announce
		keepalive Keepalive
		now       = time.Now()
	)
	add := func() {
		b.Reset(&sampleHeader)
		for i := range frames {
			if !b.Add(&frames[i]) {
				t.Error("does not fit")
			}
		}
		if !b.Seal(keys) || len(b.Buffers()) == 0 {
			t.Error("not sealed")
		}
	}
	add() // the list of buffers grows once
	for name, f := range map[string]func(){
		"Builder": add,
		"Reader": func() {
			if p := r.Open(datagram, keys, &h); p != OK {
				t.Error(p)
			}
			for r.Next(&f) {
			}
		},
		"Reader, refused": func() { r.Open(datagram[:100], keys, &h) },
		"control": func() {
			out, ok := hello.Append(buf, &sampleHeader, keys)
			if !ok || r.Open(out, keys, &h) != OK || hello.Parse(r.Body()) != OK {
				t.Error("hello")
			}
			out, _, ok = announce.Append(buf, &sampleHeader, keys, 0)
			if !ok || r.Open(out, keys, &h) != OK || parsed.Parse(r.Body()) != OK {
				t.Error("announce")
			}
			out, ok = keepalive.Append(buf, &sampleHeader, keys)
			if !ok || r.Open(out, keys, &h) != OK || keepalive.Parse(r.Body()) != OK {
				t.Error("keepalive")
			}
		},
		"Link": func() {
			h := link.Header(TypeData)
			link.Observe(&h)
			link.Accept(&h, 1)
			link.Hello(now)
			link.OnHello(&h, &hello)
		},
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// perPacket reports an operation of n packets the way that all benchmarks of
// this module do.
func perPacket(b *testing.B, n int) {
	packets := float64(b.N) * float64(n)
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/packets, "ns/packet")
	b.ReportMetric(packets/b.Elapsed().Seconds(), "packets/s")
}

// audio is n packets of the size of 20 ms of Opus under SRTP.
func audio(n int) []Frame {
	frames := make([]Frame, n)
	for i := range frames {
		frames[i] = Frame{Client: clientV4, Payload: make([]byte, 100)}
	}
	return frames
}

func BenchmarkBuild(b *testing.B) {
	keys := keyring(b, 'a', 'a')
	for _, n := range []int{1, 4, 12} {
		b.Run(fmt.Sprintf("frames=%d", n), func(b *testing.B) {
			frames := audio(n)
			w := NewBuilder(0)
			b.ReportAllocs()
			for b.Loop() {
				w.Reset(&sampleHeader)
				for i := range frames {
					w.Add(&frames[i])
				}
				if w.Len() != n || !w.Seal(keys) {
					b.Fatal("not sealed")
				}
			}
			perPacket(b, n)
		})
	}
}

func BenchmarkRead(b *testing.B) {
	keys := keyring(b, 'a', 'a')
	for _, n := range []int{1, 4, 12} {
		b.Run(fmt.Sprintf("frames=%d", n), func(b *testing.B) {
			datagram := build(b, keys, sampleHeader, audio(n)...)
			var r Reader
			var h Header
			var f Frame
			b.ReportAllocs()
			for b.Loop() {
				if r.Open(datagram, keys, &h) != OK {
					b.Fatal("refused")
				}
				for r.Next(&f) {
				}
			}
			perPacket(b, n)
		})
	}
}
