// Package flowtest has the tests that every [flowtable.FlowStore] must pass.
//
// It owns the contract as a program: what is saved comes back under every
// spelling of its key, for as long as it should, and whatever goes wrong shows as
// an error in time. It refuses to look behind the interface.
package flowtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/usher-rtc/usher/flowtable"
)

// Run tests stores. Open returns an empty one each time, and cleans up with
// t.Cleanup. The stores need not be empty if they share their memory: no two
// subtests use the same keys.
func Run(t *testing.T, open func(t *testing.T) flowtable.FlowStore) {
	for i, tc := range []struct {
		name string
		test func(*suite)
	}{
		{"what is saved is found", (*suite).found},
		{"what is not saved is not found", (*suite).absent},
		{"an address has one key", (*suite).canonical},
		{"the last value counts", (*suite).lastCounts},
		{"any bytes are a value", (*suite).opaque},
		{"values end", (*suite).expiry},
		{"a new value has a new life", (*suite).refresh},
		{"nothing is kept of the caller's memory", (*suite).ownership},
		{"what is not allowed is refused", (*suite).refusals},
		{"a batch may be empty", (*suite).empty},
		{"batches may be large", (*suite).large},
		{"a context that is done ends the call", (*suite).cancelled},
		{"calls may overlap", (*suite).concurrent},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.test(&suite{T: t, store: open(t), net: byte(i)})
		})
	}
}

// patience is how long a healthy store may take for anything.
const patience = 10 * time.Second

type suite struct {
	*testing.T
	store flowtable.FlowStore
	net   byte // makes the keys of each subtest its own
}

func (s *suite) key(n int) flowtable.Key {
	a := netip.AddrFrom4([4]byte{198, 18 + byte(n>>16&1), s.net, byte(n >> 8)})
	return flowtable.Key{Client: netip.AddrPortFrom(a, 10_000+uint16(n&0xff)), Ingress: 7}
}

func (s *suite) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	s.Cleanup(cancel)
	return ctx
}

func (s *suite) save(ttl time.Duration, entries ...flowtable.Entry) {
	s.Helper()
	if err := s.store.Save(s.ctx(), entries, ttl); err != nil {
		s.Fatalf("Save: %v", err)
	}
}

func (s *suite) load(keys ...flowtable.Key) [][]byte {
	s.Helper()
	values, err := s.store.Load(s.ctx(), keys)
	if err != nil {
		s.Fatalf("Load: %v", err)
	}
	if len(values) != len(keys) {
		s.Fatalf("Load returned %d values for %d keys", len(values), len(keys))
	}
	return values
}

// want checks the values under some keys; "" stands for none.
func (s *suite) want(keys []flowtable.Key, want ...string) {
	s.Helper()
	for i, got := range s.load(keys...) {
		if want[i] == "" && got != nil {
			s.Errorf("%v has %q, want nothing", keys[i], got)
		} else if want[i] != "" && string(got) != want[i] {
			s.Errorf("%v has %q, want %q", keys[i], got, want[i])
		}
	}
}

func entry(k flowtable.Key, value string) flowtable.Entry {
	return flowtable.Entry{Key: k, Value: []byte(value)}
}

func (s *suite) found() {
	a, b, c := s.key(1), s.key(2), s.key(3)
	s.save(time.Minute, entry(a, "a"), entry(b, "b"))
	s.save(time.Minute, entry(c, "c"))
	s.want([]flowtable.Key{c, a, b}, "c", "a", "b")
	s.want([]flowtable.Key{a, a}, "a", "a")
}

func (s *suite) absent() {
	a, b := s.key(1), s.key(2)
	s.want([]flowtable.Key{a}, "")
	s.save(time.Minute, entry(a, "a"))
	otherPort, otherIngress := a, a
	otherPort.Client = netip.AddrPortFrom(a.Client.Addr(), a.Client.Port()+1000)
	otherIngress.Ingress++
	s.want([]flowtable.Key{b, a, otherPort, otherIngress}, "", "a", "", "")
}

func (s *suite) canonical() {
	plain := s.key(1)
	mapped := plain
	mapped.Client = netip.AddrPortFrom(netip.AddrFrom16(plain.Client.Addr().As16()), plain.Client.Port())
	s.save(time.Minute, entry(mapped, "mapped"))
	s.want([]flowtable.Key{plain, mapped}, "mapped", "mapped")
	s.save(time.Minute, entry(plain, "plain"))
	s.want([]flowtable.Key{plain, mapped}, "plain", "plain")

	six := flowtable.Key{Client: netip.AddrPortFrom(netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 15: s.net}), 5), Ingress: 1}
	// The IPv4-compatible form is another address, not another spelling.
	var low [16]byte
	v4 := plain.Client.Addr().As4()
	copy(low[12:], v4[:])
	compatible := flowtable.Key{Client: netip.AddrPortFrom(netip.AddrFrom16(low), plain.Client.Port()), Ingress: 7}
	s.save(time.Minute, entry(six, "six"))
	s.want([]flowtable.Key{six, compatible}, "six", "")
}

