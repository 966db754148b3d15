//go:build !linux

package meter

import "time"

var start = time.Now()

// Now returns nanoseconds since the process began. Only on Linux is it a clock
// that processes share.
func Now() int64 { return int64(time.Since(start)) }
