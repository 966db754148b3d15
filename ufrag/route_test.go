package ufrag

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"
	"unsafe"
)

func TestIPv4Route(t *testing.T) {
	for _, tt := range []struct {
		cluster uint16
		host    string
		want    uint64 // 0: refused
	}{
		{3, "10.0.0.7:3478", 0x0a0000070d96},
		{maxCluster, "255.255.255.254:65535", 0xfffffffeffff},
		{0, "[::ffff:10.0.0.7]:3478", 0x0a0000070d96},
		{maxCluster + 1, "10.0.0.7:3478", 0},
		{0, "[2001:db8::7]:3478", 0},
		{0, "[::ffff:10.0.0.7%lo]:3478", 0},
		{0, "10.0.0.7:0", 0},
		{0, "0.0.0.0:3478", 0},
		{0, "224.0.0.1:3478", 0},
		{0, "255.255.255.255:3478", 0},
	} {
		host := netip.MustParseAddrPort(tt.host)
		r, err := IPv4Route(tt.cluster, host, 42)
		if tt.want == 0 {
			if !errors.Is(err, ErrRoute) || r != (Route{}) {
				t.Errorf("IPv4Route(%d, %s) = %v, %v", tt.cluster, tt.host, r, err)
			}
			continue
		}
		if want := (Route{KindIPv4, tt.cluster, tt.want, 42}); err != nil || r != want {
			t.Errorf("IPv4Route(%d, %s) = %v, %v; want %v", tt.cluster, tt.host, r, err, want)
		}
		if ap, ok := r.AddrPort(); !ok || ap != unmap(host) {
			t.Errorf("%v.AddrPort() = %s, %v", r, ap, ok)
		}
	}
	if _, err := IPv4Route(0, netip.AddrPort{}, 0); !errors.Is(err, ErrRoute) {
		t.Errorf("zero address: %v", err)
	}
}

func TestDirectoryRoute(t *testing.T) {
	r, err := DirectoryRoute(maxCluster, maxHost, 7)
	if want := (Route{KindDirectory, maxCluster, maxHost, 7}); err != nil || r != want {
		t.Errorf("%v, %v", r, err)
	}
	if ap, ok := r.AddrPort(); ok {
		t.Errorf("a directory id is no address: %s", ap)
	}
	if _, err := DirectoryRoute(0, maxHost+1, 0); !errors.Is(err, ErrRoute) {
		t.Errorf("49 bits: %v", err)
	}
	if _, err := DirectoryRoute(maxCluster+1, 0, 0); !errors.Is(err, ErrRoute) {
		t.Errorf("cluster of 13 bits: %v", err)
	}
}

func TestSameHost(t *testing.T) {
	r := Route{KindDirectory, 3, 17, 42}
	for _, tt := range []struct {
		o    Route
		want bool
	}{
		{r, true},
		{Route{KindDirectory, 3, 17, 43}, true},
		{Route{KindIPv4, 3, 17, 42}, false},
		{Route{KindDirectory, 4, 17, 42}, false},
		{Route{KindDirectory, 3, 18, 42}, false},
	} {
		if got := r.SameHost(tt.o); got != tt.want {
			t.Errorf("SameHost(%v) = %v", tt.o, got)
		}
	}
}

func TestRouteBinary(t *testing.T) {
	r := Route{KindDirectory, 0x345, 0x0102030405ff, 0xa1b2c3d4}
	want := []byte{0x23, 0x45, 1, 2, 3, 4, 5, 0xff, 0xa1, 0xb2, 0xc3, 0xd4}
	if got := r.AppendBinary([]byte("x")); !bytes.Equal(got, append([]byte("x"), want...)) {
		t.Errorf("AppendBinary = % x", got)
	}
	for _, r := range edgeRoutes() {
		if got, err := ParseRoute(r.AppendBinary(nil)); err != nil || got != r {
			t.Errorf("%v comes back as %v, %v", r, got, err)
		}
	}
	for n := range 16 {
		if _, err := ParseRoute(make([]byte, n)); n != RouteLen && err != ErrLength || n == RouteLen && err != ErrKind {
			t.Errorf("%d zero bytes: %v", n, err)
		}
	}
	for _, r := range []Route{{}, {KindDirectory, maxCluster + 1, 1, 1}, {KindIPv4, 0, maxHost + 1, 1}, {19, 0, 1, 1}} {
		if got, err := ParseRoute(r.AppendBinary(nil)); !errors.Is(err, ErrKind) {
			t.Errorf("invalid %#v comes back as %v, %v", r, got, err)
		}
	}
	buf := make([]byte, 0, RouteLen)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := ParseRoute(r.AppendBinary(buf)); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestRouteIsSmallAndComparable(t *testing.T) {
	if n := unsafe.Sizeof(Route{}); n > 24 {
		t.Errorf("a Route takes %d bytes", n)
	}
	m := map[Route]int{{KindIPv4, 1, 2, 3}: 1}
	if m[Route{KindIPv4, 1, 2, 3}] != 1 {
		t.Error("equal routes differ")
	}
}

func TestRouteString(t *testing.T) {
	for want, r := range map[string]Route{
		"cluster 3 host 10.0.0.7:3478 session 42": {KindIPv4, 3, 0x0a0000070d96, 42},
		"cluster 3 host #17 session 42":           {KindDirectory, 3, 17, 42},
		"invalid route":                           {},
	} {
		if got := r.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
