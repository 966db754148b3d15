package flowtable

import (
	"math/rand/v2"
	"runtime"
	"testing"
)

const million = 1_000_000

// each reports an operation as the time for one of what.
func each(b *testing.B, what string) {
	b.Helper()
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N), "ns/"+what)
	b.ReportMetric(0, "ns/op")
}

func benchmarkLookup(b *testing.B, keys []Key) {
	table := filled(b, million)
	table.Lock()
	defer table.Unlock()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		r := table.Lookup(keys[i])
		if r == 0 {
			b.Fatal("lost")
		}
		_ = table.Upstream(r)
		if i++; i == len(keys) {
			i = 0
		}
	}
	each(b, "packet")
}

// BenchmarkLookupHot looks up 64 of a million flows again and again.
func BenchmarkLookupHot(b *testing.B) { benchmarkLookup(b, someKeys(64)) }

// BenchmarkLookupRandom looks up any of a million flows.
func BenchmarkLookupRandom(b *testing.B) { benchmarkLookup(b, someKeys(1<<18)) }

func someKeys(n int) []Key {
	rng := rand.New(rand.NewPCG(1, 2))
	keys := make([]Key, n)
	for i := range keys {
		f := numbered(rng.IntN(million))
		keys[i] = f.Key
	}
	return keys
}

// BenchmarkInsert replaces flows of a full table: one insertion and one removal.
func BenchmarkInsert(b *testing.B) {
	table := filled(b, million)
	table.Lock()
	defer table.Unlock()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		f := numbered(i)
		if _, ok := table.Insert(&f); !ok {
			b.Fatal("refused")
		}
		if i++; i == million {
			i = 0
		}
	}
	each(b, "flow")
}

// BenchmarkExpire is a batch's call in a table of a million live flows, a
// millisecond after the one before.
func BenchmarkExpire(b *testing.B) {
	table := filled(b, million)
	table.Lock()
	defer table.Unlock()
	now := Tick(0)
	b.ReportAllocs()
	for b.Loop() {
		if now++; now > 20_000 { // before anything is due
			now = 0
			table.sweepTime = 0
		}
		table.Expire(now)
	}
	each(b, "batch")
}

// BenchmarkGC is a collection with a million flows alive, and the memory that a flow
// takes, all indexes included.
func BenchmarkGC(b *testing.B) {
	before := heap()
	table := filled(b, million)
	perFlow := (float64(heap()) - float64(before)) / million
	for b.Loop() {
		runtime.GC()
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N), "us/collection")
	b.ReportMetric(perFlow, "B/flow")
	b.ReportMetric(0, "ns/op")
	runtime.KeepAlive(table)
}
