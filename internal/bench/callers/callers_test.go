package callers

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/usher-rtc/usher/ufrag"
)

func TestEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, most, sum atomic.Int64
		err := Each(t.Context(), 10, 3, func(i int) error {
			most.Store(max(most.Load(), running.Add(1)))
			time.Sleep(time.Second)
			running.Add(-1)
			sum.Add(int64(i))
			return nil
		})
		if err != nil || most.Load() != 3 || sum.Load() != 45 {
			t.Errorf("%v; %d at once, want 3; sum %d, want 45", err, most.Load(), sum.Load())
		}
		wrong := errors.New("wrong")
		began := 0
		err = Each(t.Context(), 10, 1, func(i int) error {
			began++
			if i == 2 {
				return wrong
			}
			return nil
		})
		if !errors.Is(err, wrong) || began != 3 {
			t.Errorf("%v after %d, want the error of the third", err, began)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := Each(ctx, 10, 1, func(int) error { return nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("an ended context: %v", err)
		}
		if err := Each(ctx, 0, 1, nil); err != nil {
			t.Errorf("nothing to do: %v", err)
		}
	})
}

func TestEachSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var at [4]time.Duration
		if err := EachSpread(t.Context(), 4, 2, func(i int) error { at[i] = time.Since(begin); return nil }); err != nil {
			t.Fatal(err)
		}
		if at != [4]time.Duration{0, checkInterval / 4, checkInterval / 2, checkInterval * 3 / 4} {
			t.Errorf("began at %v", at)
		}
	})
}

func TestRouteOf(t *testing.T) {
	key, err := ufrag.GenerateKey('A')
	if err != nil {
		t.Fatal(err)
	}
	keys, err := ufrag.NewKeyring('A', key)
	if err != nil {
		t.Fatal(err)
	}
	codec := ufrag.NewCodec(keys)
	want := ufrag.Route{Kind: ufrag.KindDirectory, Cluster: 2, Host: 7, Session: 9}
	text, err := codec.Encode(want)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := RouteOf(codec, "v=0\r\na=ice-ufrag:"+text+"\r\na=ice-pwd:x\r\n"); err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	for _, answer := range []string{"", "v=0\r\n", "a=ice-ufrag:nonsense\r\n"} {
		if got, err := RouteOf(codec, answer); err == nil {
			t.Errorf("%q: %+v", answer, got)
		}
	}
}

// A fleet that has failed half-way has speakers that never called.
func TestHangUpWithoutCall(t *testing.T) {
	HangUpAll([]*Speaker{new(Speaker), new(Speaker)})
}
