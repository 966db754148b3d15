package redisflow

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	LimitLog(slog.New(slog.DiscardHandler))
	goleak.VerifyTestMain(m)
}

func TestTheClientLogsOneLineAMinute(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(1_000_000, 0)
	l := &limitedLog{log: slog.New(slog.NewTextHandler(&out, nil)), now: func() time.Time { return now }}
	for range 600 {
		l.Printf(context.Background(), "dial %s", "failed")
		now = now.Add(100 * time.Millisecond)
	}
	if n := strings.Count(out.String(), "\n"); n != 1 {
		t.Errorf("%d lines in a minute", n)
	}
	now = now.Add(time.Second)
	l.Printf(context.Background(), "x")
	if !strings.Contains(out.String(), "lines_since=599") {
		t.Errorf("log: %s", out.String())
	}
}
