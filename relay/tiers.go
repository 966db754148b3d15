package relay

import (
	"fmt"
	"hash/maphash"
	"net/netip"
	"slices"
	"time"

	"github.com/usher-rtc/usher/cluster"
	"github.com/usher-rtc/usher/internal/config"
	"github.com/usher-rtc/usher/internal/forward"
	"github.com/usher-rtc/usher/internal/trunk"
	"github.com/usher-rtc/usher/ufrag"
)

const (
	// A relay of another cluster that carries packets is asked for a sign of life
	// with every housekeeping, so that its clients go to another one within about
	// a second; one that carries none, so often.
	idleKeepalive = time.Second
	// carriesFor is how long after the last packet to a relay it counts as one
	// that carries packets.
	carriesFor = 10 * time.Second
	// maxMissed keepalives without any datagram from a relay, and it is not used
	// until it answers.
	maxMissed = 4
)

// relay is what a worker knows about a peer that is another relay.
type relay struct {
	loaded    time.Time // when data was last sent to it
	asked     time.Time // when the last keepalive was
	missed    int       // keepalives since its last datagram
	token     uint32
	heard     time.Time // when its last datagram came, or when it was met
	leaving   bool      // drains or is gone
	listed    bool      // is in the directory
	ingresses []uint16
}

// health of a relay in the directory, best first.
type health int

const (
	healthy  health = iota
	draining        // answers, and asks not to be used
	doubtful        // has had no time to answer yet, or is gone for a moment
	silent
)

func (p *peer) health(now time.Time) health {
	_, proven := p.link.Peer()
	switch {
	case proven && !p.leaving:
		return healthy
	case proven:
		return draining
	case now.Sub(p.heard) < silentAfter:
		return doubtful // it keeps nothing: restarted, it takes packets at once
	}
	return silent
}

// clusters finds the relays of other clusters, for one worker: the directory
// says which there are, the worker's own links which of them are well.
type clusters struct {
	w     *worker
	dir   cluster.Directory
	allow *ufrag.AllowList
	seed  maphash.Seed
	all   [cluster.MaxID + 1]*choice
	used  []*choice
	stale bool // the health of some relay has changed
}

// choice is the relays of one cluster.
type choice struct {
	id   uint16
	from []netip.AddrPort // the directory's list that this was made of
	all  []*peer          // those of it that are allowed
	best []netip.AddrPort // of the best health that any has
	well []bool           // parallel to all: is it in best?
	// told is the last best that was not empty: Hosts answer by one of these.
	told []netip.AddrPort
}

var _ forward.Clusters = (*clusters)(nil)

// setUpClusters returns what the worker's core asks, nil without a directory.
func (w *worker) setUpClusters() forward.Clusters {
	cfg := &w.srv.cfg
	if cfg.Clusters == nil {
		return nil
	}
	w.clusters = &clusters{
		w: w, dir: cfg.Clusters, allow: ufrag.Allow(cfg.AllowClusters, nil),
		// All workers and restarts may choose differently: nothing depends on it.
		seed: maphash.MakeSeed(),
	}
	return w.clusters
}

// Pick implements forward.Clusters. A client stays with the relay that its
// address leads to; if that one is not well, with another.
func (t *clusters) Pick(id uint16, client netip.AddrPort) (netip.AddrPort, forward.Reason) {
	list := t.dir.Addresses(id)
	if len(list) == 0 {
		return netip.AddrPort{}, forward.UnknownCluster
	}
	c := t.all[id]
	if c == nil || !sameList(c.from, list) {
		c = t.compile(id, list)
	}
	switch {
	case len(c.all) == 0:
		return netip.AddrPort{}, forward.UpstreamNotAllowed
	case len(c.best) == 0:
		return netip.AddrPort{}, forward.ClusterUnhealthy
	case len(c.best) == 1:
		return c.best[0], forward.None
	}
	h := maphash.Comparable(t.seed, client)
	n := uint64(len(c.all))
	if i := h % n; c.well[i] {
		return c.all[i].addr, forward.None
	}
	return c.best[h/n%uint64(len(c.best))], forward.None
}

