package ufrag

import (
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/usher-rtc/usher/internal/config"
)

// A Resolver turns a route into the UDP address of the session's owner. Resolve
// is called on the packet path: it answers from a snapshot, does not block and
// does not allocate, and is safe for concurrent use. It returns false for a route
// that it does not know (yet).
//
// A relay asks about routes of its own cluster only, so a resolver need not look
// at the cluster: directory ids are those of one cluster.
type Resolver interface {
	Resolve(Route) (netip.AddrPort, bool)
}

// usable reports whether this is the address of one host from wherever it is used:
// a zone means something on one machine only.
func usable(ap netip.AddrPort) bool {
	a := ap.Addr()
	return a.IsValid() && ap.Port() != 0 && !a.IsUnspecified() && !a.IsMulticast() &&
		a != broadcast && a.Zone() == ""
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// EmbeddedIPv4 is the [Resolver] for [KindIPv4] routes: the address is in the
// route, there is nothing to look up. It does not know directory ids.
type EmbeddedIPv4 struct{}

// Resolve implements [Resolver].
func (EmbeddedIPv4) Resolve(r Route) (netip.AddrPort, bool) {
	ap, ok := r.AddrPort()
	if !ok || !usable(ap) {
		return netip.AddrPort{}, false
	}
	return ap, true
}

// Static is a [Resolver] for [KindDirectory] routes with a table in memory, which
// [Static.Replace] changes as a whole while it is in use. The zero Static is empty.
type Static struct {
	table atomic.Pointer[map[uint64]netip.AddrPort]
}

// NewStatic returns a resolver for this table from directory id to address. It
// copies the table. The error is a [*ConfigError]: an id above 48 bits, or an
// address without port or with a zone, unspecified, multicast or broadcast.
func NewStatic(table map[uint64]netip.AddrPort) (*Static, error) {
	s := new(Static)
	if err := s.Replace(table); err != nil {
		return nil, err
	}
	return s, nil
}

// Replace swaps the whole table in one step. It copies the table, validates like
// [NewStatic] and changes nothing if it returns an error.
func (s *Static) Replace(table map[uint64]netip.AddrPort) error {
	copied := make(map[uint64]netip.AddrPort, len(table))
	for id, ap := range table {
		ap = unmap(ap)
		if id > maxHost {
			return config.Errorf(fmt.Sprintf("Table[%d]", id), "the id does not fit into 48 bits")
		}
		if !usable(ap) {
			return config.Errorf(fmt.Sprintf("Table[%d]", id), "%s is not a unicast address with a port and without zone", ap)
		}
		copied[id] = ap
	}
	s.table.Store(&copied)
	return nil
}

// Resolve implements [Resolver].
func (s *Static) Resolve(r Route) (netip.AddrPort, bool) {
	table := s.table.Load()
	if r.Kind != KindDirectory || table == nil {
		return netip.AddrPort{}, false
	}
	ap, ok := (*table)[r.Host]
	return ap, ok
}

// Len returns the number of hosts in the table.
func (s *Static) Len() int {
	if table := s.table.Load(); table != nil {
		return len(*table)
	}
	return 0
}

// unmap turns an IPv4-mapped address into the IPv4 address. One with a zone stays
// as it is, to be refused: netip would drop the zone.
func unmap(ap netip.AddrPort) netip.AddrPort {
	if ap.Addr().Zone() != "" {
		return ap
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// Chain is a [Resolver] that asks each of its resolvers in turn; the first that
// knows the route answers. Put the one with fixed answers first, so that a table
// overrides DNS and not the other way round.
type Chain []Resolver

// Resolve implements [Resolver].
func (c Chain) Resolve(r Route) (netip.AddrPort, bool) {
	for _, next := range c {
		if ap, ok := next.Resolve(r); ok {
			return ap, true
		}
	}
	return netip.AddrPort{}, false
}

// AllowList is a [Resolver] that passes on only addresses inside its prefixes, so
// that no ufrag, table or DNS answer makes a relay send anywhere else. Addresses
// are unmapped first: ::ffff:10.1.2.3 is 10.1.2.3 and nothing more. Other ways to
// write an IPv4 address in an IPv6 one (::10.1.2.3, 64:ff9b::/96, 2002::/16) are
// the IPv6 addresses that they are. Addresses with a zone are refused, and so are
// unspecified, multicast and broadcast addresses and port 0, whatever the
// prefixes. An empty list refuses everything.
type AllowList struct {
	prefixes []netip.Prefix
	next     Resolver
}

// Allow returns a resolver that asks next and passes on addresses inside the
// prefixes. It copies the prefixes, masks them, and takes a prefix of IPv4-mapped
// addresses for the IPv4 one. Next may be nil if only [AllowList.Contains] is used.
func Allow(prefixes []netip.Prefix, next Resolver) *AllowList {
	a := &AllowList{next: next}
	for _, p := range prefixes {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		if p.IsValid() {
			a.prefixes = append(a.prefixes, p.Masked())
		}
	}
	return a
}

// Resolve implements [Resolver]. The address it returns is unmapped.
func (a *AllowList) Resolve(r Route) (netip.AddrPort, bool) {
	if a.next == nil {
		return netip.AddrPort{}, false
	}
	ap, ok := a.next.Resolve(r)
	if !ok {
		return netip.AddrPort{}, false
	}
	ap = unmap(ap)
	if !usable(ap) || !a.Contains(ap.Addr()) {
		return netip.AddrPort{}, false
	}
	return ap, true
}

// Contains reports whether the address, unmapped, is inside one of the prefixes.
// An address with a zone is not. It does not allocate.
func (a *AllowList) Contains(addr netip.Addr) bool {
	if addr.Zone() != "" {
		return false
	}
	addr = addr.Unmap()
	for _, p := range a.prefixes {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}
