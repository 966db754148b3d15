package relay

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

const handoverSupported = true

// handoverNetwork is a socket that keeps the bounds of messages.
const handoverNetwork = "unixpacket"

// sendRights sends a message with descriptors (SCM_RIGHTS, unix(7)).
func sendRights(conn *net.UnixConn, message []byte, files []*os.File) error {
	fds := make([]int, 0, len(files))
	for _, f := range files {
		// Not f.Fd, which makes the socket block, in all processes that have it.
		raw, err := f.SyscallConn()
		if err != nil {
			return err
		}
		if err := raw.Control(func(fd uintptr) { fds = append(fds, int(fd)) }); err != nil {
			return err
		}
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	_, _, err := conn.WriteMsgUnix(message, rights, nil)
	runtime.KeepAlive(files)
	return err
}

// receiveRights receives a message with up to maxRights descriptors. They are
// closed on exec.
func receiveRights(conn *net.UnixConn, b []byte) (n int, files []*os.File, err error) {
	rights := make([]byte, unix.CmsgSpace(4*maxRights))
	n, oobn, flags, _, err := conn.ReadMsgUnix(b, rights)
	if err != nil {
		return 0, nil, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:oobn])
	if err != nil {
		return 0, nil, err
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // of another kind, not asked for
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "inherited"))
		}
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return n, files, errMalformed
	}
	return n, files, nil
}

// checkPeer refuses processes of other users: whoever gets the sockets gets the
// clients, and whoever offers some could be anybody. The permissions of the path
// say the same; they can be changed by accident.
func checkPeer(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var errCred error
	if err := raw.Control(func(fd uintptr) {
		cred, errCred = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if errCred != nil {
		return os.NewSyscallError("getsockopt SO_PEERCRED", errCred)
	}
	return mayHandOver(int(cred.Uid), os.Geteuid())
}

// mayHandOver reports whether a process of one user may hand over to or take over
// from one of the other's.
func mayHandOver(peer, own int) error {
	if peer == own || peer == 0 {
		return nil
	}
	return fmt.Errorf("the process at the other end belongs to user %d, this one to %d", peer, own)
}

// notListening reports whether an error of connecting means that nobody is there:
// no socket, or one that a dead process left behind.
func notListening(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED)
}

// socketID tells whether two descriptors are the same socket (SO_COOKIE, Linux 4.12).
func socketID(f *os.File) (uint64, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var id uint64
	var errID error
	if err := raw.Control(func(fd uintptr) {
		id, errID = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE)
	}); err != nil {
		return 0, err
	}
	return id, os.NewSyscallError("getsockopt SO_COOKIE", errID)
}

// newToken makes a token, see handoverVersion: an event counter that is 1 until
// somebody reads it (eventfd(2)).
func newToken() (*os.File, error) {
	fd, err := unix.Eventfd(1, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	return os.NewFile(uintptr(fd), "token"), nil
}

// takeToken reports whether this process is the one that gets a token. It does not
// wait.
func takeToken(token *os.File) bool {
	raw, err := token.SyscallConn()
	if err != nil {
		return false
	}
	n := 0
	// Not token.Read, which would wait for somebody to put it back. This one does not
	// sleep, so no signal interrupts it.
	if err := raw.Control(func(fd uintptr) {
		var b [8]byte
		n, err = unix.Read(int(fd), b[:])
	}); err != nil {
		return false
	}
	return err == nil && n == 8
}
