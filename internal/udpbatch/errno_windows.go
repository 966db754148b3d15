package udpbatch

import (
	"syscall"

	"golang.org/x/sys/windows"
)

// classOf reads the Winsock numbers: the E… constants of package syscall are
// invented on Windows and no socket returns them.
func classOf(e syscall.Errno) errClass {
	switch e {
	case windows.WSAEWOULDBLOCK:
		return classAgain
	case windows.WSAENOBUFS:
		return classNoBuffers
	case windows.WSAECONNREFUSED, windows.WSAECONNRESET, windows.WSAENETRESET:
		return classRefused
	case windows.WSAEMSGSIZE:
		return classMessageSize
	case windows.WSAEACCES:
		return classPermission
	case windows.WSAEHOSTUNREACH, windows.WSAENETUNREACH, windows.WSAEHOSTDOWN, windows.WSAENETDOWN:
		return classUnreachable
	case windows.WSAEINVAL, windows.WSAEAFNOSUPPORT, windows.WSAEDESTADDRREQ, windows.WSAEADDRNOTAVAIL:
		return classInvalid
	default:
		return classOther
	}
}
