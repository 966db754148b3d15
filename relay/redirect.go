package relay

import (
	"time"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/forward"
	"github.com/usher-rtc/usher/internal/trunk"
)

// A Host answers an edge's clients by the cluster relay that brought their last
// packet. If that relay is gone, a client that only listens hears nothing until it
// sends something. So the edge, which is the first to see it, sends a frame without
// payload for each of its flows in that cluster by a relay that is well.

const (
	// redirectSlots of the flow table are looked at a time, and so the most frames.
	// With a pause of redirectPause, a table of a million flows takes a second.
	redirectSlots = 1024
	redirectPause = time.Millisecond
)

// redirects is a worker's walk over its flows to the clusters that have lost a
// relay.
type redirects struct {
	clusters map[uint16]bool // nil: nothing to do
	cursor   uint32
	flows    []flowtable.Flow
}

// start begins the walk, anew if there is one.
func (r *redirects) start(cluster uint16) {
	if r.clusters == nil {
		r.clusters = make(map[uint16]bool)
	}
	r.clusters[cluster] = true
	r.cursor = 0
}

// redirect goes on with the walk, and returns when it wants to be called again. It
// is called without the lock of the flows.
func (w *worker) redirect() time.Duration {
	r := &w.redirects
	if r.clusters == nil {
		return housekeeping
	}
	t := w.shard()
	t.Lock()
	if t.Len() > 0 {
		r.cursor = t.Walk(r.cursor, redirectSlots, func(f flowtable.Flow) {
			if f.State == flowtable.Confirmed && r.clusters[f.Route.Cluster] {
				r.flows = append(r.flows, f)
			}
		})
	}
	t.Unlock()
	for i := range r.flows {
		f := &r.flows[i]
		to, why := w.core.Next(f.Route, f.Upstream, f.Key.Client)
		if why != forward.None || !to.Remote {
			continue
		}
		w.frame = trunk.Frame{Ingress: f.Key.Ingress, Client: f.Key.Client}
		if f.TCP {
			w.frame.Flags = trunk.TCP
		}
		w.forward(&to)
		w.counts.now[cRedirected]++
	}
	w.flush()
	r.flows = r.flows[:0]
	if r.cursor == 0 {
		*r = redirects{}
		return housekeeping
	}
	return redirectPause
}
