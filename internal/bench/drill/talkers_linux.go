package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/usher-rtc/usher/internal/bench/wait"
	"github.com/usher-rtc/usher/internal/e2e/browser"
	"github.com/usher-rtc/usher/internal/e2e/link"
	"github.com/usher-rtc/usher/internal/e2e/tail"
	"github.com/usher-rtc/usher/internal/meter"
)

// kinds are the browsers. Each has a door of its own to the fleet: an address
// where a link passes its packets on to the public one and keeps a record of
// them, since a page cannot say when each packet arrived. The transceiver of that
// browser advertises the door.
var (
	kinds = [...]browser.Kind{browser.Chromium, browser.Firefox}
	names = [...]string{"chromium", "firefox"}
	doors = [...]netip.AddrPort{netip.MustParseAddrPort("127.0.0.8:3478"), netip.MustParseAddrPort("127.0.0.9:3478")}
)

// talker is a browser with a call.
type talker struct {
	name    string
	home    *host // where its calls go by themselves
	host    *host // where its call is
	group   int
	browser *browser.Browser
	page    *browser.Page
	stderr  *tail.Buffer
	site    *http.Server
	link    *link.Link // of the host that it is at
	session uint32
	client  netip.AddrPort // at the link
	fleet   *fleet

	mu     sync.Mutex
	target *host // of the next call
	calls  int   // that the page has made
}

// script is the page. It calls, and calls again when nothing has been heard for
// two seconds, as any page would whose user would otherwise hear nothing.
const script = `<!doctype html><meta charset="utf-8"><title>drill</title><link rel="icon" href="data:,">
<script>
window.over = false; // true ends the call
window.state = {calls: 0, ufrag: '', problem: ''};
const heard = async (pc) => {
  for (const s of (await pc.getStats()).values()) {
    if (s.type === 'inbound-rtp' && s.kind === 'audio') return s.packetsReceived;
  }
  return 0;
};
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const call = async (stream) => {
  const pc = new RTCPeerConnection();
  pc.addTrack(stream.getAudioTracks()[0], stream);
  await pc.setLocalDescription(await pc.createOffer());
  const response = await fetch('/call', {method: 'POST', body: pc.localDescription.sdp});
  const sdp = await response.text();
  if (response.status !== 201) {
    pc.close();
    throw new Error(response.status + ': ' + sdp);
  }
  await pc.setRemoteDescription({type: 'answer', sdp});
  return {pc, ufrag: sdp.match(/^a=ice-ufrag:(.*)$/m)[1].trim()};
};
window.talk = async () => {
  const stream = await navigator.mediaDevices.getUserMedia({audio: true});
  for (;;) {
    let now;
    try {
      now = await call(stream);
    } catch (e) {
      window.state.problem = String(e);
      await sleep(200);
      continue;
    }
    for (let last = 0, since = performance.now(), counted = false; !window.over && performance.now() - since < (counted ? 2000 : 10000); await sleep(100)) {
      const n = await heard(now.pc);
      if (n > last) {
        if (!counted) window.state = {calls: window.state.calls + 1, ufrag: now.ufrag, problem: ''};
        counted = true;
        last = n;
        since = performance.now();
      }
    }
    now.pc.close();
    window.over = false;
  }
};
</script>`

// pageState is window.state.
type pageState struct {
	Calls   int    `json:"calls"`
	Ufrag   string `json:"ufrag"`
	Problem string `json:"problem"`
}

// openTalkers starts the browsers and their calls. A browser is kept for the next
// fleet; page, door and site are new.
func (f *fleet) openTalkers(ctx context.Context) error {
	f.talkers = make([]*talker, len(kinds))
	for i := range kinds {
		home := f.hosts[f.plan.hosts+i]
		t := &talker{name: names[i], home: home, host: home, target: home, fleet: f}
		f.talkers[i] = t
		var err error
		t.link, err = link.New(link.Config{Listen: doors[i], Relay: vip, Source: groupAddr(t.group, 90+i)})
		if err != nil {
			return err
		}
		f.links = append(f.links, t.link)
		if err := t.serve(fmt.Sprintf("127.0.0.1:%d", 8090+i)); err != nil {
			return err
		}
		if t.browser, t.stderr, err = f.run.browser(ctx, kinds[i]); err != nil {
			return err
		}
		if t.page, err = t.browser.Open(ctx, "http://"+t.site.Addr+"/"); err != nil {
			return err
		}
		if err := t.page.Call(ctx, "() => { window.talk(); }", nil, nil); err != nil {
			return err
		}
		if err := t.called(ctx, 1, callLimit); err != nil {
			return err
		}
	}
	return nil
}

