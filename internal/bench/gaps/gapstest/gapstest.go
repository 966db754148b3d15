// Package gapstest makes the records of packets that tests of package gaps and of its
// users judge.
package gapstest

import (
	"time"

	"github.com/usher-rtc/usher/internal/meter"
)

// Every returns events 20 ms apart in [from, to), in milliseconds, numbered from
// first on.
func Every(from, to int64, first uint32) (all []meter.Event) {
	for at := from; at < to; at += 20 {
		all = append(all, meter.Event{Seq: first, At: at * int64(time.Millisecond)})
		first++
	}
	return all
}
