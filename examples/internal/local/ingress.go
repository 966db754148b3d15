package local

import (
	"context"
	"net"
	"net/netip"

	"github.com/usher-rtc/usher/examples/internal/cli"
	"github.com/usher-rtc/usher/relay"
)

// ingresses returns where the relay listens. Without an IP address that is the
// outbound interface first and the loopback one second: Firefox sends nothing to
// 127.0.0.1 when there is another interface, and a machine without a network has
// only that.
func ingresses(ctx context.Context, addr netip.AddrPort, advertise cli.Advertise) []relay.Ingress {
	if !addr.Addr().IsUnspecified() {
		return []relay.Ingress{{ID: 1, Listen: addr, Advertise: advertise.For(addr)}}
	}
	loopback := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), addr.Port())
	out, ok := outbound(ctx)
	if !ok {
		return []relay.Ingress{{ID: 2, Listen: loopback, Advertise: advertise.For(loopback)}}
	}
	outer := netip.AddrPortFrom(out, addr.Port())
	return []relay.Ingress{
		{ID: 1, Listen: outer, Advertise: advertise.For(outer)},
		{ID: 2, Listen: loopback},
	}
}

// outbound returns the address that packets to the Internet would have. Nothing
// is sent: connecting a UDP socket only asks the routing table.
func outbound(ctx context.Context) (netip.Addr, bool) {
	conn, err := new(net.Dialer).DialContext(ctx, "udp4", "192.0.2.1:9") // RFC 5737: nobody's address
	if err != nil {
		return netip.Addr{}, false
	}
	defer func() { _ = conn.Close() }()
	addr := conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
	return addr, !addr.IsLoopback()
}
