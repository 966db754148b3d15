package transceiver

import (
	"log/slog"
	"time"
)

// warnEvery is how often the Host says the same thing: a stranger must not be
// able to fill the disk.
const warnEvery = time.Minute

// hints has the drops that a wrong configuration causes, with what to do. The
// others happen in any working Host and are counted only.
var hints = [dropCount]string{
	DropRelayRefused: "datagrams come from an address outside AllowRelays",
	DropTrunk:        "what a relay sends does not open: give it and this Host the same TrunkKeys, and the same version",
	DropIngress:      "a relay has an ingress with the id 0",
	DropOversize:     "a packet does not fit into TrunkMTU",
}

// warner says which of the drops in hints are new.
type warner struct {
	log  *slog.Logger
	said [dropCount]struct {
		at    time.Time
		count uint64
	}
}

// look writes a line for each reason that has new drops, at most one a minute.
func (w *warner) look(now time.Time, drops func(DropReason) uint64) {
	for r, hint := range hints {
		if hint == "" {
			continue
		}
		l, count := &w.said[r], drops(DropReason(r))
		if count == l.count || !l.at.IsZero() && now.Sub(l.at) < warnEvery {
			continue
		}
		w.log.Warn("dropped datagrams", "reason", DropReason(r).String(), "count", count-l.count, "hint", hint)
		l.at, l.count = now, count
	}
}

// unheard says that sessions end without a check while no client's packet comes from
// any relay: clients were told an address behind which there is no relay, or none
// that reaches this Host.
type unheard struct {
	log          *slog.Logger
	limit        time.Duration // Config.ConnectTimeout
	since        time.Time     // no packet since then
	at           time.Time     // it was said
	ended, heard uint64
}

// look is told how many sessions have ended that never connected, and how many
// packets of clients have come. It writes at most one line a minute.
func (s *unheard) look(now time.Time, ended, heard uint64) {
	if s.since.IsZero() || heard != s.heard {
		s.since, s.ended, s.heard = now, ended, heard
	}
	if ended == s.ended || now.Sub(s.since) < s.limit || !s.at.IsZero() && now.Sub(s.at) < warnEvery {
		return
	}
	s.log.Warn("sessions ended, and no relay sent a packet of their clients", "count", ended-s.ended,
		"hint", "is there a relay behind Ingresses[].Advertise, and can it send to the address in this Host's ufrags? its counters say")
	s.at, s.ended = now, ended
}

// heard returns how many packets of clients have come.
func (h *Host) heard() (n uint64) {
	for _, sh := range h.shards {
		n += sh.framesIn.Load()
	}
	return n
}

// dropped returns how much all sockets have dropped for a reason.
func (h *Host) dropped(r DropReason) (n uint64) {
	for _, sh := range h.shards {
		n += sh.drops[r].Load()
	}
	return n
}
