package main

import (
	"strings"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/bench/gaps"
	"github.com/usher-rtc/usher/internal/bench/gaps/gapstest"
)

const ms = int64(time.Millisecond)

// TestVerdicts checks that each requirement can fail, and the line that is printed.
func TestVerdicts(t *testing.T) {
	w := gaps.Spell{From: 1000 * ms, To: 3000 * ms, DownFrom: 1000 * ms, DownTo: 1100 * ms}
	whole := &gaps.Stream{Sent: gapstest.Every(0, 3000, 0), Received: gapstest.Every(1, 3020, 0)}
	holed := &gaps.Stream{Sent: gapstest.Every(0, 3000, 0), Received: append(gapstest.Every(1, 1000, 0), gapstest.Every(1301, 3020, 65)...)}
	make2 := func(name string) *verdict {
		return judge("restart", w, []call{{up: whole, down: whole}, {name: name, up: whole, down: holed}})
	}
	for _, tt := range []struct {
		name string
		v    *verdict
		want string // part of the problem; "" for none
	}{
		{"within", make2("").within(200 * time.Millisecond), ""},
		{"not within", make2("").within(199 * time.Millisecond), "at most 300.0 ms, want 299.0"},
		{"not within, the browser", make2("firefox").within(0), "firefox had a gap"},
		{"beyond", make2("").beyond(199 * time.Millisecond), ""},
		{"not beyond", make2("").beyond(200 * time.Millisecond), "shows nothing"},
		{"lossy", make2("").lossy(), ""},
		{"not lossless", make2("").lossless(), "9 of 304 packets were lost"},
		{"lossless", judge("x", w, []call{{up: whole}}).lossless(), ""},
		{"not lossy", judge("x", w, []call{{up: whole}}).lossy(), "shows nothing"},
		{"no calls", judge("x", w, nil).within(time.Second), "no calls"},
	} {
		got := strings.Join(tt.v.Problems, "\n")
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: problems %q, want %q", tt.name, got, tt.want)
		}
	}
	const line = "drill restart gap_ms 0 300 300 lost 9 (up 0 down 300 calls 2 sent 304; outage_ms 100; firefox 300)"
	if got := make2("firefox").String(); got != line {
		t.Errorf("got  %s\nwant %s", got, line)
	}
}
