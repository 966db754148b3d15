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
	// maxRefused is how many messages in a row the kernel may refuse to
	// segment with EINVAL before GSO is off for good. EINVAL can be about one
	// path, when a segment is larger than its MTU; EIO is about the device.
	maxRefused = 16
	// writeWait is the longest wait in milliseconds for room in the send buffer, once
	// for each WriteBatch.
	writeWait = 1
	// maxInterrupted bounds the retries after EINTR, which MSG_DONTWAIT should never give.
	maxInterrupted = 8
)

// cursor is a place in the messages of a WriteBatch: the datagram that starts
// at byte off of buffer buf.
type cursor struct{ msg, buf, off int }

// entry is a datagram, or a run for the kernel to cut, that is ready to go.
type entry struct {
	at       cursor
	segments int // datagrams the kernel will make of it
	tos      bool
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
	retried     cursor // the datagram that was sent again after an error of an earlier one
	plain       int    // the message not to be segmented by the kernel, or -1
	unmarked    int    // the message to go without TOS, or -1

	refused int // messages in a row that were refused with EINVAL by GSO
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
	w.retried, w.plain, w.unmarked = cursor{msg: -1}, -1, -1
	for at := (cursor{}); at.msg < len(ms); {
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

// fill prepares entries from a place on and returns how many and the place behind them.
func (c *mmsgConn) fill(ms []Message, at cursor) (n int, _ cursor) {
	w := &c.out
	iovs := 0
	for n < writeChunk && at.msg < len(ms) {
		m := &ms[at.msg]
		next := cursor{msg: at.msg + 1}
		if c.fd < 0 {
			m.Err = net.ErrClosed
			c.n.writeErrs.add(classClosed)
			at = next
			continue
		}
		if _, errno := putSockaddr(&w.names[n], c.family, m.To); errno != 0 {
			c.fail(m, errno)
			at = next
			continue
		}
		segments, limit := c.plan(m, at.msg)
		used, after, fits := gather(w.iovs[iovs:], m.Buffers, at, limit)
		if !fits {
			if iovs > 0 {
				return n, at // in the next chunk
			}
			c.fail(m, unix.EMSGSIZE)
			at = next
			continue
		}
		e := entry{at: at, segments: segments}
		h := &w.hdrs[n].hdr
		h.Iov = nil
		if used > 0 {
			h.Iov = &w.iovs[iovs]
		}
		h.SetIovlen(used)
		if errno := c.putControl(h, &w.ctrls[n], m, &e); errno != 0 {
			c.fail(m, errno)
			at = next
			continue
		}
		w.entries[n] = e
		iovs += used
		n++
		at = after
	}
	return n, at
}

// plan says how a message goes: as segments cut by the kernel, or as
// datagrams of at most limit bytes (0: no limit) cut here.
func (c *mmsgConn) plan(m *Message, index int) (segments, limit int) {
	if m.Segment <= 0 {
		return 1, 0
	}
	total := 0
	for _, b := range m.Buffers {
		total += len(b)
	}
	segments = (total + m.Segment - 1) / m.Segment
	if segments <= 1 {
		return 1, 0
	}
	if Offload(c.gso.Load()) != OffloadOn || index == c.out.plain || segments > maxSegments || total > maxSegmented {
		return 1, m.Segment
	}
	return segments, 0
}

// gather sets iovecs for the datagram that starts at a place, up to limit
// bytes (0: the rest of the message), and returns how many and the place
// behind it. It reports false if there are not enough iovecs.
func gather(iovs []unix.Iovec, bufs [][]byte, at cursor, limit int) (used int, after cursor, fits bool) {
	size := 0
	for at.buf < len(bufs) {
		b := bufs[at.buf][at.off:]
		if limit > 0 && size == limit {
			if len(b) > 0 {
				return used, at, true
			}
		} else if len(b) > 0 {
			if limit > 0 && len(b) > limit-size {
				b = b[:limit-size]
			}
			if used == len(iovs) {
				return 0, at, false
			}
			iovs[used].Base = &b[0]
			iovs[used].SetLen(len(b))
			used++
			size += len(b)
			at.off += len(b)
			if at.off < len(bufs[at.buf]) {
				return used, at, true
			}
		}
		at.buf, at.off = at.buf+1, 0
	}
	return used, cursor{msg: at.msg + 1}, true
}

// putControl writes the control messages that an entry needs.
func (c *mmsgConn) putControl(h *unix.Msghdr, buf *ctrlBuf, m *Message, e *entry) unix.Errno {
	cw := controlWriter{b: buf.bytes()}
	v4 := c.family == unix.AF_INET || m.To.Addr().Is4() || m.To.Addr().Is4In6()
	if c.wildcard && m.Local.IsValid() {
		local := m.Local.Unmap()
		if local.Is4() != v4 {
			return unix.EAFNOSUPPORT
		}
		cw.addLocal(local)
	}
	if m.TOS != 0 && c.out.unmarked != e.at.msg {
		cw.addTOS(m.TOS, v4)
		e.tos = true
	}
	if e.segments > 1 {
		cw.addSegment(uint16(m.Segment))
	}
	h.Control = nil
	if cw.n > 0 {
		h.Control = &cw.b[0]
	}
	h.SetControllen(cw.n)
	return 0
}

// flush sends n entries and returns the place to go on from: after, unless a
// message has to be prepared in another way.
//
// Each turn sends something, gives an entry up, or uses one of the bounded
// retries, so it ends.
func (c *mmsgConn) flush(ms []Message, n int, after cursor) cursor {
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
		m := &ms[e.at.msg]
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
			for i := e.at.msg; i < len(ms); i++ {
				if ms[i].Err == nil {
					c.fail(&ms[i], errno)
				}
			}
			return cursor{msg: len(ms)}
		case unix.ENOBUFS:
			if c.waitWritable() {
				continue
			}
		case unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EHOSTDOWN, unix.EPROTO, unix.ENOPROTOOPT:
			if w.retried != e.at {
				// Reporting an ICMP error cleared it.
				w.retried = e.at
				continue
			}
		case unix.EIO, unix.EINVAL, unix.EMSGSIZE:
			if e.segments > 1 {
				c.refuseSegments(errno)
				w.plain = e.at.msg
				return e.at
			}
			if e.tos && errno == unix.EINVAL {
				w.unmarked = e.at.msg
				return e.at
			}
		}
		c.fail(m, errno)
		k++
	}
	return after
}

// sent counts entries that went.
func (c *mmsgConn) sent(es []entry) {
	total := 0
	for i := range es {
		total += es[i].segments
		if es[i].at.msg == c.out.unmarked {
			c.n.tosRefused.Add(1)
		}
	}
	if total > len(es) {
		c.out.refused = 0
	}
	c.n.sent.Add(uint64(total))
}

func (c *mmsgConn) refuseSegments(errno unix.Errno) {
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
