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

func TestCallsThatNobodyBringsAreSaidOnceAMinute(t *testing.T) {
	var lines bytes.Buffer
	s := unheard{log: slog.New(slog.NewTextHandler(&lines, nil)), limit: 20 * time.Second}
	now, ended, heard := time.Now(), uint64(0), uint64(0)
	for _, step := range []struct {
		after        time.Duration
		ended, heard uint64
		want         string // of the line, empty for none
	}{
		{0, 0, 0, ""},
		{time.Second, 0, 1, ""}, // somebody gets through
		{time.Second, 1, 0, ""},
		{17 * time.Second, 0, 0, ""},
		{time.Second, 0, 1, ""}, // and again: that one may just have stayed away
		{19 * time.Second, 2, 0, ""},
		{time.Second, 0, 0, "count=2 hint="},
		{time.Second, 3, 0, ""},
		{time.Minute, 0, 0, "count=3 hint="},
		{time.Minute, 0, 0, ""},
	} {
		now = now.Add(step.after)
		ended, heard = ended+step.ended, heard+step.heard
		lines.Reset()
		s.look(now, ended, heard)
		if got := lines.String(); step.want == "" && got != "" || !strings.Contains(got, step.want) || strings.Count(got, "\n") > 1 {
			t.Errorf("%+v: %q", step, got)
		}
	}
}
