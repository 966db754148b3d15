package udpbatch

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// mmsgConn is the batched path: a descriptor that only this package uses.
//
// A lock is held for a system call that does not block, or for the wait of
// about a millisecond in writeBatch, so close, which takes both locks (wmu
// first), can neither pull the descriptor from under a call nor wait long.
type mmsgConn struct {
	n        *counters
	family   int     // AF_INET or AF_INET6
	wildcard bool    // bound to every address: packets and messages carry Local
	gro      Offload // set once
	gso      atomic.Uint32

	wmu sync.Mutex
	rmu sync.Mutex
	fd  int // -1 once closed; changed with both locks held
	// epfd is the epoll that watches fd, or -1. Guarded by rmu.
	epfd int

	out writer // guarded by wmu

	dropsBase uint32        // the kernel's count when the Conn was made
	drops     atomic.Uint32 // its latest known count
}

func listen(cfg SocketConfig) (*Conn, error) {
	addr := unmap(cfg.Addr)
	if addr.IsValid() {
		return listenAddr(addr, cfg)
	}
	c, err := listenAddr(netip.AddrPortFrom(netip.IPv6Unspecified(), addr.Port()), cfg)
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL) {
		// A kernel without IPv6, or with IPv6 disabled.
		c, err = listenAddr(netip.AddrPortFrom(netip.IPv4Unspecified(), addr.Port()), cfg)
	}
	return c, err
}

func listenAddr(addr netip.AddrPort, cfg SocketConfig) (*Conn, error) {
	family := unix.AF_INET
	var sa unix.Sockaddr
	if a := addr.Addr(); a.Is4() {
		sa = &unix.SockaddrInet4{Port: int(addr.Port()), Addr: a.As4()}
	} else {
		family = unix.AF_INET6
		zone, err := zoneIndex(a.Zone())
		if err != nil {
			return nil, fmt.Errorf("udpbatch: listen on %s: %w", addr, err)
		}
		sa = &unix.SockaddrInet6{Port: int(addr.Port()), ZoneId: zone, Addr: a.As16()}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)
	if err != nil {
		return nil, fmt.Errorf("udpbatch: %w", os.NewSyscallError("socket", err))
	}
	c, err := bind(fd, family, sa, cfg)
	if err != nil {
		_ = unix.Close(fd) // the first error is the one to tell
		return nil, fmt.Errorf("udpbatch: listen on %s: %w", addr, err)
	}
	return c, nil
}

func bind(fd, family int, sa unix.Sockaddr, cfg SocketConfig) (*Conn, error) {
	if cfg.ReusePort {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
			return nil, os.NewSyscallError("setsockopt SO_REUSEPORT", err)
		}
	}
	if family == unix.AF_INET6 {
		v6only := 0
		if cfg.V6Only {
			v6only = 1
		}
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, v6only); err != nil {
			return nil, os.NewSyscallError("setsockopt IPV6_V6ONLY", err)
		}
	}
	if err := unix.Bind(fd, sa); err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	return adopt(fd, cfg)
}

// zoneIndex turns the zone of an address to listen on into an interface index.
func zoneIndex(zone string) (uint32, error) {
	if zone == "" {
		return 0, nil
	}
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n), nil
	}
	ifc, err := net.InterfaceByName(zone)
	if err != nil {
		return 0, err
	}
	return uint32(ifc.Index), nil
}

func takeOver(pc net.PacketConn, cfg SocketConfig) (*Conn, error) {
	u, ok := pc.(*net.UDPConn)
	if !ok {
		return newPortable(pc, cfg)
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("udpbatch: %w", err)
	}
	c, err := duplicate(raw, cfg)
	if err != nil {
		return nil, err
	}
	// Only the duplicate is used from here on. Were the original left open,
	// every datagram would also wake the Go runtime's poller.
	if err := u.Close(); err != nil {
		_ = c.Close() // it has no error beyond the one to tell
		return nil, fmt.Errorf("udpbatch: %w", err)
	}
	return c, nil
}

func fromFile(f *os.File, cfg SocketConfig) (*Conn, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("udpbatch: %w", err)
	}
	return duplicate(raw, cfg)
}

// controller is the part of syscall.RawConn that is needed here.
type controller interface {
	Control(f func(fd uintptr)) error
}

