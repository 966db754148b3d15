package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/usher-rtc/usher/ufrag"
)

// deployment is an installation that runs in a network of the test.
type deployment struct {
	*network
	codec        ufrag.Codec
	ingress      []netip.AddrPort // what answers may contain
	hosts        []string         // base URLs that serve the page, the signalling and /debug/sessions
	relayURL     string           // base URL that serves /debug/flows
	relay        *process
	transceivers []*process // nil in quickstart
}

var (
	quickstartPrograms = []string{"ufragctl", "quickstart"}
	fleetPrograms      = []string{"ufragctl", "relayd", "transceiverd"}
)

// Flows and sessions go soon after their end, so that a test can wait for it.
const (
	shortIdle    = "3s"
	shortConsent = "8s"
)

// keyFile makes a key file with ufragctl, as a user would.
func keyFile(t *testing.T, ctx context.Context) (path string, codec ufrag.Codec) {
	t.Helper()
	status, text, problem := runToEnd(t, ctx, "", "ufragctl", "keygen")
	if status != 0 {
		t.Fatalf("ufragctl keygen: status %d: %s", status, problem)
	}
	path = filepath.Join(t.TempDir(), "keys.txt")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	keys, err := ufrag.ReadKeyFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return path, ufrag.NewCodec(keys)
}

// quickstart runs examples/quickstart with the ingress on loopback alone.
func quickstart(t *testing.T, ctx context.Context) *deployment {
	t.Helper()
	path, codec := keyFile(t, ctx)
	d := &deployment{network: loopbackNetwork(t), codec: codec}
	d.ingress = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:3478")}
	d.hosts, d.relayURL = []string{"http://127.0.0.1:8080"}, "http://127.0.0.1:8080"
	d.relay = d.run(t, "quickstart", "-relay", "127.0.0.1:3478", "-keys", path, "-idle", shortIdle, "-consent", shortConsent)
	d.waitReady(t, ctx)
	return d
}

// fleet runs examples/relayd with two examples/transceiverd.
func fleet(t *testing.T, ctx context.Context) *deployment {
	t.Helper()
	path, codec := keyFile(t, ctx)
	d := &deployment{network: loopbackNetwork(t), codec: codec}
	d.ingress = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:3478")}
	d.relayURL = "http://127.0.0.1:8081"
	d.relay = d.run(t, "relayd", "-listen", "127.0.0.1:3478", "-trunk", "127.0.0.1:4000", "-http", "127.0.0.1:8081",
		"-keys", path, "-allow-upstream", "127.0.0.1", "-workers", "2", "-cluster", "7", "-idle", shortIdle)
	for i := range 2 {
		addr := fmt.Sprintf("127.0.0.1:%d", 8091+i)
		d.hosts = append(d.hosts, "http://"+addr)
		d.transceivers = append(d.transceivers, d.run(t, "transceiverd", "-trunk", fmt.Sprintf("127.0.0.1:%d", 9001+i),
			"-http", addr, "-ingress", "127.0.0.1:3478", "-allow-relay", "127.0.0.1", "-keys", path,
			"-cluster", "7", "-consent", shortConsent, "-drain", "15s"))
	}
	d.waitReady(t, ctx)
	return d
}

func (d *deployment) waitReady(t *testing.T, ctx context.Context) {
	t.Helper()
	for _, base := range append([]string{d.relayURL}, d.hosts...) {
		eventually(t, 15*time.Second, func() string {
			for _, p := range append(d.transceivers, d.relay) {
				select {
				case <-p.exited:
					t.Fatalf("%s has ended: %s", p.name, p.output)
				default:
				}
			}
			for _, path := range []string{"/healthz", "/readyz"} {
				if err := d.get(ctx, base+path, nil); err != nil {
					return err.Error()
				}
			}
			return ""
		})
	}
}

