package flowtable_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/flowtable/flowtest"
	"github.com/usher-rtc/usher/ufrag"
)

func TestMemoryStore(t *testing.T) {
	flowtest.Run(t, func(t *testing.T) flowtable.FlowStore { return memoryStore(t, flowtable.MemoryConfig{}) })
}

func memoryStore(t *testing.T, c flowtable.MemoryConfig) *flowtable.MemoryStore {
	t.Helper()
	s, err := flowtable.NewMemoryStore(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func storeKey(n int) flowtable.Key {
	a := netip.AddrFrom4([4]byte{203, 0, byte(n >> 8), byte(n)})
	return flowtable.Key{Client: netip.AddrPortFrom(a, 4000), Ingress: 7}
}

func saveOne(t *testing.T, s flowtable.FlowStore, n int, ttl time.Duration) {
	t.Helper()
	err := s.Save(context.Background(), []flowtable.Entry{{Key: storeKey(n), Value: []byte{1}}}, ttl)
	if err != nil {
		t.Fatal(err)
	}
}

func has(t *testing.T, s flowtable.FlowStore, n int) bool {
	t.Helper()
	v, err := s.Load(context.Background(), []flowtable.Key{storeKey(n)})
	if err != nil {
		t.Fatal(err)
	}
	return v[0] != nil
}

func TestMemoryStoreIsBounded(t *testing.T) {
	s := memoryStore(t, flowtable.MemoryConfig{MaxEntries: 10})
	for i := range 10 {
		saveOne(t, s, i, time.Minute)
	}
	saveOne(t, s, 0, time.Minute) // now 1 is the oldest
	saveOne(t, s, 10, time.Minute)
	saveOne(t, s, 11, time.Minute)
	for i, want := range []bool{true, false, false, true, true, true, true, true, true, true, true, true} {
		if got := has(t, s, i); got != want {
			t.Errorf("entry %d is there: %v, want %v", i, got, want)
		}
	}
	if s.Len() != 10 {
		t.Errorf("%d entries, want 10", s.Len())
	}
}

func TestMemoryStoreForgetsByItsClock(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	s := memoryStore(t, flowtable.MemoryConfig{Now: func() time.Time { return now }})
	for i := range 100 {
		saveOne(t, s, i, time.Minute)
	}
	now = now.Add(time.Minute - 1)
	if !has(t, s, 0) {
		t.Error("ended early")
	}
	now = now.Add(1)
	if has(t, s, 0) {
		t.Error("lives too long")
	}
	// Later entries take the memory of the expired with them, in step.
	for i := range 60 {
		saveOne(t, s, 1000+i, time.Minute)
	}
	if s.Len() != 60 {
		t.Errorf("%d entries, want the 60 that live", s.Len())
	}
}

func TestMemoryConfigErrorsNameTheField(t *testing.T) {
	_, err := flowtable.NewMemoryStore(flowtable.MemoryConfig{MaxEntries: -1})
	var ce *flowtable.ConfigError
	if !errors.As(err, &ce) || ce.Field != "MaxEntries" {
		t.Errorf("%v, want an error about MaxEntries", err)
	}
}

func TestKeysAsText(t *testing.T) {
	for client, want := range map[string]string{
		"203.0.113.9:54321":          "7/203.0.113.9:54321",
		"[::ffff:203.0.113.9]:54321": "7/203.0.113.9:54321",
		"[2001:db8::9]:1":            "7/[2001:db8::9]:1",
		"[fe80::1%eth0]:1":           "7/[fe80::1]:1",
		"[::203.0.113.9]:54321":      "7/[::cb00:7109]:54321",
	} {
		k := flowtable.Key{Client: netip.MustParseAddrPort(client), Ingress: 7}
		if got := k.String(); got != want {
			t.Errorf("%s: %s, want %s", client, got, want)
		}
		if got := k.Canonical().String(); got != want {
			t.Errorf("%s: canonical %s, want %s", client, got, want)
		}
	}
}

// What is in a store is bound to the flow's key: under another key it is refused.
func ExampleValue() {
	key, err := ufrag.GenerateKey('a')
	if err != nil {
		fmt.Println(err)
		return
	}
	keys, err := ufrag.NewKeyring('a', key)
	if err != nil {
		fmt.Println(err)
		return
	}
	route, err := ufrag.IPv4Route(1, netip.MustParseAddrPort("10.0.0.7:3478"), 42)
	if err != nil {
		fmt.Println(err)
		return
	}
	now := time.Now()
	flow := flowtable.Key{Client: netip.MustParseAddrPort("203.0.113.9:54321"), Ingress: 7}
	sealed, err := flowtable.Value{Route: route, Expires: now.Add(time.Minute)}.Seal(nil, flow, keys)
	if err != nil {
		fmt.Println(err)
		return
	}
	v, why := flowtable.OpenValue(sealed, flow, keys, now)
	fmt.Println(v.Route, why)
	flow.Ingress = 8
	_, why = flowtable.OpenValue(sealed, flow, keys, now)
	fmt.Println(why)
	// Output:
	// cluster 1 host 10.0.0.7:3478 session 42 accepted
	// wrong mac
}

// Two relays in one process share their flows through memory.
func ExampleMemoryStore() {
	store, err := flowtable.NewMemoryStore(flowtable.MemoryConfig{MaxEntries: 100_000})
	if err != nil {
		fmt.Println(err)
		return
	}
	key := flowtable.Key{Client: netip.MustParseAddrPort("203.0.113.9:54321"), Ingress: 7}
	ctx := context.Background()
	if err := store.Save(ctx, []flowtable.Entry{{Key: key, Value: []byte("opaque")}}, time.Minute); err != nil {
		fmt.Println(err)
		return
	}
	values, err := store.Load(ctx, []flowtable.Key{key})
	fmt.Printf("%v: %s, %v\n", key, values[0], err)
	// Output: 7/203.0.113.9:54321: opaque, <nil>
}
