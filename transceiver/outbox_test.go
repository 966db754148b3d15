package transceiver

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/race"
	"github.com/usher-rtc/usher/internal/stun"
	"github.com/usher-rtc/usher/internal/trunk"
)

// Frames for two relays leave in the order of each, as few datagrams as they fit
// into, whatever becomes of the buffers that they came in.
func TestOutboxBundles(t *testing.T) {
	e := newEchoBench(t, 0)
	sh := e.shard
	relays := []netip.AddrPort{benchRelay, netip.MustParseAddrPort("127.0.0.1:50001")}
	for _, r := range relays {
		sh.host.peers.add(r, false)
	}
	e.sink.looking.Store(true)
	const each = 40
	payload := make([]byte, 200)
	for n := range each {
		for i, r := range relays {
			payload[0], payload[1] = byte(i), byte(n)
			sh.enqueue(r, &trunk.Frame{Flags: trunk.ToClient, Ingress: 1, Client: benchHost}, payload)
		}
	}
	sh.flush()
	var next [2]int
	datagrams := e.sink.take()
	for _, d := range datagrams {
		for _, f := range d {
			i := int(f.Payload[0])
			if int(f.Payload[1]) != next[i] || len(f.Payload) != len(payload) || f.Payload[0] != d[0].Payload[0] {
				t.Fatalf("relay %d: frame %d where %d is due, %d bytes", i, f.Payload[1], next[i], len(f.Payload))
			}
			next[i]++
		}
	}
	fit := (defaultTrunkMTU - trunk.HeaderLen) / (trunk.FrameLen + len(payload))
	if want := 2 * ((each + fit - 1) / fit); next != [2]int{each, each} || len(datagrams) != want {
		t.Errorf("%v frames in %d datagrams, want %d", next, len(datagrams), want)
	}
	if st := sh.host.Stats(); st.FramesOut != 2*each || st.DatagramsOut != uint64(len(datagrams)) || st.BytesOut != 2*each*200 {
		t.Errorf("%+v", st)
	}
}

// What waits is bounded, and what does not fit is counted and disturbs nothing.
func TestOutboxIsBounded(t *testing.T) {
	e := newEchoBench(t, 0)
	sh := e.shard
	fr := trunk.Frame{Flags: trunk.ToClient, Ingress: 1, Client: benchHost}
	payload := bytes.Repeat([]byte{1}, 1200)
	sh.enqueue(benchRelay, &fr, payload) // not a relay of ours
	sh.host.peers.add(benchRelay, false)
	sh.enqueue(benchRelay, &fr, make([]byte, slotSize+1))
	for range sendQueue + 3 {
		sh.enqueue(benchRelay, &fr, payload)
	}
	if n := sh.pending(); n != sendQueue {
		t.Errorf("%d frames wait", n)
	}
	sh.flush()
	st := sh.host.Stats()
	if st.FramesOut != sendQueue || st.Drops[DropSendQueueFull] != 3 || st.Drops[DropOversize] != 1 || st.Drops[DropSend] != 1 {
		t.Errorf("%d frames left, drops %v", st.FramesOut, st.Drops)
	}
	if n := len(sh.queue.spare); n != spareBundles {
		t.Errorf("memory of %d datagrams is kept", n)
	}
}

func TestEnqueueDoesNotAllocate(t *testing.T) {
	race.NoAllocs(t)
	e := newEchoBench(t, 0)
	sh := e.shard
	sh.host.peers.add(benchRelay, false)
	payload := make([]byte, 82)
	add := func() {
		fr := trunk.Frame{Flags: trunk.ToClient, Ingress: 1, Client: benchHost}
		sh.enqueue(benchRelay, &fr, payload)
	}
	for range sendQueue {
		add()
	}
	sh.flush()
	if n := testing.AllocsPerRun(500, add); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Pion gets a check now and then, however often the client checks.
func TestPionIsFedNowAndThen(t *testing.T) {
	c := newVirtualConn("clnt", "password", func([]byte) {})
	now := time.Now()
	c.inject(now)
	var b stun.Builder
	b.Reset(nil, stun.BindingSuccess, stun.TransactionID([]byte("usher---0001")))
	if _, err := c.WriteToAddrPort(b.Bytes(), virtualRemote); err != nil {
		t.Fatal(err)
	}
	const checks = 100
	for range checks {
		now = now.Add(feedAgain / 10)
		c.inject(now)
	}
	if n := len(c.queue); n != 1+checks/10 {
		t.Errorf("%d checks for %d of the client's", n, 1+checks)
	}
	if feedAgain+6100*time.Millisecond >= pionDisconnected {
		t.Error("a browser that checks every 6.1 s would be taken for gone")
	}
}
