package icelite

import (
	"net/netip"
	"time"
)

// Stats counts what an agent did since it was made.
type Stats struct {
	// Checks are authenticated checks of the client's, without Duplicates:
	// transactions seen before.
	Checks, Duplicates uint64
	// Refused requests: without USERNAME or MESSAGE-INTEGRITY, for a ufrag that
	// is not ours, with wrong credentials (401), with unknown attributes that
	// must be understood (420), from a client that claims to be controlled
	// (487), with credentials that may not be used any more.
	Malformed, UnknownUfrag, Unauthorized uint64
	UnknownAttributes, RoleConflicts      uint64
	Expired                               uint64
	// Own checks, and the responses to them: answered; with an error code;
	// signed wrongly; late or repeated; of no known transaction.
	OwnChecks, OwnChecksAnswered    uint64
	ErrorResponses, BadResponses    uint64
	LateResponses, UnknownResponses uint64
	// DataDropped are packets that were not let through, DataUnproven those
	// that were as SRTP only.
	DataDropped, DataUnproven uint64
	// Limited are packets that a limit on what goes out held back.
	Limited uint64
	// Moves are changes of the current path, the first included; RelayChanges
	// those of a path's relay; Evictions paths that made room for another.
	Moves, RelayChanges, Evictions uint64
}

// Stats returns the counters.
func (a *Agent) Stats() Stats { return a.stats }

// PathInfo describes one path.
type PathInfo struct {
	Path Path
	// Via is the trunk address of the relay that the path runs through.
	Via netip.AddrPort
	// Generation is the newest whose check came from here.
	Generation int
	// Current says that outgoing packets go here; Validated that the path is
	// proven.
	Current, Validated bool
	// RTT is the smoothed round-trip time of own checks, LastRTT the last one;
	// 0 if none was answered.
	RTT, LastRTT time.Duration
	// LastHeard is when something authenticated, or let through, last came
	// from here; zero if never.
	LastHeard time.Time
	// Datagrams and bytes, and checks in both directions. ChecksAnswered are
	// our own; Unsent are datagrams that the path's limit held back.
	PacketsIn, BytesIn, PacketsOut, BytesOut    uint64
	ChecksIn, ChecksOut, ChecksAnswered, Unsent uint64
}

// Paths returns the paths of the session, in no order, as they were at the last
// call with a time. It allocates.
func (a *Agent) Paths() []PathInfo {
	infos := make([]PathInfo, 0, MaxPaths)
	for i := range a.paths {
		if a.paths[i].used && !a.paths[i].lost {
			infos = append(infos, a.info(i))
		}
	}
	return infos
}

// SelectedPath returns the current path. It reports false if there is none.
func (a *Agent) SelectedPath() (Path, bool) {
	if a.current < 0 {
		return Path{}, false
	}
	return a.paths[a.current].id, true
}

func (a *Agent) info(i int) PathInfo {
	p := &a.paths[i]
	info := PathInfo{
		Path: p.id, Via: p.via, Generation: p.generation,
		Current: i == a.current, Validated: a.proven(p, a.now),
		RTT: time.Duration(p.rttSmoothed), LastRTT: time.Duration(p.rttLast),
		PacketsIn: p.packetsIn, BytesIn: p.bytesIn, PacketsOut: p.packetsOut, BytesOut: p.bytesOut,
		ChecksIn: p.checksIn, ChecksOut: p.checksOut, ChecksAnswered: p.checksAnswered, Unsent: p.unsent,
	}
	if p.lastAny != 0 {
		info.LastHeard = a.time(p.lastAny)
	}
	return info
}

// RTT returns the smoothed and the last round-trip time of own checks on the
// current path, 0 if none was answered.
func (a *Agent) RTT() (smoothed, last time.Duration) {
	if a.current < 0 {
		return 0, 0
	}
	p := &a.paths[a.current]
	return time.Duration(p.rttSmoothed), time.Duration(p.rttLast)
}
