package flowtable_test

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/ufrag"
)

func Example() {
	table, err := flowtable.New(flowtable.Config{MaxFlows: 1000, IdleTimeout: 30 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	start := time.Now()
	tick := func(t time.Time) flowtable.Tick { return flowtable.Tick(t.Sub(start) / time.Millisecond) }

	client := netip.MustParseAddrPort("198.51.100.7:50000")
	host := netip.MustParseAddrPort("10.0.0.5:9000")
	route, _ := ufrag.IPv4Route(0, host, 1)

	// A batch: take the lock once, then look up, insert, touch.
	table.Lock()
	defer table.Unlock()
	now := tick(start)
	r, _ := table.Insert(&flowtable.Flow{
		Key:   flowtable.Key{Client: client, Ingress: 1},
		Route: route, Upstream: host,
		State: flowtable.Unconfirmed, LastUpstream: now, Since: now,
	})
	table.Confirm(r, now, []uint32{0x1234})
	fmt.Println(table.State(r), table.Upstream(r))

	// A client behind a NAT that gave it a new port is found by its SSRC.
	fmt.Println(table.BySSRC(client.Addr(), 0x1234, now) == r)

	// Nothing came from the upstream for a minute.
	for s := range 60 {
		table.Expire(tick(start.Add(time.Duration(s) * time.Second)))
	}
	fmt.Println(table.Len())
	// Output:
	// confirmed 10.0.0.5:9000
	// true
	// 0
}
