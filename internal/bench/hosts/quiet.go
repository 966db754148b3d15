package hosts

import (
	"log/slog"

	"github.com/pion/logging"
)

// Quiet drops Pion's log, which a benchmark would otherwise pay for.
type Quiet struct{}

func quietLog() *slog.Logger { return slog.New(slog.DiscardHandler) }

// NewLogger implements logging.LoggerFactory.
func (q Quiet) NewLogger(string) logging.LeveledLogger { return quietLogger{} }

type quietLogger struct{}

func (quietLogger) Trace(string)          {}
func (quietLogger) Tracef(string, ...any) {}
func (quietLogger) Debug(string)          {}
func (quietLogger) Debugf(string, ...any) {}
func (quietLogger) Info(string)           {}
func (quietLogger) Infof(string, ...any)  {}
func (quietLogger) Warn(string)           {}
func (quietLogger) Warnf(string, ...any)  {}
func (quietLogger) Error(string)          {}
func (quietLogger) Errorf(string, ...any) {}
