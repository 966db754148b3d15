package forward

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/trunk"
)

// modelFlow is a flow in the naive model: rules of ownership only.
type modelFlow struct {
	host      int
	confirmed bool
	routed    bool // the table knows the route, not only the upstream
	since     flowtable.Tick
	shard     int
	claimant  int // -1: none
	claimed   flowtable.Tick
}

// run drives two workers with a sequence of packets and compares every verdict
// with a map.
func run(t *testing.T, data []byte) {
	w := newWorld(t, 2, nil)
	var checks [3][2][]byte
	for h := range checks {
		checks[h] = [2][]byte{w.check(h, uint32(h), false), w.check(h, uint32(h), true)}
	}
	m := map[netip.AddrPort]*modelFlow{}
	for step := 0; len(data) >= 3; step++ {
		op, sel, more := data[0], int(data[1]), int(data[2])
		data = data[3:]
		c := clientAddr(sel&1, sel>>1&3)
		host, worker := more%3, more>>2&1
		f := m[c]
		adopt := func() {
			if f != nil && f.shard != worker {
				f.shard, f.claimant = worker, -1
			}
		}
		switch op % 6 {
		case 0, 1: // a check
			forged := op%6 == 1 && more&0x80 != 0
			v := w.client(worker, c, checks[host][b2i(forged)])
			adopt()
			if forged && (f == nil || f.host != host || !f.routed) {
				w.wantDrop(v, BadIntegrity)
				break
			}
			w.wantTo(v, host)
			switch {
			case f == nil:
				m[c] = &modelFlow{host: host, routed: true, since: w.now, shard: worker, claimant: -1}
			case f.host == host:
				f.routed = true
			case !f.confirmed && w.now-f.since >= OwnerChangeInterval:
				*f = modelFlow{host: host, routed: true, since: w.now, shard: worker, claimant: -1}
			default:
				f.claimant, f.claimed = host, w.now
			}
		case 2: // media
			v := w.client(worker, c, media(200))
			adopt()
			if f != nil {
				w.wantTo(v, f.host)
				break
			}
			// Unverified at most, and only to confirmed owners at that address.
			for _, up := range v.Upstreams[:v.N] {
				ok := false
				for k, o := range m {
					ok = ok || k.Addr() == c.Addr() && o.confirmed && hostAddr(o.host) == up.Addr
				}
				if !ok || !v.Unverified {
					t.Fatalf("step %d: unverified packet to %v: %+v", step, up, v)
				}
			}
		case 3, 4: // an answer
			flags := trunk.Flags(0)
			if op%6 == 4 {
				flags = trunk.Validated
			}
			if d := w.frame(worker, host, c, flags); d.Reason != None {
				t.Fatalf("step %d: frame dropped: %v", step, d.Reason)
			}
			switch {
			case flags == 0:
			case f == nil:
				m[c] = &modelFlow{host: host, confirmed: true, since: w.now, shard: worker, claimant: -1}
			case f.host == host:
				f.confirmed = true
			case f.claimant == host && w.now-f.claimed <= claimLife && w.now-f.since >= OwnerChangeInterval:
				*f = modelFlow{host: host, confirmed: true, routed: true, since: w.now, shard: f.shard, claimant: -1}
			}
		case 5: // time; too little in a whole run for a flow to expire
			w.now += flowtable.Tick(more * 4)
			for _, s := range w.shards { // keep everything alive
				s.Lock()
				for k := range m {
					if r := s.Lookup(flowtable.Key{Client: k, Ingress: 1}); r != 0 {
						s.Touch(r, w.now)
					}
				}
				s.Unlock()
			}
		}
		for k, f := range m {
			got, shard := w.owner(k)
			if shard != f.shard || got.Upstream != hostAddr(f.host) || (got.State == flowtable.Confirmed) != f.confirmed || got.Since != f.since {
				t.Fatalf("step %d: flow of %v: %+v in shard %d, want %+v", step, k, got, shard, *f)
			}
		}
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func randomOps(seed uint64, n int) []byte {
	rng := rand.New(rand.NewPCG(seed, 3))
	b := make([]byte, 3*n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func FuzzOwnership(f *testing.F) {
	for seed := range uint64(4) {
		f.Add(randomOps(seed, 50))
	}
	f.Fuzz(func(t *testing.T, data []byte) { run(t, data[:min(len(data), 3*200)]) })
}

func TestOwnershipAgreesWithModel(t *testing.T) {
	for seed := range uint64(30) {
		run(t, randomOps(seed+50, 200))
	}
}

// FuzzClient throws bytes of strangers at a core: whatever they are, each packet
// is either forwarded or has one reason.
func FuzzClient(f *testing.F) {
	seed := newWorld(f, 1, nil)
	f.Add(seed.check(0, 1, false))
	f.Add(media(1))
	f.Add([]byte{22, 254, 253})
	f.Fuzz(func(t *testing.T, data []byte) {
		w := newWorld(t, 1, nil)
		known, unknown := clientAddr(0, 0), clientAddr(1, 0)
		w.client(0, known, w.check(0, 1, false))
		for _, from := range []netip.AddrPort{known, unknown} {
			if v := w.client(0, from, data); (v.Reason == None) != (v.N > 0) {
				t.Fatalf("%+v", v)
			}
		}
	})
}
