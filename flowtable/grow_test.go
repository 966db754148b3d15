package flowtable

import (
	"net/netip"
	"testing"
)

// Whatever the size of the index when a flow came, and whichever flows went before it
// grew, each flow is found and none that is gone.
func TestFlowsAreFoundWhileTheIndexGrows(t *testing.T) {
	for _, most := range []int{3, firstKeys / 4 * 3, firstKeys, lastKeys, 2 * lastKeys} {
		table, err := New(Config{MaxFlows: most})
		if err != nil {
			t.Fatal(err)
		}
		table.Lock()
		sizes := map[int]bool{len(table.keys): true}
		gone := func(i int) bool { return i%7 == 3 && i+most/2 < most }
		for i := range most {
			f := Flow{Key: Key{Client: counted(i), Ingress: uint16(i)}, State: Confirmed, Upstream: counted(i)}
			if _, ok := table.Insert(&f); !ok {
				t.Fatalf("flow %d of %d was refused", i, most)
			}
			if i >= most/2 && gone(i-most/2) {
				table.Remove(table.Lookup(Key{Client: counted(i - most/2), Ingress: uint16(i - most/2)}))
			}
			sizes[len(table.keys)] = true
		}
		for i := range most {
			r := table.Lookup(Key{Client: counted(i), Ingress: uint16(i)})
			if want := !gone(i); (r != 0) != want || want && table.Upstream(r) != counted(i) {
				t.Fatalf("flow %d of %d: ref %d, want one: %v", i, most, r, want)
			}
		}
		if len(table.keys) > table.keyMax || most > firstKeys && len(sizes) < 2 {
			t.Errorf("%d flows: the index had sizes %v, the largest should be %d", most, sizes, table.keyMax)
		}
		table.Unlock()
	}
}

// counted gives each number a client of its own, of both families.
func counted(i int) netip.AddrPort {
	if i%2 == 0 {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 5000)
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte{0x20, 1, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)}), 5000)
}
