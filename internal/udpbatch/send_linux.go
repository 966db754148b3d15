package udpbatch

import (
	"net"

	"golang.org/x/sys/unix"
)

const (
	// writeChunk is how many datagrams one sendmmsg takes; more gains nothing.
	writeChunk = 64
	// writeIovecs is the number of buffers that one sendmmsg, and so one
	// datagram, can have. It is also the kernel's limit for a datagram, UIO_MAXIOV.
	writeIovecs = 1024
	// maxSegments is the kernel's limit of UDP_SEGMENT (UDP_MAX_SEGMENTS; 128 since Linux 6.5).
	maxSegments = 64
	// maxSegmented keeps a segmented message below the 65,535 bytes of an IP
	// packet, whatever its header.
	maxSegmented = 65000
	// maxRefused is how many runs in a row the kernel may refuse to segment
	// with EINVAL before GSO is off for good. EINVAL can be about one
	// path, when a segment is larger than its MTU; EIO is about the device.
	maxRefused = 16
	// maxJoined is the longest datagram that is put into a run: it fits into an
	// Ethernet frame by IPv6, and longer ones may be what a path refuses to segment.
	maxJoined = 1452
	// writeWait is the longest wait in milliseconds for room in the send buffer, once
	// for each WriteBatch.
	writeWait = 1
	// maxInterrupted bounds the retries after EINTR, which MSG_DONTWAIT should never give.
	maxInterrupted = 8
)

// entry is what one header of a sendmmsg sends: a message, or a run of them.
type entry struct {
	first, count int // messages
	tos          bool
}

// writer is the scratch memory of WriteBatch.
type writer struct {
	hdrs    [writeChunk]mmsghdr
	entries [writeChunk]entry
	names   [writeChunk]sockaddr
	ctrls   [writeChunk]ctrlBuf
	iovs    [writeIovecs]unix.Iovec
	poll    [1]unix.PollFd

	// send is sendmmsg; tests put the errors of other machines here.
	send func(fd int, hdrs []mmsghdr) (int, unix.Errno)

	// Progress of the current WriteBatch.
	waited      bool
	interrupted int
	retried     int // the message that was sent again after an error of an earlier one
	single      int // messages before this one go one by one
	unmarked    int // the message to go without TOS, or -1

	refused int // runs in a row that were refused with EINVAL
}

func (w *writer) init(family int) {
	w.send = sendmmsg
	size := uint32(unix.SizeofSockaddrInet4)
	if family == unix.AF_INET6 {
		size = unix.SizeofSockaddrInet6
	}
	for i := range w.hdrs {
		h := &w.hdrs[i].hdr
		h.Name = (*byte)(ptr(&w.names[i]))
		h.Namelen = size
	}
}

func (c *mmsgConn) writeBatch(ms []Message) (sent int) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	for i := range ms {
		ms[i].Err = nil
	}
	w := &c.out
	w.waited, w.interrupted = false, 0
	w.retried, w.single, w.unmarked = -1, 0, -1
	for at := 0; at < len(ms); {
		var n int
		n, at = c.fill(ms, at)
		if n > 0 {
			at = c.flush(ms, n, at)
		}
	}
	for i := range ms {
		if ms[i].Err == nil {
			sent++
		}
	}
	return sent
}

// fail charges an error to a message.
func (c *mmsgConn) fail(m *Message, errno unix.Errno) {
	if m.Err == nil {
		m.Err = errno // no allocation: numbers below 256 have static copies
	}
	c.n.writeErrs.add(classOf(errno))
}

// fill prepares entries from a message on and returns how many and the message
// behind them.
func (c *mmsgConn) fill(ms []Message, at int) (n, _ int) {
	w := &c.out
	iovs := 0
	for n < writeChunk && at < len(ms) {
		m := &ms[at]
		if c.fd < 0 {
			m.Err = net.ErrClosed
			c.n.writeErrs.add(classClosed)
			at++
			continue
		}
		if _, errno := putSockaddr(&w.names[n], c.family, m.To); errno != 0 {
			c.fail(m, errno)
			at++
			continue
		}
		used, size, fits := gather(w.iovs[iovs:], m.Buffers)
		if !fits {
			if iovs > 0 {
				return n, at // in the next chunk
			}
			c.fail(m, unix.EMSGSIZE)
			at++
			continue
		}
		e := entry{first: at, count: 1}
		if at >= w.single {
			used += c.join(ms, &e, w.iovs[iovs+used:], size)
		}
		h := &w.hdrs[n].hdr
		h.Iov = nil
		if used > 0 {
			h.Iov = &w.iovs[iovs]
		}
		h.SetIovlen(used)
		if errno := c.putControl(h, &w.ctrls[n], m, &e, size); errno != 0 {
			c.fail(m, errno)
			at++
			continue
		}
		w.entries[n] = e
		iovs += used
		at += e.count
		n++
	}
	return n, at
}

