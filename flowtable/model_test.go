package flowtable

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/usher-rtc/usher/ufrag"
)

// model is the table's behaviour written with maps and full scans.
type model struct {
	flows    map[Key]*Flow
	order    []Key // unconfirmed flows, longest idle first
	max, unc int
}

func (m *model) remove(k Key) {
	delete(m.flows, k)
	m.order = slices.DeleteFunc(m.order, func(o Key) bool { return o == k })
}

func (m *model) insert(f Flow) bool {
	m.remove(f.Key)
	if len(m.flows) >= m.max || f.State == Unconfirmed && len(m.order) >= m.unc {
		if len(m.order) == 0 {
			return false
		}
		m.remove(m.order[0])
	}
	if f.State == Unconfirmed {
		m.order = append(m.order, f.Key)
		f.NumSSRCs, f.SSRCs = 0, [MaxSSRCs]uint32{}
	}
	m.flows[f.Key] = &f
	return true
}

func (m *model) toTail(k Key) {
	m.order = slices.DeleteFunc(m.order, func(o Key) bool { return o == k })
	m.order = append(m.order, k)
}

func addr(n uint64) netip.AddrPort {
	switch n % 3 {
	case 0:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(n >> 2 & 3)}), uint16(n>>4&7)+1)
	default:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte{0x20, 1, 15: byte(n >> 2 & 3)}), uint16(n>>4&7)+1)
	}
}

func route(n uint64) ufrag.Route {
	return ufrag.Route{Kind: ufrag.KindDirectory, Cluster: uint16(n & 0xfff), Host: n & (1<<48 - 1), Session: uint32(n)}
}

