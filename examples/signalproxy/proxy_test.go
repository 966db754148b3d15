package main

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/pion/webrtc/v4"

	"github.com/usher-rtc/usher/transceiver"
	"github.com/usher-rtc/usher/ufrag"
)

const limit = 15 * time.Second

// fleet is two transceivers behind a proxy.
type fleet struct {
	t     *testing.T
	hosts []*transceiver.Host
	sides []*httptest.Server
	url   string
}

func newFleet(t *testing.T) *fleet {
	key, err := ufrag.GenerateKey('a')
	if err != nil {
		t.Fatal(err)
	}
	keys, err := ufrag.NewKeyring('a', key)
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{t: t}
	var list owners
	for range 2 {
		host, err := transceiver.NewHost(transceiver.Config{
			Listen: netip.MustParseAddrPort("127.0.0.1:0"), Codec: ufrag.NewCodec(keys), TrunkKeys: keys,
			AllowRelays: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")},
			Ingresses:   []transceiver.Ingress{{ID: 1, Advertise: netip.MustParseAddrPort("127.0.0.1:3478")}},
			Logger:      slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = host.Close() })
		signalling, err := transceiver.NewHandler(host, transceiver.SignallingConfig{
			Limit:          transceiver.RateLimit{PerSecond: 0.001, Burst: 100},
			TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		})
		if err != nil {
			t.Fatal(err)
		}
		mux := http.NewServeMux()
		mux.Handle("/whip", signalling)
		mux.Handle("/whip/", signalling)
		mux.Handle("/", host.StatusHandler())
		side := httptest.NewServer(mux)
		t.Cleanup(side.Close)
		if err := list.Set(host.Addr().String() + "=" + side.URL); err != nil {
			t.Fatal(err)
		}
		f.hosts, f.sides = append(f.hosts, host), append(f.sides, side)
	}
	p := newProxy(ufrag.NewCodec(keys), list)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.watch(ctx, 20*time.Millisecond)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	front := httptest.NewServer(p)
	t.Cleanup(front.Close)
	f.url = front.URL
	f.eventually("both to be ready", func() bool { return list[0].ready.Load() && list[1].ready.Load() })
	return f
}

func (f *fleet) eventually(what string, ok func() bool) {
	f.t.Helper()
	for deadline := time.Now().Add(limit); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Fatalf("timed out waiting for %s", what)
		}
	}
}

func offer(t *testing.T) string {
	t.Helper()
	pc, err := webrtc.NewPeerConnection(webrtc.Configuration{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pc.GracefulClose() })
	if _, err := pc.CreateDataChannel("x", nil); err != nil {
		t.Fatal(err)
	}
	o, err := pc.CreateOffer(nil)
	if err != nil {
		t.Fatal(err)
	}
	return o.SDP
}

