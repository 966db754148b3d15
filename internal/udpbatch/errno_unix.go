//go:build !windows

package udpbatch

import "syscall"

func classOf(e syscall.Errno) errClass {
	switch e {
	case syscall.EAGAIN:
		return classAgain
	case syscall.ENOBUFS, syscall.ENOMEM:
		return classNoBuffers
	case syscall.ECONNREFUSED, syscall.ECONNRESET:
		return classRefused
	case syscall.EMSGSIZE:
		return classMessageSize
	case syscall.EPERM, syscall.EACCES:
		return classPermission
	case syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EHOSTDOWN, syscall.ENETDOWN:
		return classUnreachable
	case syscall.EIO:
		return classIO
	case syscall.EINVAL, syscall.EAFNOSUPPORT, syscall.EDESTADDRREQ, syscall.EADDRNOTAVAIL:
		return classInvalid
	default:
		return classOther
	}
}
