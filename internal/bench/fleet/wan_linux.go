package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// The delays between the regions, one way. They are far enough apart that the
// difference stands out from what a busy machine adds.
const (
	// backbone is the delay of the fleet's own traffic.
	backbone = 20 * time.Millisecond
	// internet is that of what clients send to the other region, and get from it.
	internet = 35 * time.Millisecond
)

// inFlight is how many packets may be on their way in one direction at one of the
// delays: 35 ms of ten times what the calls send.
const inFlight = 1 << 13

// wan carries IP packets between two regions' routers. Each has a TUN device that
// the routes to the other region lead to.
type wan struct {
	ends    [2]*os.File
	work    sync.WaitGroup
	dropped atomic.Uint64 // packets that found a queue full
}

type parcel struct {
	due time.Time
	b   []byte
}

// wanDevice is the name of the TUN device in each router.
const wanDevice = "wan"

// newWAN makes the devices in two routers. Close it.
func newWAN(routers [2]*node) (*wan, error) {
	w := new(wan)
	for i, r := range routers {
		if err := r.do(func() (err error) { w.ends[i], err = openTUN(wanDevice); return err }); err != nil {
			return nil, errors.Join(err, w.close())
		}
	}
	for i := range w.ends {
		w.work.Go(func() { w.carry(w.ends[i], w.ends[1-i]) })
	}
	return w, nil
}

// openTUN makes a TUN device in the namespace of the calling thread.
func openTUN(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("TUN device %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil // non-blocking, so that Close ends a read
}

// carry reads packets from one end and writes them to the other when they are due.
// Those with the same delay stay in order.
func (w *wan) carry(from, to *os.File) {
	lanes := map[time.Duration]chan parcel{backbone: make(chan parcel, inFlight), internet: make(chan parcel, inFlight)}
	for _, lane := range lanes {
		defer close(lane)
		w.work.Go(func() {
			for p := range lane {
				time.Sleep(time.Until(p.due))
				_, _ = to.Write(p.b) // a router that is gone is the end of the fleet
			}
		})
	}
	for buf := make([]byte, 1<<16); ; {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		d := delayOf(buf[:n])
		select {
		case lanes[d] <- parcel{time.Now().Add(d), append([]byte(nil), buf[:n]...)}:
		default:
			w.dropped.Add(1)
		}
	}
}

// delayOf returns how long an IP packet is on its way: what has a client at one
// end crosses the internet.
func delayOf(b []byte) time.Duration {
	if len(b) < 20 || b[0]>>4 != 4 {
		return internet // IPv6 neighbour discovery, which nobody answers
	}
	if isClient(netip.AddrFrom4([4]byte(b[12:16]))) || isClient(netip.AddrFrom4([4]byte(b[16:20]))) {
		return internet
	}
	return backbone
}

func (w *wan) close() error {
	var errs []error
	for _, f := range w.ends {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	w.work.Wait()
	return errors.Join(errs...)
}
