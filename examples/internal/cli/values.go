package cli

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Prefixes is a flag of address prefixes, separated by commas or given several
// times. A plain address stands for itself alone.
type Prefixes []netip.Prefix

// String implements flag.Value.
func (p *Prefixes) String() string {
	var texts []string
	for _, prefix := range *p {
		texts = append(texts, prefix.String())
	}
	return strings.Join(texts, ",")
}

// Set implements flag.Value.
func (p *Prefixes) Set(text string) error {
	for part := range strings.SplitSeq(text, ",") {
		if addr, err := netip.ParseAddr(part); err == nil {
			*p = append(*p, netip.PrefixFrom(addr, addr.BitLen()))
			continue
		}
		prefix, err := netip.ParsePrefix(part)
		if err != nil {
			return fmt.Errorf("%q is neither a prefix nor an address", part)
		}
		*p = append(*p, prefix)
	}
	return nil
}

// AddrPort is a flag of an IP address and a port. ":3478" means every IPv4
// address of the machine.
type AddrPort netip.AddrPort

// String implements flag.Value.
func (a *AddrPort) String() string {
	if !netip.AddrPort(*a).IsValid() {
		return ""
	}
	return netip.AddrPort(*a).String()
}

// Set implements flag.Value.
func (a *AddrPort) Set(text string) error {
	addr, err := parseAddrPort(text)
	*a = AddrPort(addr)
	return err
}

// AddrPorts is a flag of addresses with ports, separated by commas or given
// several times.
type AddrPorts []netip.AddrPort

// String implements flag.Value.
func (a *AddrPorts) String() string {
	var texts []string
	for _, addr := range *a {
		texts = append(texts, addr.String())
	}
	return strings.Join(texts, ",")
}

// Set implements flag.Value.
func (a *AddrPorts) Set(text string) error {
	for part := range strings.SplitSeq(text, ",") {
		addr, err := netip.ParseAddrPort(part)
		if err != nil {
			return fmt.Errorf("%q is not an IP address and a port", part)
		}
		*a = append(*a, addr)
	}
	return nil
}

func parseAddrPort(text string) (netip.AddrPort, error) {
	full := text
	if strings.HasPrefix(text, ":") {
		full = "0.0.0.0" + text
	}
	addr, err := netip.ParseAddrPort(full)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%q is not an IP address and a port", text)
	}
	return addr, nil
}

// Ingress is one public address as relayd and transceiverd are told about it.
type Ingress struct {
	ID        uint16
	Addr      netip.AddrPort // where the relay listens
	Advertise netip.AddrPort // what answers say; zero means Addr
}

// Ingresses is a flag that may be given several times, each a plain address and
// port, or "id=1,addr=10.0.0.5:3478,advertise=203.0.113.10:3478" with any of its
// parts. An ingress without an id gets its position: 1, 2 and so on.
type Ingresses []Ingress

// String implements flag.Value.
func (in *Ingresses) String() string {
	var texts []string
	for _, i := range *in {
		text := fmt.Sprintf("id=%d", i.ID)
		if i.Addr.IsValid() {
			text += ",addr=" + i.Addr.String()
		}
		if i.Advertise.IsValid() {
			text += ",advertise=" + i.Advertise.String()
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, " ")
}

// Set implements flag.Value.
func (in *Ingresses) Set(text string) error {
	next := Ingress{ID: uint16(len(*in) + 1)}
	if !strings.Contains(text, "=") {
		text = "addr=" + text
	}
	for part := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(part, "=")
		var err error
		switch key {
		case "id":
			var id uint64
			if id, err = strconv.ParseUint(value, 10, 16); err != nil || id == 0 {
				return fmt.Errorf("%q is not an ingress id from 1 to 65535", value)
			}
			next.ID = uint16(id)
		case "addr":
			next.Addr, err = parseAddrPort(value)
		case "advertise":
			next.Advertise, err = parseAddrPort(value)
		default:
			return fmt.Errorf("%q is not one of id, addr and advertise", key)
		}
		if err != nil {
			return err
		}
	}
	if !next.Advertise.IsValid() && !next.Addr.IsValid() {
		return errors.New("neither addr nor advertise is given")
	}
	*in = append(*in, next)
	return nil
}

// Advertise is a flag of a public address, with or without a port.
type Advertise struct {
	addr netip.Addr
	port uint16
}

// String implements flag.Value.
func (a *Advertise) String() string {
	switch {
	case !a.addr.IsValid():
		return ""
	case a.port == 0:
		return a.addr.String()
	}
	return netip.AddrPortFrom(a.addr, a.port).String()
}

// Set implements flag.Value.
func (a *Advertise) Set(text string) error {
	if addr, err := netip.ParseAddr(text); err == nil {
		*a = Advertise{addr: addr}
		return nil
	}
	addr, err := netip.ParseAddrPort(text)
	if err != nil {
		return fmt.Errorf("%q is not an IP address, with or without a port", text)
	}
	*a = Advertise{addr.Addr(), addr.Port()}
	return nil
}

// For returns what to advertise for a listener, with its own port unless the flag
// has one. Zero, without the flag, stands for the listener's own address.
func (a Advertise) For(listen netip.AddrPort) netip.AddrPort {
	switch {
	case !a.addr.IsValid():
		return netip.AddrPort{}
	case a.port == 0:
		return netip.AddrPortFrom(a.addr, listen.Port())
	}
	return netip.AddrPortFrom(a.addr, a.port)
}
