package udpbatch

import (
	"errors"
	"sync/atomic"
	"syscall"
)

// ErrorCounts counts socket errors by what they mean for the caller.
type ErrorCounts struct {
	// Again counts EAGAIN: the socket's send buffer stayed full.
	Again uint64
	// NoBuffers counts ENOBUFS and ENOMEM: the device's queue or memory was full.
	NoBuffers uint64
	// Refused counts ECONNREFUSED and ECONNRESET: an ICMP answer to an earlier datagram.
	Refused uint64
	// MessageSize counts EMSGSIZE: larger than UDP or the path allows.
	MessageSize uint64
	// Permission counts EPERM and EACCES: a packet filter or a full connection-tracking table.
	Permission uint64
	// Unreachable counts EHOSTUNREACH, ENETUNREACH, EHOSTDOWN and ENETDOWN.
	Unreachable uint64
	// IO counts EIO.
	IO uint64
	// Invalid counts EINVAL, EAFNOSUPPORT, EDESTADDRREQ and EADDRNOTAVAIL: an address that
	// does not fit the socket.
	Invalid uint64
	// Closed counts messages written to a closed Conn.
	Closed uint64
	// Other counts the rest.
	Other uint64
}

// Total returns the sum.
func (e ErrorCounts) Total() uint64 {
	return e.Again + e.NoBuffers + e.Refused + e.MessageSize + e.Permission +
		e.Unreachable + e.IO + e.Invalid + e.Closed + e.Other
}

type errClass uint8

const (
	classAgain errClass = iota
	classNoBuffers
	classRefused
	classMessageSize
	classPermission
	classUnreachable
	classIO
	classInvalid
	classClosed
	classOther
	numClasses
)

// errCounters is the live form of ErrorCounts.
type errCounters [numClasses]atomic.Uint64

func (e *errCounters) add(c errClass) { e[c].Add(1) }

func (e *errCounters) snapshot() ErrorCounts {
	return ErrorCounts{
		Again:       e[classAgain].Load(),
		NoBuffers:   e[classNoBuffers].Load(),
		Refused:     e[classRefused].Load(),
		MessageSize: e[classMessageSize].Load(),
		Permission:  e[classPermission].Load(),
		Unreachable: e[classUnreachable].Load(),
		IO:          e[classIO].Load(),
		Invalid:     e[classInvalid].Load(),
		Closed:      e[classClosed].Load(),
		Other:       e[classOther].Load(),
	}
}

// classify finds the class of an error of the portable path.
func classify(err error) errClass {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return classOf(errno)
	}
	return classOther
}
