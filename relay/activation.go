package relay

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/usher-rtc/usher/internal/config"
)

// Socket is a UDP socket that was opened before this process, see
// [Config].Sockets.
type Socket struct {
	// File has the descriptor. New duplicates it; the caller closes it afterwards.
	File *os.File
	// Name says what it is for: "ingress-7" is one of ingress 7. Any other name, or
	// none, leaves it to the address that it is bound to.
	Name string
}

// SystemdSockets returns the sockets that systemd has passed to this process
// (sd_listen_fds(3): LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES), none if it has not,
// and removes those variables. Their order is that of the unit.
func SystemdSockets() ([]Socket, error) {
	const first = 3 // SD_LISTEN_FDS_START
	pid, count, names := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS"), os.Getenv("LISTEN_FDNAMES")
	if pid != strconv.Itoa(os.Getpid()) {
		return nil, nil // for another process, or for none
	}
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		_ = os.Unsetenv(name) // children are not to believe it
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 || n > 1<<16 {
		return nil, fmt.Errorf("relay: LISTEN_FDS is %q, not a number of descriptors", count)
	}
	list := strings.Split(names, ":")
	if names == "" {
		list = make([]string, n)
	}
	if len(list) != n {
		return nil, fmt.Errorf("relay: LISTEN_FDNAMES has %d names for %d descriptors", len(list), n)
	}
	found := make([]Socket, 0, n)
	for i, name := range list {
		found = append(found, Socket{File: os.NewFile(uintptr(first+i), name), Name: name})
	}
	return found, nil
}

// given sorts cfg.Sockets by what they are for; nil if there are none.
func (c *Config) given() (*sockets, error) {
	if len(c.Sockets) == 0 {
		return nil, nil
	}
	all := newSockets(c.Workers)
	counts := make(map[uint16]int)
	for i, s := range c.Sockets {
		field := fmt.Sprintf("Sockets[%d]", i)
		addr, err := boundTo(s.File)
		if err != nil {
			return nil, config.Errorf(field, "%q: %v", s.Name, err)
		}
		in, err := c.ingressFor(s.Name, addr)
		if err != nil {
			return nil, config.Errorf(field, "%v", err)
		}
		if in != nil {
			if err := checkBound(field, in.Listen, addr); err != nil {
				return nil, err
			}
			if w := counts[in.ID]; w < c.Workers {
				all.ingress[w][in.ID] = s.File
			}
			counts[in.ID]++
			continue
		}
		w := int(addr.Port()) - int(c.Trunk.Port())
		if c.Trunk.Port() == 0 || addr.Addr() != c.Trunk.Addr().Unmap() || w < 0 || w >= c.Workers {
			return nil, config.Errorf(field, "%q is bound to %v, which is neither an ingress nor the trunk", s.Name, addr)
		}
		all.trunk[w] = s.File
	}
	for i, in := range c.Ingresses {
		if n := counts[in.ID]; n > 0 && n != c.Workers {
			return nil, config.Errorf("Sockets", "Ingresses[%d], %v, has %d sockets for %d workers: each needs one, bound with SO_REUSEPORT if there are several", i, in.Listen, n, c.Workers)
		}
	}
	return all, nil
}

// ingressFor returns the ingress that a socket is for, nil if it is for none.
func (c *Config) ingressFor(name string, addr netip.AddrPort) (*Ingress, error) {
	if text, ok := strings.CutPrefix(name, "ingress-"); ok {
		id, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("the name %q has no ingress id", name)
		}
		for i := range c.Ingresses {
			if c.Ingresses[i].ID == uint16(id) {
				return &c.Ingresses[i], nil
			}
		}
		return nil, fmt.Errorf("%q: there is no ingress %d", name, id)
	}
	for i := range c.Ingresses {
		if in := &c.Ingresses[i]; in.Listen.Port() != 0 && sameAddr(in.Listen, addr) {
			return in, nil
		}
	}
	return nil, nil
}

// boundTo returns the address of a UDP socket.
func boundTo(f *os.File) (netip.AddrPort, error) {
	if f == nil {
		return netip.AddrPort{}, fmt.Errorf("no descriptor")
	}
	pc, err := net.FilePacketConn(f) // a duplicate
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("not a UDP socket: %w", err)
	}
	defer func() { _ = pc.Close() }()
	u, ok := pc.LocalAddr().(*net.UDPAddr)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("not a UDP socket: its address is %v", pc.LocalAddr())
	}
	ap := u.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()), nil
}
