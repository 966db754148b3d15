package cluster

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/usher-rtc/usher/internal/config"
)

// ConfigError is what the constructors return for a bad configuration and names
// the field.
type ConfigError = config.Error

const (
	// MaxID is the largest cluster number: a route has 12 bits for it.
	MaxID = 1<<12 - 1
	// MaxAddresses bounds the addresses of one cluster: 64 relays of 16 workers.
	MaxAddresses = 1024
)

// A Directory knows the trunk addresses of clusters' relays, one for each worker
// of each relay. Its methods are called on the packet path: they answer from a
// snapshot, do not block and are safe for concurrent use, and Addresses does not
// allocate. It says what there is; which addresses are well, whoever uses them
// finds out.
type Directory interface {
	// Addresses returns the addresses of a cluster's relays, in the same order for
	// everybody, or none if the cluster is not known (yet). The caller does not
	// change the slice, and the directory does not either: it returns another one
	// when something has changed.
	Addresses(cluster uint16) []netip.AddrPort
	// Clusters returns the numbers of the clusters that have addresses, in
	// ascending order.
	Clusters() []uint16
}

// Table is the contents of a directory: the trunk addresses of each cluster's
// relays.
type Table map[uint16][]netip.AddrPort

// clean returns a copy with unmapped addresses, each once and sorted.
func (t Table) clean() (Table, error) {
	out := make(Table, len(t))
	for id, addrs := range t {
		field := fmt.Sprintf("Table[%d]", id)
		if id > MaxID {
			return nil, config.Errorf(field, "the number of a cluster is at most %d", MaxID)
		}
		list := make([]netip.AddrPort, 0, len(addrs))
		for i, ap := range addrs {
			ap = unmap(ap)
			if !usable(ap) {
				return nil, config.Errorf(fmt.Sprintf("%s[%d]", field, i), "%s is not a unicast address with a port and without zone", ap)
			}
			list = append(list, ap)
		}
		list = sorted(list)
		if len(list) > MaxAddresses {
			return nil, config.Errorf(field, "%d addresses are more than %d", len(list), MaxAddresses)
		}
		if len(list) > 0 {
			out[id] = list
		}
	}
	return out, nil
}

// sorted puts a list into an order that is the same everywhere, without doubles.
func sorted(list []netip.AddrPort) []netip.AddrPort {
	slices.SortFunc(list, netip.AddrPort.Compare)
	return slices.Compact(list)
}

// usable reports whether this is one process's address from wherever it is used.
func usable(ap netip.AddrPort) bool {
	a := ap.Addr()
	return a.IsValid() && ap.Port() != 0 && a.Zone() == "" && !a.IsUnspecified() && !a.IsMulticast() &&
		a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// unmap turns an IPv4-mapped address into the IPv4 address. One with a zone stays
// as it is, to be refused: netip would drop the zone.
func unmap(ap netip.AddrPort) netip.AddrPort {
	if ap.Addr().Zone() != "" {
		return ap
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// Static is a [Directory] with a table in memory, which [Static.Replace] changes
// as a whole while it is in use. The zero Static is empty.
type Static struct {
	snapshot atomic.Pointer[snapshot]
}

type snapshot struct {
	table Table
	ids   []uint16
}

// NewStatic returns a directory with this table, which it copies. The error is a
// [*ConfigError]: a number above [MaxID], more than [MaxAddresses] in a cluster,
// or an address without port or with a zone, unspecified, multicast or broadcast.
func NewStatic(table Table) (*Static, error) {
	s := new(Static)
	if err := s.Replace(table); err != nil {
		return nil, err
	}
	return s, nil
}

// Replace swaps the whole table in one step. It copies the table, validates like
// [NewStatic] and changes nothing if it returns an error. The lists of clusters
// that stay the same are still the same slices.
func (s *Static) Replace(table Table) error {
	cleaned, err := table.clean()
	if err != nil {
		return err
	}
	if old := s.snapshot.Load(); old != nil {
		for id, list := range cleaned {
			if was := old.table[id]; slices.Equal(was, list) {
				cleaned[id] = was
			}
		}
	}
	s.snapshot.Store(&snapshot{cleaned, slices.Sorted(maps.Keys(cleaned))})
	return nil
}

// Addresses implements [Directory].
func (s *Static) Addresses(cluster uint16) []netip.AddrPort {
	if snap := s.snapshot.Load(); snap != nil {
		return snap.table[cluster]
	}
	return nil
}

// Clusters implements [Directory].
func (s *Static) Clusters() []uint16 {
	if snap := s.snapshot.Load(); snap != nil {
		return slices.Clone(snap.ids)
	}
	return nil
}
