package ufrag

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// RouteLen is the length in bytes of a route in its binary form, see
// [Route.AppendBinary].
const RouteLen = 12

const (
	maxCluster = 1<<12 - 1
	maxHost    = 1<<48 - 1
)

// Kind says how the host of a [Route] is written. It has 4 bits on the wire;
// 0 is not a kind, so that a zeroed block never decodes.
type Kind uint8

const (
	// KindIPv4 hosts are an IPv4 address and a UDP port: nothing to look up.
	KindIPv4 Kind = 1
	// KindDirectory hosts are a number that a [Resolver] turns into an
	// address. IPv6 hosts need it: their address does not fit into a ufrag.
	KindDirectory Kind = 2
)

// String returns the name of the kind for logs.
func (k Kind) String() string {
	switch k {
	case KindIPv4:
		return "ipv4"
	case KindDirectory:
		return "directory"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

func (k Kind) valid() bool { return k == KindIPv4 || k == KindDirectory }

// A Route names a session and the process that owns it. Routes are comparable
// and hold no pointers. The zero Route is not valid.
type Route struct {
	// Kind says what Host means.
	Kind Kind
	// Cluster is the number of the site that the owner belongs to, 0 to 4095.
	Cluster uint16
	// Host is the owner, 48 bits: for [KindIPv4] the address in the upper 32 and
	// the port in the lower 16, for [KindDirectory] an id of the user's choice.
	Host uint64
	// Session is the owner's number for the session.
	Session uint32
}

// IPv4Route makes a route to a session on the host with this IPv4 address and
// UDP port. An IPv4-mapped IPv6 address counts as the IPv4 address. The error
// wraps [ErrRoute]; it names addresses that no packet could be sent to (port 0,
// unspecified, multicast, broadcast), because a route to them is a mistake in the
// set-up of the host.
func IPv4Route(cluster uint16, host netip.AddrPort, session uint32) (Route, error) {
	host = unmap(host)
	if !host.Addr().Is4() {
		return Route{}, fmt.Errorf("%w: %s is not an IPv4 address; use a directory id", ErrRoute, host)
	}
	if !usable(host) {
		return Route{}, fmt.Errorf("%w: %s is not a unicast address with a port", ErrRoute, host)
	}
	if cluster > maxCluster {
		return Route{}, fmt.Errorf("%w: cluster %d is above %d", ErrRoute, cluster, maxCluster)
	}
	a := host.Addr().As4()
	return Route{
		Kind:    KindIPv4,
		Cluster: cluster,
		Host:    uint64(binary.BigEndian.Uint32(a[:]))<<16 | uint64(host.Port()),
		Session: session,
	}, nil
}

// DirectoryRoute makes a route to a session on the host with this directory id,
// which must fit into 48 bits. The error wraps [ErrRoute].
func DirectoryRoute(cluster uint16, id uint64, session uint32) (Route, error) {
	r := Route{Kind: KindDirectory, Cluster: cluster, Host: id, Session: session}
	if cluster > maxCluster {
		return Route{}, fmt.Errorf("%w: cluster %d is above %d", ErrRoute, cluster, maxCluster)
	}
	if id > maxHost {
		return Route{}, fmt.Errorf("%w: directory id %d does not fit into 48 bits", ErrRoute, id)
	}
	return r, nil
}

// IsValid reports whether the route has a known kind and every field fits into
// its bits on the wire.
func (r Route) IsValid() bool {
	return r.Kind.valid() && r.Cluster <= maxCluster && r.Host <= maxHost
}

// AddrPort returns the address inside a [KindIPv4] route. It is taken from the
// route as it is: a [Resolver] also refuses what cannot be sent to.
func (r Route) AddrPort() (netip.AddrPort, bool) {
	if r.Kind != KindIPv4 {
		return netip.AddrPort{}, false
	}
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], uint32(r.Host>>16))
	return netip.AddrPortFrom(netip.AddrFrom4(a), uint16(r.Host)), true
}

// SameHost reports whether both routes lead to the same owner, whatever the
// session.
func (r Route) SameHost(o Route) bool {
	r.Session = o.Session
	return r == o
}

// String describes the route for debugging, for example
// "cluster 3 host 10.0.0.7:3478 session 42". It shows the address of the owner.
func (r Route) String() string {
	if !r.IsValid() {
		return "invalid route"
	}
	if ap, ok := r.AddrPort(); ok {
		return fmt.Sprintf("cluster %d host %s session %d", r.Cluster, ap, r.Session)
	}
	return fmt.Sprintf("cluster %d host #%d session %d", r.Cluster, r.Host, r.Session)
}

// AppendBinary appends the [RouteLen] bytes of the route, big endian: kind 4
// bits, cluster 12, host 48, session 32. A route that is not valid is appended as
// zeros, which [ParseRoute] refuses, rather than as another route.
func (r Route) AppendBinary(dst []byte) []byte {
	if !r.IsValid() {
		r = Route{}
	}
	dst = binary.BigEndian.AppendUint64(dst, r.head())
	return binary.BigEndian.AppendUint32(dst, r.Session)
}

// ParseRoute reads what [Route.AppendBinary] wrote. It returns [ErrLength] unless
// b has exactly [RouteLen] bytes, and [ErrKind] for an unknown kind. It does not
// allocate.
func ParseRoute(b []byte) (Route, error) {
	if len(b) != RouteLen {
		return Route{}, ErrLength
	}
	return routeFrom(binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]))
}

// head returns the first 64 bits of the block.
func (r Route) head() uint64 {
	return uint64(r.Kind)<<60 | uint64(r.Cluster)<<48 | r.Host
}

func routeFrom(head uint64, session uint32) (Route, error) {
	r := Route{
		Kind:    Kind(head >> 60),
		Cluster: uint16(head>>48) & maxCluster,
		Host:    head & maxHost,
		Session: session,
	}
	if !r.Kind.valid() {
		return Route{}, ErrKind
	}
	return r, nil
}
