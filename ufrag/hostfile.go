package ufrag

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/usher-rtc/usher/internal/config"
)

// File is a [Resolver] for [KindDirectory] routes with a table in a text file,
// which is read again when it changes, see [ParseHostFile] for the format.
type File struct {
	table Static
	watch *Watcher
}

// NewFile loads the table from a file and keeps in step with it from then on. The
// caller closes the File. The error is a [*ConfigError], a [*FileError], or that
// of reading the file.
func NewFile(cfg WatchConfig) (*File, error) {
	f := new(File)
	w, err := Watch(cfg, "hosts", func(text []byte) error {
		table, err := ParseHostFile(text)
		if err != nil {
			return inFile(cfg.Path, err)
		}
		return f.table.Replace(table)
	})
	if err != nil {
		return nil, err
	}
	f.watch = w
	return f, nil
}

// Resolve implements [Resolver].
func (f *File) Resolve(r Route) (netip.AddrPort, bool) { return f.table.Resolve(r) }

// Len returns the number of hosts in the table.
func (f *File) Len() int { return f.table.Len() }

// Reload looks at the file at once, see [Watcher.Reload].
func (f *File) Reload() error { return f.watch.Reload() }

// Close stops following the file and waits, see [Watcher.Close]. The table stays
// in use.
func (f *File) Close() error { return f.watch.Close() }

// ParseHostFile reads a table of hosts from text: a directory id and an address
// with port a line, as in
//
//	# transceivers
//	17 10.0.0.7:3478
//	18 [2001:db8::7]:3478
//
// Everything from a # is a comment; empty lines do not count. An empty table is
// valid: no host is up. The error is a [*FileError]: an id twice or above 48 bits,
// a name in place of an address, an address without port or with a zone,
// unspecified, multicast or broadcast.
func ParseHostFile(text []byte) (map[uint64]netip.AddrPort, error) {
	table := make(map[uint64]netip.AddrPort)
	lines := make(map[uint64]int)
	for n, fields := range config.Lines(text) {
		fail := func(format string, args ...any) error {
			return &FileError{Line: n, Problem: fmt.Sprintf(format, args...)}
		}
		if len(fields) != 2 {
			return nil, fail("has %d fields; a directory id and an address with port are wanted", len(fields))
		}
		id, err := strconv.ParseUint(fields[0], 10, 48)
		if err != nil {
			return nil, fail("%q is not a directory id, 0 to %d", fields[0], uint64(maxHost))
		}
		ap, err := netip.ParseAddrPort(fields[1])
		if err != nil {
			return nil, fail("%q is not an address with port", fields[1])
		}
		ap = unmap(ap)
		if !usable(ap) {
			return nil, fail("%s is not a unicast address with a port and without zone", ap)
		}
		if first, ok := lines[id]; ok {
			return nil, fail("host %d is on line %d already", id, first)
		}
		table[id], lines[id] = ap, n
	}
	return table, nil
}