// sameList reports whether two lists of a directory are the same slice.
func sameList(a, b []netip.AddrPort) bool { return len(a) == len(b) && &a[0] == &b[0] }

// compile makes a choice of the directory's list.
func (t *clusters) compile(id uint16, list []netip.AddrPort) *choice {
	c := t.all[id]
	if c == nil {
		c = &choice{id: id}
		t.all[id] = c
		t.used = append(t.used, c)
	}
	c.from, c.all = list, nil
	for _, addr := range list {
		if t.allow.Contains(addr.Addr()) {
			p := t.w.peer(addr, true)
			p.listed = true
			c.all = append(c.all, p)
		}
	}
	t.judge(c)
	return c
}

// judge finds the relays of the best health. If one of them is that no more, the
// cluster's Hosts are told to answer by another.
func (t *clusters) judge(c *choice) {
	best := silent
	for _, p := range c.all {
		best = min(best, p.health(t.w.now))
	}
	c.best, c.well = nil, make([]bool, len(c.all))
	if best == silent {
		return
	}
	for i, p := range c.all {
		if p.health(t.w.now) == best {
			c.best, c.well[i] = append(c.best, p.addr), true
		}
	}
	for _, addr := range c.told {
		if !slices.Contains(c.best, addr) {
			t.w.redirects.start(c.id)
			break
		}
	}
	c.told = c.best
}

// refresh acts on what has changed since the last batch.
func (t *clusters) refresh() {
	if !t.stale {
		return
	}
	t.stale = false
	for _, c := range t.used {
		t.judge(c)
	}
}

// housekeep keeps in step with the directory, and asks its relays for signs of
// life.
func (t *clusters) housekeep() {
	w := t.w
	known := t.dir.Clusters()
	for _, id := range known {
		if list := t.dir.Addresses(id); len(list) > 0 && (t.all[id] == nil || !sameList(t.all[id].from, list)) {
			t.compile(id, list)
		}
	}
	for _, p := range w.peers {
		p.always = p.always && !p.listed
		p.listed = false
	}
	for id, c := range t.all {
		if c == nil {
			continue
		}
		if len(t.dir.Addresses(uint16(id))) == 0 {
			t.all[id] = nil
			t.used = slices.DeleteFunc(t.used, func(o *choice) bool { return o == c })
			continue
		}
		for _, p := range c.all {
			if !p.listed {
				p.listed, p.always = true, true
				w.keepalive(p)
			}
		}
		t.judge(c)
	}
}

// keepalive asks a relay of another cluster for a sign of life, if it is time to.
// One that is not proven is greeted by housekeep.
func (w *worker) keepalive(p *peer) {
	epoch, proven := p.link.Peer()
	if !proven || w.now.Sub(p.loaded) > carriesFor && w.now.Sub(p.asked) < idleKeepalive {
		return
	}
	if p.missed >= maxMissed {
		p.link.Forget()
		return
	}
	p.missed++
	p.token++
	p.asked = w.now
	h := p.link.Header(trunk.TypeKeepalive)
	out, ok := (&trunk.Keepalive{To: epoch, Token: p.token}).Append(w.pieces, &h, p.keys)
	w.post(p, out, ok)
}

// onRelayUp acts on another relay's new epoch. If it is an edge, it was restarted
// and knows no flows: its clients' Hosts are to announce them.
func (w *worker) onRelayUp(p *peer) {
	p.leaving, p.missed = false, 0
	p.ingresses = append(p.ingresses[:0], w.acks.Ingresses...)
	w.relayChanged()
	w.askHosts(p)
}

// onRelayLeaving acts on another relay's goodbye. If it is an edge, the other
// relays of its ingresses will get its clients.
func (w *worker) onRelayLeaving(p *peer) {
	if !p.leaving {
		p.leaving = true
		w.askHosts(p)
	}
	w.relayChanged()
}

// lookAfter notices an edge that is gone without a word: it sends a keepalive a
// second. Its clients will come by other edges of its ingresses.
func (w *worker) lookAfter(p *peer) {
	if !p.remote || p.leaving || w.now.Sub(p.heard) < silentAfter {
		return
	}
	if _, proven := p.link.Peer(); proven && w.core.EdgeAllowed(p.addr) {
		w.onRelayLeaving(p)
		p.link.Forget()
	}
}