func (s *suite) lastCounts() {
	k := s.key(1)
	s.save(time.Minute, entry(k, "first"), entry(s.key(2), "other"), entry(k, "second"))
	s.want([]flowtable.Key{k}, "second")
	s.save(time.Minute, entry(k, "third"))
	s.want([]flowtable.Key{k}, "third")
}

func (s *suite) opaque() {
	var entries []flowtable.Entry
	var keys []flowtable.Key
	for i := range 256 {
		k := s.key(i)
		keys = append(keys, k)
		entries = append(entries, flowtable.Entry{Key: k, Value: bytes.Repeat([]byte{byte(i)}, 1+i%flowtable.MaxValueLen)})
	}
	s.save(time.Minute, entries...)
	for i, got := range s.load(keys...) {
		if !bytes.Equal(got, entries[i].Value) {
			s.Errorf("%d bytes %#x came back as %#x", len(entries[i].Value), i, got)
		}
	}
}

// gone waits until a key has no value.
func (s *suite) gone(k flowtable.Key) {
	s.Helper()
	for start := time.Now(); s.load(k)[0] != nil; {
		if time.Since(start) > patience {
			s.Fatalf("%v has not ended after %v", k, patience)
		}
		time.Sleep(time.Millisecond)
	}
}

func (s *suite) expiry() {
	short, long := s.key(1), s.key(2)
	s.save(time.Minute, entry(long, "long"))
	s.save(50*time.Millisecond, entry(short, "short"))
	s.gone(short)
	s.want([]flowtable.Key{long}, "long")
}

func (s *suite) refresh() {
	k, mark := s.key(1), s.key(2)
	const life = 100 * time.Millisecond
	s.save(life, entry(k, "old"))
	s.save(time.Minute, entry(k, "new"))
	// When a value that was saved later is over, the old life is over too.
	s.save(life, entry(mark, "mark"))
	s.gone(mark)
	s.want([]flowtable.Key{k}, "new")
	s.save(life, entry(k, "short again"))
	s.gone(k)
}

func (s *suite) ownership() {
	k := s.key(1)
	entries := []flowtable.Entry{entry(k, "mine")}
	s.save(time.Minute, entries...)
	entries[0].Value[0] = 'X'
	got := s.load(k)[0]
	if string(got) != "mine" {
		s.Fatalf("the value is %q after the caller changed its memory", got)
	}
	got[0] = 'X'
	s.want([]flowtable.Key{k}, "mine")
}

func (s *suite) refusals() {
	k := s.key(1)
	for _, tc := range []struct {
		name  string
		value []byte
		ttl   time.Duration
	}{
		{"an empty value", nil, time.Minute},
		{"a value that is too long", make([]byte, flowtable.MaxValueLen+1), time.Minute},
		{"no ttl", []byte("x"), 0},
		{"a negative ttl", []byte("x"), -time.Second},
		{"a ttl below a millisecond", []byte("x"), time.Microsecond},
	} {
		if err := s.store.Save(s.ctx(), []flowtable.Entry{{Key: k, Value: tc.value}}, tc.ttl); err == nil {
			s.Errorf("%s was accepted", tc.name)
		}
	}
	s.want([]flowtable.Key{k}, "")
}

func (s *suite) empty() {
	s.save(time.Minute)
	s.load()
}

func (s *suite) large() {
	const n = 2000
	var entries []flowtable.Entry
	var keys []flowtable.Key
	for i := range n {
		keys = append(keys, s.key(i))
		entries = append(entries, entry(keys[i], fmt.Sprint("value ", i)))
	}
	s.save(time.Minute, entries...)
	for i, got := range s.load(keys...) {
		if string(got) != string(entries[i].Value) {
			s.Fatalf("%v has %q, want %q", keys[i], got, entries[i].Value)
		}
	}
}

func (s *suite) cancelled() {
	k := s.key(1)
	done, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.store.Save(done, []flowtable.Entry{entry(k, "x")}, time.Minute); !errors.Is(err, context.Canceled) {
		s.Errorf("Save with a cancelled context: %v", err)
	}
	if _, err := s.store.Load(done, []flowtable.Key{k}); !errors.Is(err, context.Canceled) {
		s.Errorf("Load with a cancelled context: %v", err)
	}
	// The store works on.
	s.save(time.Minute, entry(k, "y"))
	s.want([]flowtable.Key{k}, "y")
}

func (s *suite) concurrent() {
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 50 {
				k := s.key(1000*g + i)
				if err := s.store.Save(s.ctx(), []flowtable.Entry{entry(k, "v")}, time.Minute); err != nil {
					s.Errorf("Save: %v", err)
					return
				}
				values, err := s.store.Load(s.ctx(), []flowtable.Key{k})
				if err != nil || len(values) != 1 || string(values[0]) != "v" {
					s.Errorf("Load: %q, %v", values, err)
					return
				}
			}
		})
	}
	wg.Wait()
}