// aim sends the page's next call to a transceiver of the browsers.
func (t *talker) aim(h *host) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.target = h
}

// arrived waits until the page has made another call than it was in at the last
// refresh, to the transceiver of the talker at.
func (t *talker) arrived(ctx context.Context, at *talker) error {
	if err := t.called(ctx, t.calls+1, callLimit); err != nil {
		return err
	}
	t.host, t.link = at.home, t.fleet.links[slices.Index(t.fleet.talkers, at)]
	return t.locate(ctx)
}

// goHome ends the page's call and waits until it has made one to its home.
func (t *talker) goHome(ctx context.Context) error {
	t.aim(t.home)
	if err := t.page.Call(ctx, "() => { window.over = true; }", nil, nil); err != nil {
		return err
	}
	return t.arrived(ctx, t)
}

// serve serves the page, and passes its calls on to the target.
func (t *talker) serve(addr string) error {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", addr)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, script)
	})
	mux.HandleFunc("POST /call", func(w http.ResponseWriter, r *http.Request) {
		offer, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		if err != nil {
			return
		}
		t.mu.Lock()
		target := t.target
		t.mu.Unlock()
		answer, err := t.fleet.post(r.Context(), target, string(offer))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, answer)
	})
	t.site = &http.Server{Addr: addr, Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = t.site.Serve(l) }() // ends with Close
	return nil
}

// called waits until the page has heard something in its n-th call.
func (t *talker) called(ctx context.Context, n int, limit time.Duration) error {
	return wait.Until(ctx, limit, func() error {
		var s pageState
		if err := t.page.Call(ctx, "() => window.state", nil, &s); err != nil {
			return err
		}
		if s.Calls < n {
			return fmt.Errorf("%s is in call %d, want %d: %s %s", t.name, s.Calls, n, s.Problem, t.stderr)
		}
		route, err := t.fleet.codec.Decode([]byte(s.Ufrag))
		t.session, t.calls = route.Session, s.Calls
		return err
	})
}

// locate finds the browser's socket: behind the link there may be several.
func (t *talker) locate(ctx context.Context) error {
	var page struct {
		Sessions []struct {
			Session uint32
			Client  netip.AddrPort
		}
	}
	if err := t.fleet.get(ctx, t.host.url+"/debug/sessions", &page); err != nil {
		return err
	}
	for _, s := range page.Sessions {
		if s.Session != t.session {
			continue
		}
		if client, ok := t.link.Client(s.Client); ok {
			t.client = client
			return nil
		}
		return fmt.Errorf("%s: the link has no client at %v", t.name, s.Client)
	}
	return fmt.Errorf("%s has no session %d of %s", t.host.Name, t.session, t.name)
}

// heard returns what the browser has sent and received, as the link saw it.
func (t *talker) heard(since int64) (sent, received []meter.Event) {
	now, clock := time.Now(), meter.Now()
	events := func(d link.Direction) (all []meter.Event) {
		var numbers meter.Unwrapper
		for _, p := range t.link.Find(t.client, d, time.Time{}, link.RTP) {
			e := meter.Event{Seq: numbers.Next(p.Seq), At: clock - int64(now.Sub(p.At))}
			if e.At >= since {
				all = append(all, e)
			}
		}
		return all
	}
	return events(link.Up), events(link.Down)
}

func (t *talker) close() {
	if t == nil {
		return
	}
	if t.page != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_ = t.page.Close(ctx) // the next page is a new one
		cancel()
	}
	if t.site != nil {
		_ = t.site.Close()
	}
}

// browser returns the running browser of a kind; the first call starts it.
func (r *runner) browser(ctx context.Context, kind browser.Kind) (*browser.Browser, *tail.Buffer, error) {
	if b := r.browsers[kind]; b.Browser != nil {
		return b.Browser, b.stderr, nil
	}
	if err := browser.Check(ctx, kind); err != nil {
		return nil, nil, err
	}
	stderr := new(tail.Buffer)
	b, err := browser.Launch(ctx, kind, browser.Options{Loopback: true, Start: (*exec.Cmd).Start, Stderr: stderr})
	if err != nil {
		return nil, nil, errors.Join(err, errors.New(stderr.String()))
	}
	r.progress("%s is %s", kind, b.Version)
	r.browsers[kind] = running{b, stderr}
	return b, stderr, nil
}

type running struct {
	*browser.Browser
	stderr *tail.Buffer
}