// gather sets iovecs for a message and returns how many and its size. It
// reports false if there are not enough.
func gather(iovs []unix.Iovec, bufs [][]byte) (used, size int, fits bool) {
	for _, b := range bufs {
		if len(b) == 0 {
			continue
		}
		if used == len(iovs) {
			return 0, 0, false
		}
		iovs[used].Base = &b[0]
		iovs[used].SetLen(len(b))
		used++
		size += len(b)
	}
	return used, size, true
}

// join adds to an entry of one message those that follow to the same place and
// are of the same size, the last one shorter if need be: the kernel takes the
// run at once and cuts it. It returns how many more iovecs are used.
func (c *mmsgConn) join(ms []Message, e *entry, iovs []unix.Iovec, size int) (used int) {
	if size == 0 || size > maxJoined || Offload(c.gso.Load()) != OffloadOn {
		return 0
	}
	m := &ms[e.first]
	total, whole := size, true
	for i := e.first + 1; i < len(ms); i++ {
		o := &ms[i]
		if !whole || e.count == maxSegments || o.To != m.To || o.TOS != m.TOS || o.Local != m.Local {
			break
		}
		more, n, fits := gather(iovs[used:], o.Buffers)
		if !fits || n == 0 || n > size || total+n > maxSegmented {
			break
		}
		used, total, whole = used+more, total+n, n == size
		e.count++
	}
	return used
}

// putControl writes the control messages that an entry needs. size is that of
// its first message.
func (c *mmsgConn) putControl(h *unix.Msghdr, buf *ctrlBuf, m *Message, e *entry, size int) unix.Errno {
	cw := controlWriter{b: buf.bytes()}
	v4 := c.family == unix.AF_INET || m.To.Addr().Is4() || m.To.Addr().Is4In6()
	if c.wildcard && m.Local.IsValid() {
		local := m.Local.Unmap()
		if local.Is4() != v4 {
			return unix.EAFNOSUPPORT
		}
		cw.addLocal(local)
	}
	if m.TOS != 0 && c.out.unmarked != e.first {
		cw.addTOS(m.TOS, v4)
		e.tos = true
	}
	if e.count > 1 {
		cw.addSegment(uint16(size))
	}
	h.Control = nil
	if cw.n > 0 {
		h.Control = &cw.b[0]
	}
	h.SetControllen(cw.n)
	return 0
}

// flush sends n entries and returns the message to go on from: after, unless
// one has to be prepared in another way.
//
// Each turn sends something, gives an entry up, or uses one of the bounded
// retries, so it ends.
func (c *mmsgConn) flush(ms []Message, n, after int) int {
	w := &c.out
	for k := 0; k < n; {
		r, errno := w.send(c.fd, w.hdrs[k:n])
		c.n.writes.Add(1)
		if errno == 0 && r > 0 {
			c.sent(w.entries[k : k+r])
			k += r
			continue
		}
		if errno == 0 {
			errno = unix.EAGAIN // nothing sent and no error: no kernel does that
		}
		e := &w.entries[k]
		switch errno {
		case unix.EINTR:
			if w.interrupted++; w.interrupted <= maxInterrupted {
				continue
			}
		case unix.EAGAIN:
			if c.waitWritable() {
				continue
			}
			// The buffer is full and stays full: all the rest is lost.
			for i := e.first; i < len(ms); i++ {
				if ms[i].Err == nil {
					c.fail(&ms[i], errno)
				}
			}
			return len(ms)
		case unix.ENOBUFS:
			if c.waitWritable() {
				continue
			}
		case unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EHOSTDOWN, unix.EPROTO, unix.ENOPROTOOPT:
			if w.retried != e.first {
				// Reporting an ICMP error cleared it.
				w.retried = e.first
				continue
			}
		case unix.EIO, unix.EINVAL, unix.EMSGSIZE:
			if e.count > 1 {
				c.refuseRun(errno)
				w.single = e.first + e.count
				return e.first
			}
			if e.tos && errno == unix.EINVAL {
				w.unmarked = e.first
				return e.first
			}
		}
		for i := range e.count {
			c.fail(&ms[e.first+i], errno)
		}
		k++
	}
	return after
}

// sent counts entries that went.
func (c *mmsgConn) sent(es []entry) {
	total := 0
	for i := range es {
		total += es[i].count
		if es[i].first == c.out.unmarked {
			c.n.tosRefused.Add(1)
		}
	}
	if total > len(es) {
		c.out.refused = 0
	}
	c.n.sent.Add(uint64(total))
}

func (c *mmsgConn) refuseRun(errno unix.Errno) {
	c.n.gsoRefused.Add(1)
	c.out.refused++
	if errno == unix.EIO || c.out.refused >= maxRefused {
		c.gso.Store(uint32(OffloadFailed))
	}
}

// waitWritable waits once a batch for room in the send buffer, and says
// whether it has not done so before.
func (c *mmsgConn) waitWritable() bool {
	w := &c.out
	if w.waited {
		return false
	}
	w.waited = true
	w.poll[0] = unix.PollFd{Fd: int32(c.fd), Events: unix.POLLOUT}
	_, _ = unix.Poll(w.poll[:], writeWait) // the next send tells
	return true
}
