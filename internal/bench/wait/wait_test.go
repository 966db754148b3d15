package wait

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		if err := For(t.Context(), time.Second); err != nil || time.Since(begin) != time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		if err := For(t.Context(), -time.Second); err != nil || time.Since(begin) != time.Second {
			t.Errorf("a time that is over: %v after %v", err, time.Since(begin))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := For(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != 2*time.Second {
			t.Errorf("an ended context: %v after %v", err, time.Since(begin))
		}
	})
}

func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		errNot := errors.New("not yet")
		begin := time.Now()
		at := func(d time.Duration) func() error {
			return func() error {
				if time.Since(begin) < d {
					return errNot
				}
				return nil
			}
		}
		if err := Until(t.Context(), time.Second, at(90*time.Millisecond)); err != nil || time.Since(begin) != 100*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		if err := Until(t.Context(), time.Second, at(time.Hour)); !errors.Is(err, errNot) {
			t.Errorf("past the limit: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := Until(ctx, time.Minute, at(time.Hour)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("an ended context: %v", err)
		}
	})
}
