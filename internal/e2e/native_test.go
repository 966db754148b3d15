package e2e

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/e2e/native"
	"github.com/usher-rtc/usher/internal/e2e/netns"
	"github.com/usher-rtc/usher/internal/e2e/tail"
)

// TestNativeClients makes calls with other implementations of WebRTC. Each must
// land on the owner that its ufrag names, and get its sound and its message back.
func TestNativeClients(t *testing.T) {
	need(t, netns.Available())
	need(t, native.Check(t.Context()))
	for _, kind := range []native.Kind{native.Werift, native.Libdatachannel, native.Libwebrtc} {
		t.Run(string(kind), func(t *testing.T) {
			ctx := testContext(t, time.Minute, fleetPrograms...)
			path, codec := keyFile(t, ctx)
			// These clients use no loopback address by themselves.
			d := &deployment{network: outsideNetwork(t), codec: codec, relayURL: "http://127.0.0.1:8081"}
			ingress := outsideAddr + ":3478"
			d.ingress = []netip.AddrPort{netip.MustParseAddrPort(ingress)}
			d.relay = d.run(t, "relayd", "-listen", ingress, "-trunk", "127.0.0.1:4000", "-http", "127.0.0.1:8081",
				"-keys", path, "-allow-upstream", "127.0.0.1", "-workers", "2", "-cluster", "7")
			for i := range 2 {
				page := fmt.Sprintf("127.0.0.1:%d", 8091+i)
				d.hosts = append(d.hosts, "http://"+page)
				d.transceivers = append(d.transceivers, d.run(t, "transceiverd", "-trunk", fmt.Sprintf("127.0.0.1:%d", 9001+i),
					"-http", page, "-ingress", ingress, "-allow-relay", "127.0.0.1", "-keys", path, "-cluster", "7"))
			}
			d.waitReady(t, ctx)
			owners := make(map[string]bool)
			for _, base := range d.hosts {
				stderr := new(tail.Buffer)
				r, err := native.Call(ctx, kind, base+"/v1/realtime/calls", d.start, stderr)
				if err != nil || r.Problem != "" {
					t.Fatalf("%v, %s; the answer was\n%s\nthe client said:\n%s", err, r.Problem, r.Answer, stderr)
				}
				d.checkCandidates(t, r.Answer)
				route, err := codec.Decode([]byte(r.Ufrag))
				if err != nil {
					t.Fatal(err)
				}
				owner, _ := route.AddrPort()
				owners[owner.String()] = true
				t.Logf("connect %.0f ms, %d of %d packets came back", r.Connect, r.Back, r.Sent)
				if r.Sent == 0 || r.Back*100 < r.Sent*90 {
					t.Errorf("%d of %d packets came back", r.Back, r.Sent)
				}
				if want := "hello from " + string(kind); r.Echoed != want {
					t.Errorf("the echo is %q, want %q", r.Echoed, want)
				}
			}
			if len(owners) != 2 {
				t.Errorf("the ufrags name %v, want two owners", owners)
			}
			// Each client ended its call with DELETE.
			eventually(t, 10*time.Second, func() string {
				if n := len(d.sessions(t, ctx)); n > 0 {
					return fmt.Sprintf("%d sessions after their end", n)
				}
				return ""
			})
		})
	}
}