func (w *worker) relayChanged() {
	if w.clusters != nil {
		w.clusters.stale = true
	}
}

// fromEdge passes w.frame, a packet of another relay's client, on to its Host.
func (w *worker) fromEdge(from *peer) {
	f, n, to := &w.frame, &w.counts.now, &w.passage
	n[cFromEdges]++
	n[cFromEdgesBytes] += uint64(len(f.Payload))
	w.core.FromEdge(f, w.header.Hops, from.addr, to)
	w.passOn(from)
}

// toEdge passes w.frame, a Host's for another relay's client, on to that relay.
func (w *worker) toEdge(from *peer) {
	w.core.ToEdge(&w.frame, w.header.Hops, from.addr, &w.passage)
	w.passOn(from)
}

func (w *worker) passOn(from *peer) {
	to := &w.passage
	if to.Reason != forward.None {
		w.drop(to.Reason, from.addr, w.frame.Ingress)
		return
	}
	w.enqueue(w.peer(to.To.Addr, to.To.Remote), to.Hops)
}

// trunkAddr is where other relays' answers go, the zero value if the worker's
// address is for them to see.
func (s *Server) trunkAddr(worker int) netip.AddrPort {
	addr := s.workers[worker].trunkConn().LocalAddr()
	if addr.Addr().IsUnspecified() {
		return netip.AddrPort{}
	}
	return addr
}

// passing tells whether other relays' packets are still passed on.
type passing struct {
	count uint64
	since time.Time // when the count was first seen; zero: it never changed
}

// passingEnds is how long nothing must have come from other relays before a drain
// takes them for gone: they hear of it with the next housekeeping.
const passingEnds = 2 * housekeeping

func (p *passing) on(s *Server) bool {
	var sum [numCounters]uint64
	for _, w := range s.workers {
		w.counts.add(&sum)
	}
	if n := sum[cFromEdges] + sum[cToEdges]; n != p.count {
		p.count, p.since = n, time.Now()
	}
	return !p.since.IsZero() && time.Since(p.since) < passingEnds
}

// shareKeys reports whether the two links have a key in common, under whatever id.
func (c *Config) shareKeys() bool {
	if c.TrunkKeys == nil {
		return false
	}
	hosts := make(map[[16]byte]bool)
	for _, id := range c.TrunkKeys.IDs() {
		key, _ := c.TrunkKeys.TrunkKey(id)
		hosts[key] = true
	}
	return slices.ContainsFunc(c.EdgeKeys.IDs(), func(id byte) bool {
		key, _ := c.EdgeKeys.TrunkKey(id)
		return hosts[key]
	})
}

func (c *Config) validateTiers() error {
	if c.Clusters == nil && len(c.AllowEdges) == 0 {
		if len(c.AllowClusters) > 0 {
			return config.Errorf("AllowClusters", "means nothing without Clusters")
		}
		return nil
	}
	switch {
	case c.Clusters != nil && len(c.AllowClusters) == 0:
		return config.Errorf("AllowClusters", "empty: nothing could go to another cluster; list the networks of their relays")
	case c.Clusters == nil && len(c.AllowClusters) > 0:
		return config.Errorf("AllowClusters", "means nothing without Clusters")
	case c.EdgeKeys == nil:
		return config.Errorf("EdgeKeys", "required with Clusters and AllowEdges")
	case c.EdgeKeys.MintID() == 0:
		return config.Errorf("EdgeKeys", "has no keys")
	case c.shareKeys():
		return config.Errorf("EdgeKeys", "has a key of TrunkKeys: every edge could speak as a Host")
	}
	for field, list := range map[string][]netip.Prefix{"AllowClusters": c.AllowClusters, "AllowEdges": c.AllowEdges} {
		for i, p := range list {
			if !p.IsValid() {
				return config.Errorf(fmt.Sprintf("%s[%d]", field, i), "not a prefix")
			}
		}
	}
	return nil
}
