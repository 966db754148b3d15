//go:build !linux

package relay

import (
	"errors"
	"net"
	"os"
)

// Config.Handover is refused here, so the rest is never called.
const handoverSupported = false

const handoverNetwork = "unix"

func sendRights(*net.UnixConn, []byte, []*os.File) error { return errors.ErrUnsupported }

func receiveRights(*net.UnixConn, []byte) (int, []*os.File, error) {
	return 0, nil, errors.ErrUnsupported
}

func checkPeer(*net.UnixConn) error { return errors.ErrUnsupported }

func notListening(error) bool { return false }

func socketID(*os.File) (uint64, error) { return 0, errors.ErrUnsupported }

func newToken() (*os.File, error) { return nil, errors.ErrUnsupported }

func takeToken(*os.File) bool { return false }
