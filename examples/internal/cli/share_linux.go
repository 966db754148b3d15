package cli

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// shareAddress lets several processes of one user listen at an address.
func shareAddress(_, _ string, conn syscall.RawConn) error {
	var errOption error
	if err := conn.Control(func(fd uintptr) {
		errOption = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	}); err != nil {
		return err
	}
	return os.NewSyscallError("setsockopt SO_REUSEPORT", errOption)
}