func duplicate(raw controller, cfg SocketConfig) (*Conn, error) {
	fd := -1
	var errDup error
	err := raw.Control(func(orig uintptr) {
		fd, errDup = unix.FcntlInt(orig, unix.F_DUPFD_CLOEXEC, 0)
	})
	if err == nil {
		err = os.NewSyscallError("fcntl", errDup)
	}
	if err != nil {
		return nil, fmt.Errorf("udpbatch: %w", err)
	}
	c, err := adopt(fd, cfg)
	if err != nil {
		_ = unix.Close(fd) // the first error is the one to tell
		return nil, fmt.Errorf("udpbatch: %w", err)
	}
	return c, nil
}

// adopt makes a Conn of a bound descriptor. On error the descriptor stays open.
func adopt(fd int, cfg SocketConfig) (*Conn, error) {
	typ, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return nil, os.NewSyscallError("getsockopt SO_TYPE", err)
	}
	proto, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil {
		return nil, os.NewSyscallError("getsockopt SO_PROTOCOL", err)
	}
	if typ != unix.SOCK_DGRAM || proto != unix.IPPROTO_UDP {
		return nil, fmt.Errorf("not a UDP socket: %w", unix.ENOTSUP)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return nil, os.NewSyscallError("getsockname", err)
	}
	c := &mmsgConn{n: &counters{}, fd: fd, epfd: -1, family: unix.AF_INET}
	var local netip.AddrPort
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		local = netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		c.family = unix.AF_INET6
		a := netip.AddrFrom16(sa.Addr)
		if sa.ZoneId != 0 {
			a = a.WithZone(strconv.Itoa(int(sa.ZoneId)))
		}
		local = netip.AddrPortFrom(a, uint16(sa.Port))
	default:
		return nil, fmt.Errorf("not an Internet socket: %w", unix.EAFNOSUPPORT)
	}
	c.wildcard = local.Addr().IsUnspecified()
	if err := c.setOptions(cfg); err != nil {
		return nil, err
	}
	c.out.init(c.family)
	return &Conn{t: c, n: c.n, local: unmap(local), asked: cfg}, nil
}

// setOptions makes any UDP socket, ours or somebody else's, behave as this
// package needs it.
func (c *mmsgConn) setOptions(cfg SocketConfig) error {
	if err := unix.SetNonblock(c.fd, true); err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	type option struct {
		level, name, value int
		must               bool
		what               string
	}
	// On a dual-stack socket the options of both levels count, each for its own datagrams.
	opts := []option{
		// OMIT: fragment when needed, believe no ICMP message about the path
		// MTU. PROBE and DO fail with EMSGSIZE on a path smaller than the datagram.
		{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_OMIT, true, "IP_MTU_DISCOVER"},
		{unix.IPPROTO_IP, unix.IP_RECVTOS, 1, false, "IP_RECVTOS"},
		// An error queue that nobody reads would keep epoll awake for ever.
		{unix.IPPROTO_IP, unix.IP_RECVERR, 0, false, "IP_RECVERR"},
	}
	if c.family == unix.AF_INET6 {
		opts = append(opts,
			option{unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_OMIT, true, "IPV6_MTU_DISCOVER"},
			option{unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1, false, "IPV6_RECVTCLASS"},
			option{unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 0, false, "IPV6_RECVERR"})
	}
	if c.wildcard {
		if c.family == unix.AF_INET6 {
			opts = append(opts, option{unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1, true, "IPV6_RECVPKTINFO"})
		} else {
			opts = append(opts, option{unix.IPPROTO_IP, unix.IP_PKTINFO, 1, true, "IP_PKTINFO"})
		}
	}
	for _, o := range opts {
		if err := unix.SetsockoptInt(c.fd, o.level, o.name, o.value); err != nil && o.must {
			return os.NewSyscallError("setsockopt "+o.what, err)
		}
	}
	if err := c.setBuffers(cfg); err != nil {
		return err
	}
	c.setOffloads(cfg)
	if drops, ok := kernelDrops(c.fd); ok {
		c.dropsBase = drops
		c.drops.Store(drops)
		// The former owner may have it on; its older values must not mix in.
		_ = unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 0)
	} else if err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1); err != nil {
		return os.NewSyscallError("setsockopt SO_RXQ_OVFL", err)
	}
	return nil
}

