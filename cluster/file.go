package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/usher-rtc/usher/internal/config"
	"github.com/usher-rtc/usher/ufrag"
)

// File is a [Directory] with a table in a text file, which is read again when it
// changes; see [ParseFile] for the format.
type File struct {
	Static
	watch *ufrag.Watcher
}

// NewFile loads the table from a file and keeps in step with it from then on. The
// caller closes the File. The error is a [*ConfigError], a [*ufrag.FileError], or
// that of reading the file.
func NewFile(cfg ufrag.WatchConfig) (*File, error) {
	f := new(File)
	w, err := ufrag.Watch(cfg, "clusters", func(text []byte) error {
		table, err := ParseFile(text)
		var fe *ufrag.FileError
		if errors.As(err, &fe) {
			fe.Path = cfg.Path
		}
		if err != nil {
			return err
		}
		return f.Replace(table)
	})
	if err != nil {
		return nil, err
	}
	f.watch = w
	return f, nil
}

// Reload looks at the file at once, see [ufrag.Watcher.Reload].
func (f *File) Reload() error { return f.watch.Reload() }

// Close stops following the file and waits. The table stays in use.
func (f *File) Close() error { return f.watch.Close() }

// ParseFile reads a table of clusters from text: a cluster's number and the trunk
// addresses of its relays a line, as in
//
//	# two relays of four workers each
//	1 10.1.0.5:4000-4003 10.1.0.6:4000-4003
//	2 [2001:db8:2::5]:4000
//
// A range of ports stands for the workers of one relay. Everything from a # is a
// comment; empty lines do not count, and an empty table is valid. The error is a
// [*ufrag.FileError]: a cluster twice or above [MaxID] or without address, more
// than [MaxAddresses], a name in place of an address, an address without port or
// with a zone, unspecified, multicast or broadcast.
func ParseFile(text []byte) (Table, error) {
	table := make(Table)
	lines := make(map[uint16]int)
	for n, fields := range config.Lines(text) {
		fail := func(format string, args ...any) error {
			return &ufrag.FileError{Line: n, Problem: fmt.Sprintf(format, args...)}
		}
		number, err := strconv.ParseUint(fields[0], 10, 16)
		if err != nil || number > MaxID {
			return nil, fail("%q is not the number of a cluster, 0 to %d", fields[0], MaxID)
		}
		id := uint16(number)
		if first, ok := lines[id]; ok {
			return nil, fail("cluster %d is on line %d already", id, first)
		}
		if len(fields) == 1 {
			return nil, fail("cluster %d has no addresses", id)
		}
		lines[id] = n
		for _, field := range fields[1:] {
			first, last, problem := parseAddresses(field)
			if problem != "" {
				return nil, fail("%s", problem)
			}
			if len(table[id])+int(last-first.Port())+1 > MaxAddresses {
				return nil, fail("cluster %d has more than %d addresses", id, MaxAddresses)
			}
			for port := int(first.Port()); port <= int(last); port++ {
				table[id] = append(table[id], netip.AddrPortFrom(first.Addr(), uint16(port)))
			}
		}
	}
	return table, nil
}

// parseAddresses reads an address with a port or a range of ports.
func parseAddresses(field string) (first netip.AddrPort, last uint16, problem string) {
	text, end, isRange := strings.Cut(field, "-")
	first, err := netip.ParseAddrPort(text)
	if err != nil {
		return first, 0, fmt.Sprintf("%q is not an address with a port or a range of ports", field)
	}
	first = unmap(first)
	if !usable(first) {
		return first, 0, fmt.Sprintf("%s is not a unicast address with a port and without zone", first)
	}
	last = first.Port()
	if isRange {
		port, err := strconv.ParseUint(end, 10, 16)
		if err != nil || uint16(port) < last {
			return first, 0, fmt.Sprintf("%q does not end with a port of at least %d", field, last)
		}
		last = uint16(port)
	}
	return first, last, ""
}
