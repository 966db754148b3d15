package redisflow

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// logEvery is the least time between two lines of the client.
const logEvery = time.Minute

// LimitLog gives go-redis a logger that passes on at most one line a minute, at
// level Warn, with the number of lines since the last. By itself go-redis writes
// one to standard error for every connection that fails, which is many a second
// while a server is down. Its logger is one for the whole process and not to be
// changed while clients run, so this is for a program to call, once, before Open.
func LimitLog(l *slog.Logger) {
	redis.SetLogger(&limitedLog{log: l, now: time.Now})
}

type limitedLog struct {
	log *slog.Logger
	now func() time.Time

	mu      sync.Mutex
	at      time.Time
	skipped int
}

// Printf implements go-redis's internal interface for loggers.
func (l *limitedLog) Printf(ctx context.Context, format string, v ...any) {
	l.mu.Lock()
	now := l.now()
	if !l.at.IsZero() && now.Sub(l.at) < logEvery {
		l.skipped++
		l.mu.Unlock()
		return
	}
	skipped := l.skipped
	l.at, l.skipped = now, 0
	l.mu.Unlock()
	l.log.WarnContext(ctx, "redis client: "+fmt.Sprintf(format, v...), "lines_since", skipped)
}
