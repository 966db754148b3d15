package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/bench/stats"
	"github.com/usher-rtc/usher/internal/bench/table"
	"github.com/usher-rtc/usher/ufrag"
)

const (
	tableFlows = 1_000_000
	// collections is how many there are with the flows and without.
	collections = 20
)

// table prints what a worker's flow table of a million confirmed flows takes: its
// memory, all indexes included, and the collector's work.
func (b *bench) table() error {
	fmt.Println("\na flow table of 1,000,000 confirmed flows with an SSRC each, all indexes included; a collection's work on all processors")
	t := table.New(os.Stdout, "clients\tbytes/flow\tcollection ms min\tmedian\tmax\twithout flows ms\t")
	var lines []string
	for _, c := range []struct {
		name   string
		client func(i int) netip.Addr
	}{{"IPv4", client4}, {"IPv6", client6}} {
		f, err := measureTable(c.client)
		if err != nil {
			return err
		}
		with, without := stats.SpreadOf(f.with), stats.SpreadOf(f.without)
		t.Row("%s\t%.1f\t%.2f\t%.2f\t%.2f\t%.2f\t", c.name, f.perFlow, with.Min, with.Median, with.Max, without.Median)
		lines = append(lines,
			fmt.Sprintf("table bytes-per-flow %s %.1f", c.name, f.perFlow),
			fmt.Sprintf("table collection-ms %s %.2f", c.name, with.Median))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, l := range lines {
		fmt.Println(l)
	}
	return nil
}

// tableFigures is what a table takes.
type tableFigures struct {
	perFlow       float64   // bytes
	with, without []float64 // milliseconds of collections
}

func measureTable(client func(i int) netip.Addr) (f tableFigures, err error) {
	if f.without, err = collect(); err != nil {
		return f, err
	}
	before := heap()
	flows, err := flowtable.New(flowtable.Config{MaxFlows: tableFlows})
	if err != nil {
		return f, err
	}
	route, err := ufrag.IPv4Route(1, netip.MustParseAddrPort("10.0.0.1:3478"), 0)
	if err != nil {
		return f, err
	}
	flows.Lock()
	defer flows.Unlock()
	for i := range tableFlows {
		route.Session = uint32(i)
		n := flowtable.Flow{
			Key:   flowtable.Key{Client: netip.AddrPortFrom(client(i), uint16(1024+i%50_000)), Ingress: 1},
			Route: route, Upstream: netip.MustParseAddrPort("10.0.0.1:3478"),
			State: flowtable.Confirmed, SSRCs: [flowtable.MaxSSRCs]uint32{uint32(i)}, NumSSRCs: 1,
		}
		if _, ok := flows.Insert(&n); !ok {
			return f, errors.New("the table refused a flow")
		}
	}
	f.perFlow = float64(heap()-before) / tableFlows
	f.with, err = collect()
	runtime.KeepAlive(flows)
	return f, err
}

func client4(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{100, byte(i >> 16), byte(i >> 8), byte(i)})
}

func client6(i int) netip.Addr {
	return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 12: byte(i >> 24), byte(i >> 16), byte(i >> 8), byte(i)})
}

// heap is how many bytes are reachable.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// collect collects some times, and returns the milliseconds of processor time that
// each took on all threads: marking, sweeping, and waking those that do it.
func collect() ([]float64, error) {
	var out []float64
	for range collections {
		before, err := processCPU()
		if err != nil {
			return nil, err
		}
		runtime.GC()
		after, err := processCPU()
		if err != nil {
			return nil, err
		}
		out = append(out, (after-before).Seconds()*1000)
	}
	return out, nil
}

// processCPU is the processor time of the harness itself.
func processCPU() (time.Duration, error) {
	var ts unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano()), err
}
