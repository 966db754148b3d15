//go:build !linux

package cli

import (
	"errors"
	"syscall"
)

func shareAddress(_, _ string, _ syscall.RawConn) error { return errors.ErrUnsupported }
