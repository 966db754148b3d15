package udpbatch

import (
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sharedWait waits for a server's epoll in Go's network poller, which takes an
// epoll descriptor like any other.
type sharedWait struct {
	s    *epollServer
	file *os.File // a duplicate of the epoll descriptor
	conn syscall.RawConn
	look func(fd uintptr) bool // made once, so that waiting does not allocate
	n    int                   // events that look found
}

func newSharedWait(s *epollServer) (*sharedWait, error) {
	fd, err := unix.FcntlInt(uintptr(s.epfd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // what makes it pollable for package os
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	w := &sharedWait{s: s, file: os.NewFile(uintptr(fd), "epoll")}
	if w.conn, err = w.file.SyscallConn(); err != nil {
		_ = w.file.Close()
		return nil, err
	}
	w.look = func(fd uintptr) bool {
		n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, fd, uintptr(unsafe.Pointer(&s.events[0])), uintptr(len(s.events)), 0, 0, 0)
		if errno != 0 {
			n = 0
		}
		w.n = int(n)
		return n > 0
	}
	return w, nil
}

// wait waits for events, at most d (<= 0: for ever), and returns their number.
func (w *sharedWait) wait(d time.Duration) int {
	w.n = 0
	var deadline time.Time
	if d > 0 {
		deadline = time.Now().Add(d)
	}
	if err := w.file.SetReadDeadline(deadline); err != nil {
		panic("udpbatch: the runtime cannot poll an epoll descriptor: " + err.Error())
	}
	if err := w.conn.Read(w.look); err != nil {
		return 0 // the deadline
	}
	return w.n
}