// setBuffers asks for the configured buffers, beyond the system's limit if
// the process may, and notes what was granted. Less than asked is no error.
func (c *mmsgConn) setBuffers(cfg SocketConfig) error {
	for _, b := range []struct {
		asked, force, plain int
		granted             *atomic.Int64
		what                string
	}{
		{cfg.ReadBuffer, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, &c.n.grantedReadBuffer, "SO_RCVBUF"},
		{cfg.WriteBuffer, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, &c.n.grantedWriteBuf, "SO_SNDBUF"},
	} {
		if b.asked > 0 && unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, b.force, b.asked) != nil {
			if err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, b.plain, b.asked); err != nil {
				return os.NewSyscallError("setsockopt "+b.what, err)
			}
		}
		got, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, b.plain)
		if err != nil {
			return os.NewSyscallError("getsockopt "+b.what, err)
		}
		b.granted.Store(int64(got / 2)) // socket(7): the kernel doubles the value
	}
	return nil
}

func (c *mmsgConn) setOffloads(cfg SocketConfig) {
	if cfg.GSO {
		c.gso.Store(uint32(OffloadUnsupported))
		if canSegment() {
			c.gso.Store(uint32(OffloadOn))
		}
	}
	gro := 0
	if cfg.GRO {
		gro = 1
	}
	// A socket taken over may have it on without being asked.
	err := unix.SetsockoptInt(c.fd, unix.IPPROTO_UDP, unix.UDP_GRO, gro)
	switch {
	case cfg.GRO && err == nil:
		c.gro = OffloadOn
	case cfg.GRO:
		c.gro = OffloadUnsupported
	}
}

// canSegment probes once whether the kernel knows UDP_SEGMENT (Linux 4.18).
var canSegment = sync.OnceValue(func() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written to it
	return unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 1200) == nil
})

// kernelDrops reads the socket's drop counter (SO_MEMINFO, Linux 4.12). Unlike
// SO_RXQ_OVFL it costs nothing per datagram and does not wait for the next one.
func kernelDrops(fd int) (uint32, bool) {
	const fields, drops = 9, 8 // include/uapi/linux/sock_diag.h, SK_MEMINFO_VARS and SK_MEMINFO_DROPS
	var info [fields]uint32
	if err := getsockopt(fd, unix.SOL_SOCKET, unix.SO_MEMINFO, info[:]); err != nil {
		return 0, false
	}
	return info[drops], true
}

func (c *mmsgConn) close() error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.rmu.Lock()
	defer c.rmu.Unlock()
	if c.fd < 0 {
		return nil
	}
	c.readDrops()
	c.unwatch()
	fd := c.fd
	c.fd = -1
	return os.NewSyscallError("close", unix.Close(fd))
}

// watch adds the socket to an epoll under a number. unwatch takes it out: as
// long as a duplicate of the descriptor is open, closing does not do that.
func (c *mmsgConn) watch(epfd, index int) error {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	if c.fd < 0 {
		return net.ErrClosed
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(index)}
	if err := unix.EpollCtl(epfd, unix.EPOLL_CTL_ADD, c.fd, &ev); err != nil {
		return os.NewSyscallError("epoll_ctl", err)
	}
	c.epfd = epfd
	return nil
}

// mute stops and restarts the events that watch asked for.
func (c *mmsgConn) mute(index int, on bool) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	if c.fd < 0 || c.epfd < 0 {
		return
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(index)}
	if on {
		ev.Events = 0
	}
	_ = unix.EpollCtl(c.epfd, unix.EPOLL_CTL_MOD, c.fd, &ev) // it was added
}

// unwatch runs with rmu held.
func (c *mmsgConn) unwatch() {
	if c.fd >= 0 && c.epfd >= 0 {
		_ = unix.EpollCtl(c.epfd, unix.EPOLL_CTL_DEL, c.fd, nil) // it was added
		c.epfd = -1
	}
}

func (c *mmsgConn) file() (*os.File, error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	if c.fd < 0 {
		return nil, net.ErrClosed
	}
	fd, err := unix.FcntlInt(uintptr(c.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), "udp"), nil
}

// readDrops runs with rmu held.
func (c *mmsgConn) readDrops() {
	if drops, ok := kernelDrops(c.fd); ok {
		c.drops.Store(drops)
	}
}

func (c *mmsgConn) addStats(s *Stats) {
	c.rmu.Lock()
	if c.fd >= 0 {
		c.readDrops()
	}
	c.rmu.Unlock()
	s.KernelDrops = uint64(c.drops.Load() - c.dropsBase) // the counter has 32 bits and wraps
	s.GSO = Offload(c.gso.Load())
	s.GRO = c.gro
}