// get decodes a JSON page into v, or only looks at the status if v is nil.
func (d *deployment) get(ctx context.Context, url string, v any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := d.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", url, response.Status)
	}
	if v == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(v)
}

// flows returns how many flows the relay has.
func (d *deployment) flows(t *testing.T, ctx context.Context) int {
	t.Helper()
	var page struct {
		Total int `json:"total"`
	}
	if err := d.get(ctx, d.relayURL+"/debug/flows", &page); err != nil {
		t.Fatal(err)
	}
	return page.Total
}

// session is a line of /debug/sessions.
type session struct {
	Owner   string `json:"owner"`
	Host    string `json:"host"`
	Session uint32 `json:"session"`
	Client  string `json:"client"`
	State   string `json:"state"`
}

func (d *deployment) sessions(t *testing.T, ctx context.Context) (all []session) {
	t.Helper()
	for _, base := range d.hosts {
		var page struct {
			Sessions []session `json:"sessions"`
		}
		if err := d.get(ctx, base+"/debug/sessions", &page); err != nil {
			t.Fatal(err)
		}
		all = append(all, page.Sessions...)
	}
	return all
}

// drops returns what relay and transceivers have dropped, by reason, for the log
// of a test: a call that was slow to connect often shows here why.
func (d *deployment) drops(t *testing.T, ctx context.Context) map[string]uint64 {
	t.Helper()
	all := make(map[string]uint64)
	add := func(who string, drops map[string]uint64) {
		for reason, n := range drops {
			if n > 0 {
				all[who+": "+reason] += n
			}
		}
	}
	add("relay", d.relayStats(t, ctx).Drops)
	for _, base := range d.hosts {
		var page struct {
			Hosts []struct {
				Name  string            `json:"name"`
				Drops map[string]uint64 `json:"drops"`
			} `json:"hosts"`
		}
		if err := d.get(ctx, base+"/debug/sessions", &page); err != nil {
			t.Fatal(err)
		}
		for _, h := range page.Hosts {
			add(h.Name, h.Drops)
		}
	}
	return all
}

// checkOwner fails the test unless the process that the ufrag names, and no
// other, has that session. It returns the owner's trunk address.
func (d *deployment) checkOwner(t *testing.T, ufragText string, all []session) (host string) {
	t.Helper()
	route, err := d.codec.Decode([]byte(ufragText))
	if err != nil {
		t.Fatalf("ufrag %s: %v", ufragText, err)
	}
	addr, ok := route.AddrPort()
	if !ok {
		t.Fatalf("ufrag %s has no address: %v", ufragText, route)
	}
	var found []session
	for _, s := range all {
		if s.Session == route.Session {
			found = append(found, s)
		}
	}
	if len(found) != 1 || found[0].Host != addr.String() || found[0].State != "connected" || found[0].Client == "" {
		t.Fatalf("the ufrag names session %d at %v; /debug/sessions has %+v", route.Session, addr, found)
	}
	return addr.String()
}

// checkCandidates fails the test unless the answer has candidates and each is an
// ingress.
func (d *deployment) checkCandidates(t *testing.T, answer string) {
	t.Helper()
	n := 0
	for line := range strings.Lines(answer) {
		text, found := strings.CutPrefix(strings.TrimSpace(line), "a=candidate:")
		if !found {
			continue
		}
		n++
		fields := strings.Fields(text)
		if len(fields) < 8 {
			t.Fatalf("candidate %q", text)
		}
		addr, err := netip.ParseAddrPort(fields[4] + ":" + fields[5])
		if err != nil {
			t.Fatalf("candidate %q: %v", text, err)
		}
		known := false
		for _, in := range d.ingress {
			known = known || in == addr
		}
		if !known || fields[7] != "host" {
			t.Errorf("candidate %q is none of the ingresses %v", text, d.ingress)
		}
	}
	if n == 0 {
		t.Errorf("no candidate in the answer:\n%s", answer)
	}
}
