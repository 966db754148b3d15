package transceiver

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestWrongConfigurationIsSaidOnceAMinute(t *testing.T) {
	var lines bytes.Buffer
	w := warner{log: slog.New(slog.NewTextHandler(&lines, nil))}
	var drops [dropCount]uint64
	now := time.Now()
	for _, step := range []struct {
		after  time.Duration
		reason DropReason
		count  uint64
		want   string // of the line, empty for none
	}{
		{0, DropTrunk, 0, ""},
		{time.Second, DropTrunk, 3, "reason=trunk count=3 hint="},
		{time.Second, DropTrunk, 4, ""},
		{time.Second, DropRelayRefused, 1, "reason=relay_refused count=1 hint="},
		{time.Second, DropUnknownUfrag, 9, ""}, // strangers guess
		{time.Minute, DropTrunk, 5, "reason=trunk count=9 hint="},
		{time.Minute, DropTrunk, 0, ""},
	} {
		now = now.Add(step.after)
		drops[step.reason] += step.count
		lines.Reset()
		w.look(now, func(r DropReason) uint64 { return drops[r] })
		if got := lines.String(); step.want == "" && got != "" || !strings.Contains(got, step.want) || strings.Count(got, "\n") > 1 {
			t.Errorf("%+v: %q", step, got)
		}
	}
}