// run feeds operations to a table and to the model and compares.
func run(t *testing.T, data []byte) {
	const maxFlows, maxUnconfirmed = 24, 8
	evicted := 0
	table, err := New(Config{
		MaxFlows: maxFlows, MaxUnconfirmed: maxUnconfirmed,
		IdleTimeout: 400 * time.Millisecond, UnconfirmedTimeout: 100 * time.Millisecond,
		OnRemove: func(t *Table, r Ref, why Removal) {
			if why == Evicted {
				evicted++
			}
			_ = t.Flow(r)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	table.Lock()
	defer table.Unlock()
	m := &model{flows: map[Key]*Flow{}, max: maxFlows, unc: maxUnconfirmed}
	now := Tick(1<<32 - 500) // the clock wraps on the way
	table.Expire(now)
	for step := 0; len(data) >= 9; step++ {
		op, n := data[0], binary.LittleEndian.Uint64(data[1:])
		data = data[9:]
		k := Key{Client: addr(n), Ingress: uint16(n >> 8 & 1)}
		r := table.Lookup(k)
		want := m.flows[k]
		if (r != 0) != (want != nil) {
			t.Fatalf("step %d: look-up of %v gave %v, want %v", step, k, r, want)
		}
		ssrcs := []uint32{uint32(n >> 10 & 3), uint32(n >> 12 & 3), uint32(n >> 14 & 3), 9}[:n>>16&3]
		switch op % 8 {
		case 0, 1:
			f := Flow{
				Key: k, Route: route(n), Upstream: addr(n >> 3), State: State(1 + n>>20&1), TCP: n>>21&1 != 0,
				LastUpstream: now, Since: now, NumSSRCs: uint8(len(ssrcs)),
			}
			copy(f.SSRCs[:], ssrcs)
			if n>>22&1 != 0 {
				f.Local = addr(n >> 4).Addr()
			}
			_, ok := table.Insert(&f)
			if want := m.insert(f); ok != want {
				t.Fatalf("step %d: insert %v, want %v", step, ok, want)
			}
		case 2:
			if r != 0 {
				table.Remove(r)
				m.remove(k)
			}
		case 3:
			if r != 0 {
				table.Touch(r, now)
				want.LastUpstream = now
				if want.State == Unconfirmed {
					m.toTail(k)
				}
			}
		case 4:
			if r != 0 {
				table.Confirm(r, now, ssrcs)
				m.order = slices.DeleteFunc(m.order, func(o Key) bool { return o == k })
				want.State, want.LastUpstream = Confirmed, now
				if len(ssrcs) > 0 {
					want.SSRCs = [MaxSSRCs]uint32{}
					want.NumSSRCs = uint8(copy(want.SSRCs[:], ssrcs))
				}
			}
		case 5:
			if r != 0 {
				table.Contend(r, route(n+1), now)
				if got, _, ok := table.Contender(r, now); !ok || got != route(n+1) {
					t.Fatalf("step %d: contender %v %v", step, got, ok)
				}
				table.SetOwner(r, route(n), addr(n>>3), now)
				if _, _, ok := table.Contender(r, now); ok {
					t.Fatalf("step %d: contender survived", step)
				}
				m.toTail(k)
				want.Route, want.Upstream, want.LastUpstream, want.Since = route(n), addr(n>>3), now, now
				want.State, want.NumSSRCs, want.SSRCs = Unconfirmed, 0, [MaxSSRCs]uint32{}
			}
		case 6:
			now += Tick(n % 60)
			for range 40 { // enough calls for a whole round of the sweep
				now++
				table.Expire(now)
				for k, f := range m.flows {
					limit := uint32(400)
					if f.State == Unconfirmed {
						limit = 100
					}
					// A confirmed flow may stay until the sweep comes by.
					age := f.LastUpstream.since(now)
					gone := table.Lookup(k) == 0
					switch {
					case gone && age <= limit:
						t.Fatalf("step %d: %v expired after %d ms", step, k, age)
					case !gone && age > limit+2*50+61: // a round of the sweep, what flows that came meanwhile add to it, and the jump above
						t.Fatalf("step %d: %v is still there after %d ms", step, k, age)
					case gone:
						m.remove(k)
					}
				}
			}
		case 7:
			if r != 0 {
				table.SetLocal(r, addr(n>>5).Addr())
				want.Local = addr(n >> 5).Addr()
				table.SetRoute(r, route(n+7), addr(n>>6))
				want.Route, want.Upstream = route(n+7), addr(n>>6)
			}
		}
		compare(t, step, table, m, now)
	}
	if uint64(evicted) != table.Counters().Evicted {
		t.Fatalf("%d evictions reported, %d counted", evicted, table.Counters().Evicted)
	}
}

// ownerKey is an owner without the session in its route.
type ownerKey struct {
	up    netip.AddrPort
	route ufrag.Route
}

func keyOf(o Owner) ownerKey {
	o.Route.Session = 0
	return ownerKey{o.Upstream, o.Route}
}

func compare(t *testing.T, step int, table *Table, m *model, now Tick) {
	t.Helper()
	c := table.Counters()
	if table.Len() != len(m.flows) || table.Unconfirmed() != len(m.order) ||
		c.Inserted-c.Removed-c.Expired-c.Evicted != uint64(table.Len()) {
		t.Fatalf("step %d: %d flows, %d unconfirmed, %+v; want %d, %d", step, table.Len(), table.Unconfirmed(), c, len(m.flows), len(m.order))
	}
	seen := 0
	for cursor, more := uint32(0), true; more; more = cursor != 0 {
		cursor = table.Walk(cursor, 3, func(f Flow) {
			seen++
			if want := m.flows[f.Key]; want == nil || *want != f {
				t.Fatalf("step %d: flow %+v, want %+v", step, f, want)
			}
		})
	}
	if seen != len(m.flows) {
		t.Fatalf("step %d: walked over %d of %d flows", step, seen, len(m.flows))
	}
	for n := range uint64(16) {
		ip := addr(n).Addr()
		owners := map[netip.AddrPort]bool{}
		hosts := map[ownerKey]bool{}
		any := false
		for k, f := range m.flows {
			any = any || k.Client.Addr() == ip
			if k.Client.Addr() == ip && f.State == Confirmed {
				owners[f.Upstream] = true
				hosts[keyOf(Owner{f.Upstream, f.Route})] = true
			}
		}
		if any && !table.MayHave(ip) {
			t.Fatalf("step %d: MayHave(%v) is false", step, ip)
		}
		got := table.Owners(ip, make([]Owner, 0, 32))
		seen := map[ownerKey]bool{}
		for _, o := range got {
			if k := keyOf(o); !hosts[k] || seen[k] {
				t.Fatalf("step %d: owners of %v: %v, want %v", step, ip, got, hosts)
			}
			seen[keyOf(o)] = true
			delete(owners, o.Upstream)
		}
		if len(owners) > 0 {
			t.Fatalf("step %d: owners of %v: %v, without %v", step, ip, got, owners)
		}
		for ssrc := range uint32(4) {
			best := uint32(1 << 31)
			for k, f := range m.flows {
				if k.Client.Addr() == ip && slices.Contains(f.SSRCs[:f.NumSSRCs], ssrc) {
					best = min(best, f.LastUpstream.since(now))
				}
			}
			r := table.BySSRC(ip, ssrc, now)
			if (r != 0) != (best != 1<<31) || r != 0 && table.Flow(r).LastUpstream.since(now) != best {
				t.Fatalf("step %d: BySSRC(%v, %d) = %v, want one idle for %d", step, ip, ssrc, r, best)
			}
		}
	}
}

func FuzzTable(f *testing.F) {
	for seed := range uint64(4) {
		f.Add(randomOps(seed, 60))
	}
	f.Fuzz(func(t *testing.T, data []byte) { run(t, data[:min(len(data), 9*400)]) })
}

func randomOps(seed uint64, n int) []byte {
	rng := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, 9*n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func TestTableAgreesWithModel(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { run(t, randomOps(seed+100, 300)) })
	}
}