func (f *fleet) do(method, path, kind, body string) (status int, location, text string) {
	f.t.Helper()
	r, err := http.NewRequestWithContext(f.t.Context(), method, f.url+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	r.Header.Set("Content-Type", kind)
	r.Header.Set("If-Match", "*")
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		f.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return res.StatusCode, res.Header.Get("Location"), string(b)
}

func (f *fleet) live() (first, second int) {
	return f.hosts[0].Stats().Live, f.hosts[1].Stats().Live
}

func TestProxyFindsTheOwner(t *testing.T) {
	f := newFleet(t)
	sdp := offer(t)
	var calls []string
	for range 4 {
		status, location, text := f.do("POST", "/whip", "application/sdp", sdp)
		if status != http.StatusCreated {
			t.Fatalf("POST: %d %s", status, text)
		}
		calls = append(calls, location)
	}
	if a, b := f.live(); a != 2 || b != 2 {
		t.Errorf("%d and %d calls, want 2 and 2", a, b)
	}
	fragment := "a=ice-ufrag:fresh\r\na=ice-pwd:0123456789abcdefghijkl\r\n"
	for _, at := range calls {
		if status, _, text := f.do("PATCH", at, "application/trickle-ice-sdpfrag", fragment); status != http.StatusOK {
			t.Errorf("PATCH: %d %s", status, text)
		}
	}
	for _, at := range calls {
		if status, _, text := f.do("DELETE", at, "", ""); status != http.StatusOK {
			t.Errorf("DELETE: %d %s", status, text)
		}
	}
	f.eventually("the calls to end", func() bool { a, b := f.live(); return a+b == 0 })
	if status, _, _ := f.do("DELETE", calls[0], "", ""); status != http.StatusNotFound {
		t.Errorf("DELETE of an ended call: %d", status)
	}
}

func TestProxyCarriesWebSockets(t *testing.T) {
	f := newFleet(t)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	open := func(path string) *websocket.Conn {
		t.Helper()
		c, _, err := websocket.Dial(ctx, f.url+path, &websocket.DialOptions{Subprotocols: []string{"usher.v1"}}) //nolint:bodyclose // Dial says: never needed
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.CloseNow() })
		return c
	}
	read := func(c *websocket.Conn) (m struct{ Type, Location, Reason string }) {
		t.Helper()
		_, b, err := c.Read(ctx)
		if err == nil {
			err = json.Unmarshal(b, &m)
		}
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for range 2 {
		first := open("/whip")
		b, _ := json.Marshal(map[string]any{"type": "offer", "id": 1, "sdp": offer(t)})
		if err := first.Write(ctx, websocket.MessageText, b); err != nil {
			t.Fatal(err)
		}
		m := read(first)
		if m.Type != "answer" {
			t.Fatalf("%+v", m)
		}
		_ = first.CloseNow()
		// Another connection, to the same call by its Location.
		again := open(m.Location)
		if err := again.Write(ctx, websocket.MessageText, []byte(`{"type":"end"}`)); err != nil {
			t.Fatal(err)
		}
		if m := read(again); m.Type != "end" || m.Reason != "client closed" {
			t.Errorf("%+v", m)
		}
	}
	for i, h := range f.hosts {
		if n := h.Stats().Accepted; n != 1 {
			t.Errorf("transceiver %d had %d calls", i, n)
		}
	}
}

// A transceiver that drains keeps its calls and gets no new ones.
func TestProxyLeavesOutWhoIsNotReady(t *testing.T) {
	f := newFleet(t)
	sdp := offer(t)
	var calls []string // one at each
	for range 2 {
		_, location, _ := f.do("POST", "/whip", "application/sdp", sdp)
		calls = append(calls, location)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	shut := make(chan error, 1)
	go func() { shut <- f.hosts[0].Shutdown(ctx) }()
	f.eventually("the drain to be noticed", func() bool {
		before := f.hosts[1].Stats().Accepted
		for range 4 {
			if status, _, _ := f.do("POST", "/whip", "application/sdp", sdp); status != http.StatusCreated {
				return false
			}
		}
		return f.hosts[1].Stats().Accepted == before+4
	})
	for _, location := range calls {
		if status, _, text := f.do("DELETE", location, "", ""); status != http.StatusOK {
			t.Errorf("DELETE: %d %s", status, text)
		}
	}
	select {
	case err := <-shut:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(limit):
		t.Fatal("the call that ended did not end the drain")
	}
	f.sides[0].Close()
	f.sides[1].Close()
	f.eventually("nobody to be left", func() bool {
		status, _, _ := f.do("POST", "/whip", "application/sdp", sdp)
		return status == http.StatusServiceUnavailable
	})
}

func TestOwnersFlag(t *testing.T) {
	for text, ok := range map[string]bool{
		"10.0.0.5:9000=http://10.0.0.5:8080": true,
		"[fd00::1]:9000=https://a.example":   true,
		"10.0.0.5=http://10.0.0.5:8080":      false,
		"10.0.0.5:9000":                      false,
		"10.0.0.5:9000=ftp://x":              false,
		"10.0.0.5:9000=http://":              false,
	} {
		var o owners
		if err := o.Set(text); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
		if ok && o.String() != text {
			t.Errorf("%s became %s", text, o.String())
		}
	}
}
