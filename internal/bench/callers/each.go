package callers

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/usher-rtc/usher/internal/bench/wait"
)

// Each runs f for 0 to n-1, atOnce at a time, until one fails or the context ends,
// and returns the first error once all that began have ended.
func Each(ctx context.Context, n, atOnce int, f func(i int) error) error {
	var next atomic.Int64
	var once sync.Once
	var first error
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range min(n, atOnce) {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				select {
				case <-stop:
					return
				default:
				}
				if i >= n {
					return
				}
				err := ctx.Err()
				if err == nil {
					err = f(i)
				}
				if err != nil {
					once.Do(func() {
						first = err
						close(stop)
					})
					return
				}
			}
		})
	}
	wg.Wait()
	return first
}

// checkInterval is how often a Pion client checks.
const checkInterval = 2 * time.Second

// EachSpread is Each with beginnings that are spread over the time in which a
// client checks once. Calls that are made like that never check all in the same
// moment, and an event shows more than what that moment happens to be.
func EachSpread(ctx context.Context, n, atOnce int, f func(i int) error) error {
	begin := time.Now()
	return Each(ctx, n, atOnce, func(i int) error {
		if err := wait.For(ctx, time.Until(begin.Add(checkInterval*time.Duration(i)/time.Duration(n)))); err != nil {
			return err
		}
		return f(i)
	})
}
