package wait

import (
	"context"
	"fmt"
	"time"
)

// For waits for a time, not at all if it is not positive, and returns nil, or the
// context's error if that ends first.
func For(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// interval is the time between two looks of Until.
const interval = 20 * time.Millisecond

// Until calls check every 20 ms until it returns nil. After the limit it returns
// the last error of check's, and the context's once that has ended.
func Until(ctx context.Context, limit time.Duration, check func() error) error {
	for begin := time.Now(); ; {
		err := check()
		if err == nil {
			return nil
		}
		if time.Since(begin) > limit {
			return fmt.Errorf("after %v: %w", limit, err)
		}
		if err := For(ctx, interval); err != nil {
			return err
		}
	}
}
