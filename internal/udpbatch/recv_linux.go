package udpbatch

import (
	"golang.org/x/sys/unix"
)

// receiver is the receive memory of a Group.
//
// Each entry of a batch has a slot, the slots lie close together so that they
// stay in the processor's cache, and behind it a side area that the kernel
// fills only for what is longer. Slot and side area of one entry:
//
//	slots:  | … | slot i: slotSize bytes | …
//	sides:  | … | head: slotSize bytes | tail: MaxDatagram+1-slotSize bytes | …
//
// The kernel writes a long datagram to the slot and the tail; then the slot is
// copied into the head and the datagram is in one piece. Side areas are never
// touched until they are needed, so the system has no memory behind them.
type receiver struct {
	slotSize int
	slots    []byte
	sides    []byte
	hdrs     []mmsghdr
	iovs     []unix.Iovec
	names    []sockaddr
	ctrls    []ctrlBuf
	pkts     []Packet
	zones    zoneTable
}

// sideSize holds every UDP payload, and every GRO run, which is no longer.
const sideSize = MaxDatagram + 1

func newReceiver(batch, slotSize int) *receiver {
	r := &receiver{
		slotSize: slotSize,
		slots:    make([]byte, batch*slotSize),
		sides:    make([]byte, batch*sideSize),
		hdrs:     make([]mmsghdr, batch),
		iovs:     make([]unix.Iovec, 2*batch),
		names:    make([]sockaddr, batch),
		ctrls:    make([]ctrlBuf, batch),
		pkts:     make([]Packet, 0, batch),
	}
	for i := range r.hdrs {
		slot, tail := &r.iovs[2*i], &r.iovs[2*i+1]
		slot.Base = &r.slots[i*slotSize]
		slot.SetLen(slotSize)
		tail.Base = &r.sides[i*sideSize+slotSize]
		tail.SetLen(sideSize - slotSize)
		h := &r.hdrs[i].hdr
		h.Name = (*byte)(ptr(&r.names[i]))
		h.Iov = slot
		h.SetIovlen(2)
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
		p := Packet{
			From:      getSockaddr(&r.names[i], &r.zones),
			Local:     ctl.local,
			TOS:       ctl.tos,
			Truncated: hdr.Flags&unix.MSG_TRUNC != 0,
		}
		if p.Truncated {
			truncated++
		}
		data := r.data(i, int(r.hdrs[i].n))
		r.reset(i)
		size += len(data)
		for {
			p.Data = data
			if ctl.segment > 0 && len(data) > ctl.segment {
				p.Data = data[:ctl.segment:ctl.segment]
			}
			data = data[len(p.Data):]
			r.pkts = append(r.pkts, p)
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

// data returns the n bytes of an entry in one piece.
func (r *receiver) data(i, n int) []byte {
	slot := r.slots[i*r.slotSize:][:r.slotSize]
	if n <= len(slot) {
		return slot[:n:n]
	}
	side := r.sides[i*sideSize:][:sideSize]
	copy(side, slot)
	return side[:n:n]
}
