package flowtable

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"

	"github.com/usher-rtc/usher/ufrag"
)

func recordFlows() []Flow {
	ap := netip.MustParseAddrPort
	return []Flow{
		{
			Key: Key{ap("192.0.2.1:5000"), 7}, Upstream: ap("10.0.0.5:9000"), State: Confirmed,
			Route:        ufrag.Route{Kind: ufrag.KindIPv4, Cluster: 4095, Host: 1<<48 - 1, Session: 1<<32 - 1},
			LastUpstream: 123, Since: 45, NumSSRCs: 2, SSRCs: [MaxSSRCs]uint32{1, 0xffffffff},
		},
		{Key: Key{ap("[2001:db8::1]:1"), 0xffff}, Upstream: ap("[2001:db8::2]:65535"), State: Unconfirmed, LastUpstream: 0xffffffff},
		{
			Key: Key{ap("198.51.100.9:65535"), 0}, Upstream: ap("10.0.0.5:1"), State: Confirmed, TCP: true,
			Local: netip.MustParseAddr("203.0.113.7"), Route: ufrag.Route{Kind: ufrag.KindDirectory},
		},
	}
}

// TestRecordsKeepEverything takes flows out of a table and puts them into another
// one by way of their records.
func TestRecordsKeepEverything(t *testing.T) {
	from, _ := New(Config{MaxFlows: 8})
	to, _ := New(Config{MaxFlows: 8})
	flows := recordFlows()
	for i := range flows {
		if _, ok := from.Insert(&flows[i]); !ok {
			t.Fatal("insert")
		}
	}
	from.Walk(0, 8, func(f Flow) {
		b := f.AppendRecord(nil)
		if len(b) != RecordLen {
			t.Fatalf("%d bytes, want %d", len(b), RecordLen)
		}
		got, err := ReadRecord(b)
		if err != nil || got != f {
			t.Fatalf("got %+v, %v; want %+v", got, err, f)
		}
		to.Insert(&got)
	})
	for i := range flows {
		r := to.Lookup(flows[i].Key)
		if r == 0 || to.Flow(r) != flows[i] {
			t.Errorf("flow %d: got %+v, want %+v", i, to.Flow(r), flows[i])
		}
	}
	if to.BySSRC(flows[0].Key.Client.Addr(), 0xffffffff, 123) == 0 {
		t.Error("its SSRC does not find the flow")
	}
}

func TestReadRecordRefuses(t *testing.T) {
	flows := recordFlows()
	good := flows[0].AppendRecord(nil)
	for name, change := range map[string]func(b []byte) []byte{
		"empty":           func([]byte) []byte { return nil },
		"short":           func(b []byte) []byte { return b[:RecordLen-1] },
		"long":            func(b []byte) []byte { return append(b, 0) },
		"no client port":  func(b []byte) []byte { b[16], b[17] = 0, 0; return b },
		"no client":       func(b []byte) []byte { clear(b[:16]); return b },
		"kind":            func(b []byte) []byte { b[20] |= 0xf0; return b },
		"host":            func(b []byte) []byte { b[22] = 1; return b },
		"no upstream":     func(b []byte) []byte { clear(b[34:50]); return b },
		"no port":         func(b []byte) []byte { b[50], b[51] = 0, 0; return b },
		"no state":        func(b []byte) []byte { b[68] = 0; return b },
		"state":           func(b []byte) []byte { b[68] = 3; return b },
		"flags":           func(b []byte) []byte { b[69] = 2; return b },
		"many SSRCs":      func(b []byte) []byte { b[70] = MaxSSRCs + 1; return b },
		"reserved":        func(b []byte) []byte { b[71] = 1; return b },
		"a surplus SSRC":  func(b []byte) []byte { b[80] = 1; return b },
		"of one not sure": func(b []byte) []byte { b[68] = byte(Unconfirmed); return b },
	} {
		if f, err := ReadRecord(change(bytes.Clone(good))); !errors.Is(err, ErrRecord) {
			t.Errorf("%s: got %+v, %v", name, f, err)
		}
	}
}

// FuzzReadRecord checks that whatever is accepted is written back as it was.
func FuzzReadRecord(f *testing.F) {
	for _, flow := range recordFlows() {
		f.Add(flow.AppendRecord(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		flow, err := ReadRecord(b)
		if err != nil {
			return
		}
		if again := flow.AppendRecord(nil); !bytes.Equal(again, b) {
			t.Fatalf("%x\nbecame\n%x", b, again)
		}
	})
}
