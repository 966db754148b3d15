package transceiver

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Sessions are made, fail and are given up at random moments while the Host
// drains or closes, more than once at a time: everybody gets an answer and
// nothing is left.
func TestShutdownWhileSessionsAreMade(t *testing.T) {
	offer := browserOffer()
	for round := range 20 {
		host, _ := setup(t, func(c *Config) {
			c.OnSession = func(s *Session) error {
				s.Go(func(ctx context.Context) { <-ctx.Done() })
				time.Sleep(rand.N(3 * time.Millisecond))
				return nil
			}
		})
		var callers sync.WaitGroup
		var made atomic.Int32
		stop := make(chan struct{})
		for range 8 {
			callers.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					ctx, cancel := context.WithTimeout(context.Background(), rand.N(6*time.Millisecond))
					s, _, err := host.Accept(ctx, offer, AcceptOptions{})
					cancel()
					switch {
					case err == nil:
						made.Add(1)
						if rand.N(2) == 0 {
							_ = s.Close()
						}
					case errors.Is(err, ErrDraining), errors.Is(err, ErrHostClosed):
						return
					case errors.Is(err, context.DeadlineExceeded):
					default:
						t.Errorf("Accept: %v", err)
						return
					}
				}
			})
		}
		time.Sleep(rand.N(20 * time.Millisecond))
		var enders sync.WaitGroup
		for i := range 3 {
			enders.Go(func() {
				if i == 2 && round%2 == 0 {
					_ = host.Close()
					return
				}
				ctx, cancel := context.WithTimeout(context.Background(), rand.N(20*time.Millisecond))
				defer cancel()
				if err := host.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Shutdown: %v", err)
				}
			})
		}
		enders.Wait()
		close(stop)
		callers.Wait()
		if _, _, err := host.Accept(context.Background(), offer, AcceptOptions{}); !errors.Is(err, ErrHostClosed) {
			t.Fatalf("after the end: %v", err)
		}
		ufrags, numbers := host.sessions.len()
		if n := len(host.Sessions()) + ufrags + numbers + host.paths.len() + host.minter.Live(); n != 0 {
			t.Fatalf("round %d: left behind: %d sessions, %d ufrags, %d numbers, %d paths, %d minted",
				round, len(host.Sessions()), ufrags, numbers, host.paths.len(), host.minter.Live())
		}
	}
}

// The request is given up when the answer is made already, and the application
// has begun to negotiate: Accept waits for neither.
func TestAcceptGivenUpWhileTheApplicationNegotiates(t *testing.T) {
	host, _ := setup(t, func(c *Config) {
		c.OnSession = func(s *Session) error {
			s.Go(func(context.Context) {
				for s.pc.CurrentLocalDescription() == nil && s.Err() == nil {
					time.Sleep(10 * time.Microsecond)
				}
				_, _ = s.Offer(context.Background(), OfferOptions{})
			})
			return nil
		}
	})
	for range 30 {
		ctx, cancel := context.WithTimeout(context.Background(), rand.N(3*time.Millisecond))
		begin := time.Now()
		_, _, err := host.Accept(ctx, browserOffer(), AcceptOptions{})
		cancel()
		if took := time.Since(begin); took >= teardownLimit {
			t.Fatalf("Accept took %v: %v", took, err)
		}
	}
}
