package forward

import (
	"testing"

	"github.com/usher-rtc/usher/internal/trunk"
)

func report(b *testing.B) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N), "ns/packet")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkMedia decides about media of 200 known clients, as many as may be unconfirmed.
func BenchmarkMedia(b *testing.B) {
	w := newWorld(b, 1, nil)
	for i := range 200 {
		w.client(0, clientAddr(i%100, i/100), w.check(0, uint32(i), false))
	}
	c, p := w.cores[0], media(1)
	c.Begin(w.now)
	defer c.End()
	var v Verdict
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		i++
		c.Client(&Packet{Data: p, From: clientAddr(i%100, i/100%2), Ingress: 1}, &v)
	}
	if v.Reason != None {
		b.Fatal(v.Reason)
	}
	report(b)
}

// BenchmarkCheck decides about a check of a known client: it is decoded and
// resolved, its integrity is the Host's to verify.
func BenchmarkCheck(b *testing.B) { benchmarkCheck(b, false) }

// BenchmarkNewFlow decides about a client's first check, with its integrity.
func BenchmarkNewFlow(b *testing.B) { benchmarkCheck(b, true) }

func benchmarkCheck(b *testing.B, fresh bool) {
	w := newWorld(b, 1, nil)
	c, p := w.cores[0], w.check(0, 1, false)
	c.Begin(w.now)
	defer c.End()
	var v Verdict
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		if fresh {
			i++
		}
		c.Client(&Packet{Data: p, From: clientAddr(i%200, i/200%5000), Ingress: 1}, &v)
	}
	if v.Reason != None {
		b.Fatal(v.Reason)
	}
	report(b)
}

// BenchmarkFrame decides about frames for 1,000 known clients.
func BenchmarkFrame(b *testing.B) {
	w := newWorld(b, 1, nil)
	for i := range 1000 {
		w.client(0, clientAddr(i%100, i/100), w.check(0, uint32(i), false))
	}
	c := w.cores[0]
	c.Begin(w.now)
	defer c.End()
	var d Delivery
	f := trunk.Frame{Flags: trunk.ToClient | trunk.Validated, Ingress: 1}
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		i++
		f.Client = clientAddr(i%100, i/100%10)
		c.Frame(&f, Peer{Addr: hostAddr(0)}, &d)
	}
	report(b)
}
