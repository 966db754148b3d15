package forward

import (
	"net/netip"
	"testing"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/stun"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/ufrag"
)

// world is a relay with some workers, without sockets.
type world struct {
	tb     testing.TB
	codec  ufrag.Codec
	shards []*flowtable.Table
	cores  []*Core
	now    flowtable.Tick
}

func newWorld(tb testing.TB, workers int, change func(*Config, *flowtable.Config)) *world {
	tb.Helper()
	ring, err := ufrag.NewKeyring('k', ufrag.Key{ID: 'k', Secret: [32]byte{1}})
	if err != nil {
		tb.Fatal(err)
	}
	w := &world{tb: tb, codec: ufrag.NewCodec(ring), now: 1000}
	cfg := Config{
		Codec: w.codec, Resolver: ufrag.EmbeddedIPv4{},
		Allow: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Ingresses: []uint16{1, 2},
	}
	table := flowtable.Config{MaxFlows: 1000}
	if change != nil {
		change(&cfg, &table)
	}
	for range workers {
		t, err := flowtable.New(table)
		if err != nil {
			tb.Fatal(err)
		}
		w.shards = append(w.shards, t)
	}
	for i := range workers {
		cfg.Shards, cfg.Own = w.shards, i
		w.cores = append(w.cores, New(cfg))
	}
	return w
}

func hostAddr(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(n + 1)}), 9000)
}

func clientAddr(ip, port int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(ip + 1)}), uint16(1000+port))
}

func (w *world) route(host int, session uint32) ufrag.Route {
	r, err := ufrag.IPv4Route(0, hostAddr(host), session)
	if err != nil {
		w.tb.Fatal(err)
	}
	return r
}

// check is a connectivity check; with a wrong password if forged.
func (w *world) check(host int, session uint32, forged bool) []byte {
	u, err := w.codec.Encode(w.route(host, session))
	if err != nil {
		w.tb.Fatal(err)
	}
	pw, _ := w.codec.AppendPassword(nil, []byte(u))
	if forged {
		pw[0] ^= 1
	}
	var b stun.Builder
	var a stun.Authenticator
	b.Reset(nil, 1, stun.TransactionID{1})
	b.AddUsername(u, "remote")
	b.AddIntegrity(&a, pw)
	b.AddFingerprint()
	return b.Bytes()
}

func media(ssrc byte) []byte { return []byte{0x80, 111, 0, 1, 0, 0, 0, 2, 0, 0, 0, ssrc, 1, 2, 3} }

func (w *world) client(worker int, from netip.AddrPort, data []byte) Verdict {
	var v Verdict
	c := w.cores[worker]
	c.Begin(w.now)
	c.Client(&Packet{Data: data, From: from, Ingress: 1}, &v)
	c.End()
	return v
}

func (w *world) frame(worker, host int, client netip.AddrPort, flags trunk.Flags, ssrcs ...uint32) Delivery {
	var d Delivery
	f := trunk.Frame{Flags: trunk.ToClient | flags, Ingress: 1, Client: client, Payload: []byte("x")}
	f.NSSRC = uint8(copy(f.SSRCs[:], ssrcs))
	c := w.cores[worker]
	c.Begin(w.now)
	c.Frame(&f, Peer{Addr: hostAddr(host)}, &d)
	c.End()
	return d
}

// owner is who has the flow of a client, in any shard.
func (w *world) owner(client netip.AddrPort) (f flowtable.Flow, shard int) {
	shard = -1
	for i, t := range w.shards {
		t.Lock()
		if r := t.Lookup(flowtable.Key{Client: client, Ingress: 1}); r != 0 {
			if shard >= 0 {
				w.tb.Errorf("%v is in shards %d and %d", client, shard, i)
			}
			f, shard = t.Flow(r), i
		}
		t.Unlock()
	}
	return f, shard
}

func (w *world) wantTo(v Verdict, hosts ...int) {
	w.tb.Helper()
	if v.Reason != None || v.N != len(hosts) {
		w.tb.Fatalf("dropped (%v) or sent to %v, want hosts %v", v.Reason, v.Upstreams[:v.N], hosts)
	}
	for _, h := range hosts {
		found := false
		for _, up := range v.Upstreams[:v.N] {
			found = found || up.Addr == hostAddr(h) && !up.Remote
		}
		if !found {
			w.tb.Fatalf("sent to %v, want host %d", v.Upstreams[:v.N], h)
		}
	}
}

func (w *world) wantDrop(v Verdict, r Reason) {
	w.tb.Helper()
	if v.Reason != r || v.N != 0 {
		w.tb.Fatalf("reason %q, %d upstreams; want %q", v.Reason, v.N, r)
	}
}
