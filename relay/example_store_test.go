package relay_test

import (
	"fmt"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/relay"
)

// Relays that share a store know each other's flows. In production it is Redis,
// see module flowtable/redisflow; closing it is up to who opened it.
func ExampleStoreStats() {
	store, err := flowtable.NewMemoryStore(flowtable.MemoryConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	cfg := testConfig()
	cfg.Store = store
	srv, err := relay.New(cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer srv.Close()

	st := srv.Stats().Store
	answered := st.Hits + st.Misses
	for _, n := range st.Refused {
		answered += n
	}
	fmt.Printf("%d of %d answers led to a flow; breakers: look-ups %v, writes %v\n",
		st.Hits, answered, st.LookupBreaker, st.WriteBreaker)
	// Output: 0 of 0 answers led to a flow; breakers: look-ups closed, writes closed
}
