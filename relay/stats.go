package relay

import (
	"sync/atomic"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/forward"
	"github.com/usher-rtc/usher/internal/udpbatch"
)

// Counters are those of one worker, or of all. They only grow, except Flows,
// Unconfirmed and Peers.
type Counters struct {
	// Packets and bytes of payload, in both directions. Every packet from a
	// client is counted in FromClients, and then in ToUpstream (twice, if it is
	// unverified and may belong to two owners) or in one of Drops. Every frame
	// from a Host is counted in FromUpstream and then in ToClients or in Drops.
	FromClients, FromClientsBytes   uint64
	ToUpstream, ToUpstreamBytes     uint64
	FromUpstream, FromUpstreamBytes uint64
	ToClients, ToClientsBytes       uint64
	// Datagrams on the trunk with data; a datagram carries one or more packets.
	TrunkSent, TrunkReceived uint64
	// TrunkControl counts received control datagrams.
	TrunkControl uint64
	// Unverified packets had no flow and went to their most likely owner.
	Unverified uint64
	// What happened to flows: made by a check; taught by a Host; found in the flow
	// store; taken over from the relay before; another owner; a claim by another
	// owner; taken from another worker; gone by time; gone to make room.
	Created, Learned, Restored, Inherited, Moved, Contested, Adopted, Expired, Evicted uint64
	// Held packets waited for the flow store's answer, and were then forwarded or
	// dropped; HeldTooLong of them were dropped because none came in time.
	Held, HeldTooLong uint64
	// LookupsLimited packets of unknown clients did not lead to a question to the
	// flow store: a limit was used up, or the store had nothing a moment ago.
	// LookupsFull packets did not because too many questions are out.
	LookupsLimited, LookupsFull uint64
	// Flows and Unconfirmed are how many there are.
	Flows, Unconfirmed uint64
	// Peers is the number of Hosts and other relays that the worker exchanges
	// datagrams with.
	Peers uint64
	// Two tiers. ToClusters and FromClusters are the packets of own clients that
	// went to and came from other clusters; they are in ToUpstream and
	// FromUpstream too. FromEdges and ToEdges are packets of other relays' clients
	// that came to be passed on to a Host, and that Hosts had for them: each of
	// FromEdges is then in ToUpstream or in Drops, and each frame of a Host that is
	// in ToEdges is in neither FromUpstream nor ToClients.
	//
	// Redirected counts flows whose Hosts were told, by a frame without payload, to
	// answer by another relay of their cluster, because one is gone. These frames are
	// in ToUpstream and ToClusters.
	ToClusters, FromClusters  uint64
	Redirected                uint64
	FromEdges, FromEdgesBytes uint64
	ToEdges, ToEdgesBytes     uint64
	// Drops counts dropped packets by reason. Reasons that did not occur are
	// there with 0.
	Drops map[string]uint64
}

// SocketStats are the kernel's side of one socket.
type SocketStats struct {
	// Worker is the worker that serves the socket.
	Worker int
	// Ingress is its ingress id; Trunk says that it has none.
	Ingress uint16
	Trunk   bool
	// KernelDrops counts datagrams that found the receive buffer full.
	KernelDrops uint64
	// SendErrors counts failed writes, whatever the error.
	SendErrors uint64
	// ReadBuffer is the receive buffer in bytes that the kernel granted.
	ReadBuffer int
	// GSO and GRO say whether the kernel cuts and joins runs of packets of one
	// client: "off", "on", "unsupported", or "failed" after a device refused.
	GSO, GRO string
}

// Stats is a snapshot of a Server's counters.
type Stats struct {
	// Counters are the sums over all workers.
	Counters
	// Workers has the counters of each worker.
	Workers []Counters
	// Sockets has an entry for each socket.
	Sockets []SocketStats
	// Store is about the flow store. Its hit rate is Hits/(Hits+Misses+refused).
	Store StoreStats
}

// StoreStats are the relay's view of its flow store; all zero without one.
type StoreStats struct {
	// Lookups is how many clients the store was asked about. Hits had a value that
	// led to a flow, Misses had none, Failed ones are unknown: the store returned
	// an error, or did not answer in time (Timeouts), or was not asked because the
	// breaker was open (Shed, which are not in Lookups).
	Lookups, Hits, Misses, Failed, Timeouts, Shed uint64
	// Refused counts values that were not believed or not usable, by reason.
	// Reasons that did not occur are there with 0.
	Refused map[string]uint64
	// Written entries are in the store. WriteErrors were refused or not answered.
	// WriteDropped were not written, because the store is too slow for the queue.
	// Lost ones come again with the next refresh.
	Written, WriteErrors, WriteDropped uint64
	// WriteQueue is how many flows wait to be written.
	WriteQueue int
	// Restarts is how often the store, if it is a flowtable.RunIdentifier, was found to
	// be another process. All flows were then written to it again.
	Restarts uint64
	// LookupBreaker and WriteBreaker say whether the store is used at present, the
	// Opened counts how often it was given up for a while.
	LookupBreaker, WriteBreaker             BreakerState
	LookupBreakerOpened, WriteBreakerOpened uint64
}

// The counters of a worker: plain numbers that it alone writes.
const (
	cFromClients = iota
	cFromClientsBytes
	cToUpstream
	cToUpstreamBytes
	cFromUpstream
	cFromUpstreamBytes
	cToClients
	cToClientsBytes
	cTrunkSent
	cTrunkReceived
	cTrunkControl
	cUnverified
	cCreated
	cLearned
	cRestored
	cInherited
	cMoved
	cContested
	cAdopted
	cExpired
	cEvicted
	cFlows
	cUnconfirmed
	cPeers
	cHeld
	cHeldTooLong
	cLookupsLimited
	cLookupsFull
	cToClusters
	cFromClusters
	cFromEdges
	cFromEdgesBytes
	cToEdges
	cToEdgesBytes
	cRedirected
	cDrops      // and one for each reason
	numCounters = cDrops + int(forward.NumReasons)
)

