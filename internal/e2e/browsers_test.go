package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/e2e/browser"
	"github.com/usher-rtc/usher/internal/e2e/netns"
)

// callsPerSetup is how many calls each browser makes to each set-up.
const callsPerSetup = 20

// TestBrowsersTalk makes calls from real browsers through real processes. Every
// call must land on the owner that its ufrag names, carry sound and data both
// ways, and be gone from transceiver and relay after its page was closed.
func TestBrowsersTalk(t *testing.T) {
	setups := []struct {
		name     string
		start    func(*testing.T, context.Context) *deployment
		programs []string
	}{{"quickstart", quickstart, quickstartPrograms}, {"fleet", fleet, fleetPrograms}}
	for _, setup := range setups {
		t.Run(setup.name, func(t *testing.T) {
			eachBrowser(t, func(t *testing.T, kind browser.Kind) {
				need(t, netns.Available())
				need(t, browser.Check(t.Context(), kind))
				ctx := testContext(t, 3*time.Minute, setup.programs...)
				talk(t, ctx, kind, setup.start(t, ctx))
			})
		})
	}
}

func talk(t *testing.T, ctx context.Context, kind browser.Kind, d *deployment) {
	b := launch(t, ctx, d.network, kind, browser.Options{Loopback: true})
	var pages []*browser.Page
	for _, base := range d.hosts {
		pages = append(pages, open(t, ctx, b, base))
	}
	// Five at a time, as two cores with the race detector can carry them.
	const atOnce = 5
	owners := make(map[string]int)
	for batch := range callsPerSetup / atOnce {
		results := callAll(t, ctx, pages[batch%len(pages)], fmt.Sprint("batch ", batch), atOnce)
		all := d.sessions(t, ctx)
		for _, r := range results {
			d.checkCandidates(t, r.Answer)
			owners[d.checkOwner(t, r.Ufrag, all)]++
			t.Logf("connect %.0f ms, echo %.1f ms, %d packets, loudness %.3f", r.Connect, r.EchoRTT, r.Packets, r.Loudness)
		}
	}
	t.Logf("calls by owner: %v; drops: %v", owners, d.drops(t, ctx))
	if len(owners) != 2 {
		t.Errorf("the calls were to be spread over two transceivers: %v", owners)
	}
	for host, n := range owners {
		if n != callsPerSetup/2 {
			t.Errorf("%d calls at %s, want %d", n, host, callsPerSetup/2)
		}
	}
	if got := d.flows(t, ctx); got < callsPerSetup {
		t.Errorf("%d flows at the relay with %d calls up", got, callsPerSetup)
	}
	for _, p := range pages {
		if err := p.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
	begin := time.Now()
	eventually(t, 30*time.Second, func() string {
		if n := len(d.sessions(t, ctx)); n > 0 {
			return fmt.Sprintf("%d sessions after the pages were closed", n)
		}
		return ""
	})
	t.Logf("the sessions ended %v after the pages", time.Since(begin).Round(100*time.Millisecond))
	eventually(t, 30*time.Second, func() string {
		if n := d.flows(t, ctx); n > 0 {
			return fmt.Sprintf("%d flows after the sessions ended", n)
		}
		return ""
	})
}

// TestBrowsersWithDefaultSettings runs the quickstart as a newcomer does: no
// argument, a browser with its own settings, and a machine with a network.
func TestBrowsersWithDefaultSettings(t *testing.T) {
	eachBrowser(t, func(t *testing.T, kind browser.Kind) {
		need(t, netns.Available())
		need(t, browser.Check(t.Context(), kind))
		ctx := testContext(t, 2*time.Minute, quickstartPrograms...)
		d := &deployment{network: outsideNetwork(t)}
		d.ingress = []netip.AddrPort{
			netip.MustParseAddrPort(outsideAddr + ":3478"),
			netip.MustParseAddrPort("127.0.0.1:3478"),
		}
		d.hosts, d.relayURL = []string{"http://127.0.0.1:8080"}, "http://127.0.0.1:8080"
		d.relay = d.run(t, "quickstart")
		d.waitReady(t, ctx)

		b := launch(t, ctx, d.network, kind, browser.Options{})
		p := open(t, ctx, b, d.hosts[0])
		for _, r := range callAll(t, ctx, open(t, ctx, b, d.hosts[0]), "default", 2) {
			d.checkCandidates(t, r.Answer)
			t.Logf("connect %.0f ms, echo %.1f ms, %d packets, loudness %.3f", r.Connect, r.EchoRTT, r.Packets, r.Loudness)
		}
		pressTalk(t, ctx, d, p, kind)
	})
}

// pageState is what a user sees on the quickstart's page.
type pageState struct {
	State   string  `json:"state"`
	Status  string  `json:"status"`
	Owner   string  `json:"owner"`
	Host    string  `json:"host"`
	Session string  `json:"session"`
	Ufrag   string  `json:"ufrag"`
	Client  string  `json:"client"`
	Ingress string  `json:"ingress"`
	RTT     string  `json:"rtt"`
	Up      int     `json:"up"`
	Down    int     `json:"down"`
	Level   float64 `json:"level"`
}

const readPage = `() => {
  const text = (id) => document.getElementById(id).textContent;
  return {
    state: document.body.dataset.state, status: text('status'), owner: text('owner'), host: text('host'),
    session: text('session'), ufrag: text('ufrag'), client: text('client'), ingress: text('ingress'), rtt: text('rtt'),
    up: Number(text('up')), down: Number(text('down')), level: Number(document.getElementById('level-in').getAttribute('aria-valuenow')),
  };
}`

// pressTalk uses the page as a person would, and saves a picture of it: talk,
// hang up, talk again, close the tab. Either end must reach the call's owner at
// once, though the silence that ends other calls takes 30 s.
func pressTalk(t *testing.T, ctx context.Context, d *deployment, p *browser.Page, kind browser.Kind) {
	t.Helper()
	others := len(d.sessions(t, ctx))
	read := func() (s pageState) {
		if err := p.Call(ctx, readPage, nil, &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	if err := p.Click(ctx, "#talk"); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, func() string {
		s := read()
		complete := s.State == "connected" && s.Owner != "–" && s.RTT != "–" && s.Client != "–" && s.Ingress != "–" &&
			len(s.Ufrag) == 23 && s.Up > 100 && s.Down > 100
		// Without a sound card Firefox's AudioContext does not run.
		if kind == browser.Chromium {
			complete = complete && s.Level > 0.2
		}
		if !complete {
			return fmt.Sprintf("the page shows %+v", s)
		}
		return ""
	})
	picture := filepath.Join(pictures(t), "quickstart-"+string(kind)+".png")
	if err := p.Screenshot(ctx, picture); err != nil {
		t.Fatal(err)
	}
	t.Logf("picture of the page in a call: %s", picture)
	if err := p.Click(ctx, "#talk"); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, func() string {
		if s := read(); s.State != "idle" {
			return fmt.Sprintf("after Hang up the page shows %+v", s)
		}
		if n := len(d.sessions(t, ctx)); n > others {
			return fmt.Sprintf("%d sessions after Hang up, want %d", n, others)
		}
		return ""
	})
	if err := p.Click(ctx, "#talk"); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, func() string {
		if s := read(); s.State != "connected" {
			return fmt.Sprintf("after Talk again the page shows %+v", s)
		}
		return ""
	})
	if err := p.Close(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, func() string {
		if n := len(d.sessions(t, ctx)); n > others {
			return fmt.Sprintf("%d sessions after the tab was closed, want %d", n, others)
		}
		return ""
	})
}
