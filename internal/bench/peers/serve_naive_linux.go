package peers

import (
	"fmt"
	"net"
	"net/netip"
	"time"
)

// naiveFlow is what the naive forwarder keeps per client.
type naiveFlow struct {
	upstream netip.AddrPort
	packets  uint64
	last     time.Time
}

// serveNaive is the forwarder that one writes first: one socket, one
// goroutine, a map, and a system call for each packet in and out. It never
// returns but with an error.
func serveNaive(upstream netip.AddrPort) error {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetReadBuffer(4 << 20); err != nil {
		return err
	}
	fmt.Println(conn.LocalAddr())
	flows := make(map[netip.AddrPort]*naiveFlow)
	buf := make([]byte, 2048)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf[plainLen:])
		if err != nil {
			return err
		}
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		b := buf[plainLen : plainLen+n]
		if from == upstream {
			client, payload, ok := parsePlain(b)
			if _, known := flows[client]; ok && known {
				_, _ = conn.WriteToUDPAddrPort(payload, client) // a refused packet is lost, as on any network
			}
			continue
		}
		f := flows[from]
		if f == nil {
			f = &naiveFlow{upstream: upstream}
			flows[from] = f
		}
		f.packets++
		f.last = time.Now()
		putPlain(buf, from, n)
		_, _ = conn.WriteToUDPAddrPort(buf[:plainLen+n], f.upstream)
	}
}
