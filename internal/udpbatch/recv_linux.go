package udpbatch

import (
	"golang.org/x/sys/unix"
)

// receiver is the receive memory of a Group.
//
// Each entry of a batch has a slot that holds the largest datagram. Most are small:
// the system has no memory behind the pages of a slot that nothing was written to.
// One slot for all, and not a small one with an overflow, because the kernel takes a
// shorter way where a datagram has one buffer.
type receiver struct {
	slots []byte
	hdrs  []mmsghdr
	iovs  []unix.Iovec
	names []sockaddr
	ctrls []ctrlBuf
	pkts  []Packet
	zones zoneTable
}

const (
	// slotSize holds every UDP payload, and every GRO run, which is no longer.
	slotSize = MaxDatagram + 1
	// slotStride is the distance between slots. The beginnings of datagrams must not
	// be a power of two apart: they would have the same few lines of the processor's
	// cache to themselves.
	slotStride = slotSize + 3*64
)

func newReceiver(batch int) *receiver {
	r := &receiver{
		slots: make([]byte, batch*slotStride),
		hdrs:  make([]mmsghdr, batch),
		iovs:  make([]unix.Iovec, batch),
		names: make([]sockaddr, batch),
		ctrls: make([]ctrlBuf, batch),
		pkts:  make([]Packet, 0, batch),
	}
	for i := range r.hdrs {
		iov := &r.iovs[i]
		iov.Base = &r.slots[i*slotStride]
		iov.SetLen(slotSize)
		h := &r.hdrs[i].hdr
		h.Name = (*byte)(ptr(&r.names[i]))
		h.Iov = iov
		h.SetIovlen(1)
		h.Control = (*byte)(ptr(&r.ctrls[i]))
		r.reset(i)
	}
	return r
}

// reset undoes what the kernel wrote into a header.
func (r *receiver) reset(i int) {
	h := &r.hdrs[i].hdr
	h.Namelen = unix.SizeofSockaddrInet6
	h.SetControllen(ctrlSize)
	h.Flags = 0
}

// read fills entries from a socket. Errors that mean something were counted
// and are returned to slow the loop down if they last.
func (r *receiver) read(c *mmsgConn) (n int, errno unix.Errno) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	if c.fd < 0 {
		return 0, 0
	}
	n, errno = recvmmsg(c.fd, r.hdrs)
	c.n.reads.Add(1)
	switch errno {
	case 0:
		return n, 0
	case unix.EAGAIN, unix.EINTR:
		return 0, 0
	default:
		c.n.readErrs.add(classOf(errno))
		return 0, errno
	}
}

// deliver hands n entries to the handler, GRO runs cut into their datagrams.
func (r *receiver) deliver(c *mmsgConn, index, n int, h Handler) {
	var ctl control
	r.pkts = r.pkts[:0]
	datagrams, size, truncated := 0, 0, 0
	for i := range n {
		hdr := &r.hdrs[i].hdr
		parseControl(r.ctrls[i].bytes()[:hdr.Controllen], &ctl)
		if ctl.hasDrop {
			c.drops.Store(ctl.drops)
		}
		from := getSockaddr(&r.names[i], &r.zones)
		cut := hdr.Flags&unix.MSG_TRUNC != 0
		if cut {
			truncated++
		}
		data := r.slots[i*slotStride:][:r.hdrs[i].n]
		data = data[:len(data):len(data)]
		r.reset(i)
		size += len(data)
		for {
			d := data
			if ctl.segment > 0 && len(data) > ctl.segment {
				d = data[:ctl.segment:ctl.segment]
			}
			data = data[len(d):]
			// Written where it stays: a copy would have to wait for its fields.
			r.pkts = r.pkts[:len(r.pkts)+1]
			p := &r.pkts[len(r.pkts)-1]
			p.Data, p.From, p.Local, p.TOS, p.Truncated = d, from, ctl.local, ctl.tos, cut
			datagrams++
			if len(r.pkts) == cap(r.pkts) {
				h.HandleBatch(index, r.pkts)
				r.pkts = r.pkts[:0]
			}
			if len(data) == 0 {
				break
			}
		}
	}
	c.n.received.Add(uint64(datagrams))
	c.n.receivedBytes.Add(uint64(size))
	if truncated > 0 {
		c.n.truncated.Add(uint64(truncated))
	}
	if len(r.pkts) > 0 {
		h.HandleBatch(index, r.pkts)
	}
}
