package bridge

import (
	"errors"
	"fmt"
	"net"

	"github.com/usher-rtc/usher/internal/config"
)

// ConfigError is what Attach and NewHandler return for a bad configuration.
// Find it with errors.As.
type ConfigError = config.Error

var (
	// ErrVersion is what a side finds that does not speak Subprotocol.
	ErrVersion = errors.New("bridge: the peer does not speak " + Subprotocol)
	// ErrProtocol is wrapped by what ends a connection whose peer broke the
	// rules of docs/bridge.md.
	ErrProtocol = errors.New("bridge: protocol violation")
	// ErrSilent is what ends a connection whose peer answers no ping, because
	// it does not read or is gone.
	ErrSilent = errors.New("bridge: not reading: no pong came back")
	// ErrGivenUp is wrapped by a Bridge's Err when no service could be reached
	// for Config.GiveUpAfter.
	ErrGivenUp = errors.New("bridge: no service could be reached")
	// ErrSuperseded is what Utterance.Write returns once Call.Say has begun
	// another utterance.
	ErrSuperseded = errors.New("bridge: another utterance has begun")
	// ErrRestart is what a Call returns once Service.Shutdown has ended it, and what
	// a service returns that is about to stop: another instance is to have the
	// session. The transceiver connects again at once.
	ErrRestart = errors.New("bridge: service restart")
	// ErrLost is what a Call returns when its connection is gone without a
	// word. The session may come back on another one, as a new Call.
	ErrLost = fmt.Errorf("bridge: connection lost: %w", net.ErrClosed)
)

// EndError is what a Call returns once the session is over, and a Bridge's Err
// when the service ended it.
type EndError struct {
	// Reason is what the other side said.
	Reason string
}

// Error implements the error interface.
func (e *EndError) Error() string { return "bridge: session ended: " + e.Reason }

// Is makes errors.Is(err, net.ErrClosed) true.
func (e *EndError) Is(target error) bool { return target == net.ErrClosed }

// violation is an ErrProtocol with what was wrong.
func violation(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}
