package forward

import (
	"net/netip"
	"testing"

	"github.com/usher-rtc/usher/flowtable"
	"github.com/usher-rtc/usher/internal/trunk"
)

// to is client for a packet that was sent to one of several local addresses.
func (w *world) to(local netip.Addr, from netip.AddrPort, data []byte) Verdict {
	var v Verdict
	c := w.cores[0]
	c.Begin(w.now)
	c.Client(&Packet{Data: data, From: from, Ingress: 1, Local: local}, &v)
	c.End()
	return v
}

// TestForgedPacketsDoNotMoveTheLocalAddress lets a stranger write a client's address
// on packets to another address of ours. Answers from there would not pass the
// client's NAT.
func TestForgedPacketsDoNotMoveTheLocalAddress(t *testing.T) {
	w := newWorld(t, 1, nil)
	c := clientAddr(0, 0)
	here, there := netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("198.51.100.2")
	want := func(what string, a netip.Addr) {
		t.Helper()
		if d := w.frame(0, 0, c, 0); d.Reason != None || d.Local != a {
			t.Errorf("%s: answers leave from %v (%v), want %v", what, d.Local, d.Reason, a)
		}
	}
	w.wantTo(w.to(here, c, w.check(0, 1, false)), 0)
	want("a check", here)
	w.frame(0, 0, c, trunk.Validated)
	w.to(there, c, media(1))
	want("forged media", here)
	w.to(there, c, w.check(0, 1, true))
	want("a check with a wrong password", here)
	w.to(there, c, w.check(0, 1, false))
	want("an authentic check", there)

	learned := clientAddr(1, 0)
	w.frame(0, 0, learned, trunk.Validated)
	w.to(here, learned, media(1))
	if d := w.frame(0, 0, learned, 0); d.Local != here {
		t.Errorf("a learned flow: answers leave from %v, want the address that the client uses", d.Local)
	}
}

// TestOwnAddressIsNoClient sends checks of a real session with an address of ours as
// their source: the Host's answers and its media would come back as a client's for
// ever, and two such sessions would keep each other alive.
func TestOwnAddressIsNoClient(t *testing.T) {
	vip := netip.MustParseAddrPort("203.0.113.10:3478")
	w := newWorld(t, 1, func(c *Config, _ *flowtable.Config) { c.Public = []netip.AddrPort{vip} })
	if v := w.client(0, vip, w.check(0, 1, false)); v.Reason != BadSource {
		t.Errorf("a check from our own address: %v", v.Reason)
	}
	if d := w.frame(0, 0, vip, trunk.Validated); d.Reason != BadClient {
		t.Errorf("a frame for our own address: %v", d.Reason)
	}
	local := netip.MustParseAddr("198.51.100.1")
	if v := w.to(local, netip.AddrPortFrom(local, 3478), w.check(0, 1, false)); v.Reason != BadSource {
		t.Errorf("a check from the address it was sent to: %v", v.Reason)
	}
	if f := (flowtable.Flow{Key: flowtable.Key{Client: vip, Ingress: 1}, Upstream: hostAddr(0)}); w.cores[0].Admits(&f) {
		t.Error("such a flow is taken over from another process")
	}
	// The address alone is no offence: others may be behind it.
	w.wantTo(w.client(0, netip.AddrPortFrom(vip.Addr(), 40000), w.check(0, 1, false)), 0)
	w.wantTo(w.client(0, clientAddr(0, 2478), w.check(0, 1, false)), 0)
}
