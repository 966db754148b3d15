package transceiver

import (
	"errors"
	"fmt"
	"net"
)

var (
	// ErrHostClosed is what a closed Host returns. It wraps net.ErrClosed.
	ErrHostClosed = fmt.Errorf("transceiver: host closed: %w", net.ErrClosed)
	// ErrDraining is what Accept returns once Shutdown was called.
	ErrDraining = errors.New("transceiver: host is draining")
	// ErrFull is what Accept returns while Config.MaxSessions are alive.
	ErrFull = errors.New("transceiver: host is full")
	// ErrSessionClosed is what a Session that has ended returns. It wraps net.ErrClosed.
	ErrSessionClosed = fmt.Errorf("transceiver: session closed: %w", net.ErrClosed)
	// ErrPanic is wrapped by what Accept and Renegotiate return when code of
	// the application panicked.
	ErrPanic = errors.New("transceiver: panic")
)

// EndError is a Session's Err: why it ended.
type EndError struct {
	// Reason is the kind of end.
	Reason Reason
	// Cause is more about it, or nil.
	Cause error
}

// Error implements the error interface.
func (e *EndError) Error() string {
	if e.Cause == nil {
		return "transceiver: session ended: " + e.Reason.String()
	}
	return "transceiver: session ended: " + e.Reason.String() + ": " + e.Cause.Error()
}

// Unwrap returns the cause.
func (e *EndError) Unwrap() error { return e.Cause }

// Is makes errors.Is(err, ErrSessionClosed) and errors.Is(err, net.ErrClosed) true.
func (e *EndError) Is(target error) bool {
	return target == ErrSessionClosed || target == net.ErrClosed
}