// counts are a worker's counters with what it last published of them. Publishing
// once a batch costs an atomic store for each counter that changed, instead of
// one for each packet.
type counts struct {
	now       [numCounters]uint64
	published [numCounters]uint64
	shared    [numCounters]atomic.Uint64
}

func (c *counts) drop(r forward.Reason) { c.now[cDrops+int(r)]++ }

func (c *counts) publish() {
	for i, n := range c.now {
		if n != c.published[i] {
			c.published[i] = n
			c.shared[i].Store(n)
		}
	}
}

func (c *counts) add(sum *[numCounters]uint64) {
	for i := range c.shared {
		sum[i] += c.shared[i].Load()
	}
}

func named(n *[numCounters]uint64) Counters {
	c := Counters{
		FromClients: n[cFromClients], FromClientsBytes: n[cFromClientsBytes],
		ToUpstream: n[cToUpstream], ToUpstreamBytes: n[cToUpstreamBytes],
		FromUpstream: n[cFromUpstream], FromUpstreamBytes: n[cFromUpstreamBytes],
		ToClients: n[cToClients], ToClientsBytes: n[cToClientsBytes],
		TrunkSent: n[cTrunkSent], TrunkReceived: n[cTrunkReceived], TrunkControl: n[cTrunkControl],
		Unverified: n[cUnverified],
		Created:    n[cCreated], Learned: n[cLearned], Restored: n[cRestored], Inherited: n[cInherited], Moved: n[cMoved], Contested: n[cContested],
		Adopted: n[cAdopted], Expired: n[cExpired], Evicted: n[cEvicted],
		Flows: n[cFlows], Unconfirmed: n[cUnconfirmed], Peers: n[cPeers],
		Held: n[cHeld], HeldTooLong: n[cHeldTooLong], LookupsLimited: n[cLookupsLimited], LookupsFull: n[cLookupsFull],
		ToClusters: n[cToClusters], FromClusters: n[cFromClusters], Redirected: n[cRedirected],
		FromEdges: n[cFromEdges], FromEdgesBytes: n[cFromEdgesBytes], ToEdges: n[cToEdges], ToEdgesBytes: n[cToEdgesBytes],
		Drops: make(map[string]uint64, forward.NumReasons),
	}
	for r := forward.None + 1; r < forward.NumReasons; r++ {
		c.Drops[r.String()] = n[cDrops+int(r)]
	}
	return c
}

// Stats returns the counters. They lag behind by at most one batch, or a second
// on a quiet relay. It may be called at any time, also after Close.
func (s *Server) Stats() Stats {
	var st Stats
	var sum [numCounters]uint64
	for _, w := range s.workers {
		var own [numCounters]uint64
		w.counts.add(&own)
		st.Workers = append(st.Workers, named(&own))
		for i, n := range own {
			sum[i] += n
		}
		for i, conn := range w.conns {
			k := conn.Stats()
			e := SocketStats{Worker: w.index, KernelDrops: k.KernelDrops, SendErrors: k.WriteErrors.Total(), ReadBuffer: k.GrantedReadBuffer, GSO: k.GSO.String(), GRO: k.GRO.String()}
			if i == len(w.conns)-1 {
				e.Trunk = true
			} else {
				e.Ingress = s.ingresses[i].ID
			}
			st.Sockets = append(st.Sockets, e)
		}
	}
	st.Counters = named(&sum)
	if s.store != nil {
		st.Store = s.store.stats()
	}
	return st
}

func (s *storer) stats() StoreStats {
	st := StoreStats{
		Lookups: s.asked.Load(), Hits: s.hits.Load(), Misses: s.absent.Load(), Failed: s.failed.Load(),
		Timeouts: s.timeouts.Load(), Shed: s.shed.Load(),
		Refused: make(map[string]uint64),
		Written: s.saved.Load(), WriteErrors: s.saveErrors.Load(), WriteDropped: s.saveDropped.Load(),
		WriteQueue: len(s.saves), Restarts: s.restarts.Load(),
	}
	for r := flowtable.Accepted + 1; r < flowtable.NumRefusals; r++ {
		st.Refused[r.String()] = s.refused[r].Load()
	}
	for _, r := range []forward.Reason{forward.OtherCluster, forward.UnknownCluster, forward.ClusterUnhealthy, forward.Unresolved, forward.UpstreamNotAllowed, forward.TableFull} {
		st.Refused[r.String()] = s.unusable[r].Load()
	}
	st.LookupBreaker, st.LookupBreakerOpened = s.reads.snapshot()
	st.WriteBreaker, st.WriteBreakerOpened = s.writes.snapshot()
	return st
}

// warnBuffers says once when the kernel granted smaller buffers than asked for.
func (s *Server) warnBuffers(conns []*udpbatch.Conn) {
	for _, conn := range conns {
		st := conn.Stats()
		if st.GrantedReadBuffer > 0 && st.GrantedReadBuffer < st.AskedReadBuffer {
			s.log.Warn("receive buffer is smaller than asked for: bursts may be lost; raise net.core.rmem_max",
				"asked", st.AskedReadBuffer, "granted", st.GrantedReadBuffer)
			return
		}
	}
}
