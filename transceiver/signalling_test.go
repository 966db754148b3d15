package transceiver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pion/webrtc/v4"
)

// serve mounts the handler where both kinds of clients look for it.
func serve(t *testing.T, host *Host, cfg SignallingConfig) *httptest.Server {
	t.Helper()
	h, err := NewHandler(host, cfg)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	for _, at := range []string{"/v1/realtime/calls", "/whip"} {
		mux.Handle(at, h)
		mux.Handle(at+"/", h)
	}
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server
}

type response struct {
	*http.Response
	body string
}

func do(t *testing.T, method, url, contentType, body string, headers ...string) response {
	t.Helper()
	r, err := http.NewRequestWithContext(context.Background(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	transport := &http.Transport{DisableKeepAlives: true}
	res, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response{res, string(b)}
}

func form(t *testing.T, sdp, session string, asFile bool) (contentType, body string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	if sdp != "" {
		create := w.CreateFormField
		if asFile {
			create = func(name string) (io.Writer, error) { return w.CreateFormFile(name, "blob") }
		}
		part, err := create("sdp")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(part, sdp)
	}
	if session != "" {
		_ = w.WriteField("session", session)
	}
	_ = w.Close()
	return w.FormDataContentType(), b.String()
}

// C91.
func TestSignallingMakesAndEndsACall(t *testing.T) {
	for _, base := range []string{"/whip", "/v1/realtime/calls"} {
		t.Run(base, func(t *testing.T) {
			var session *Session
			host, _ := setup(t, withEcho)
			server := serve(t, host, SignallingConfig{Prepare: func(r *http.Request, s *Session) error {
				if r.Header.Get("Authorization") != "Bearer x" {
					t.Error("Prepare does not see the request")
				}
				session = s
				return nil
			}})
			c := newClient(t, nil)
			ch := c.channel()
			kind, body := "application/sdp", c.offer(nil)
			if base != "/whip" {
				kind, body = form(t, body, `{"model":"m","voice":{"name":"v"}}`, false)
			}
			res := do(t, "POST", server.URL+base, kind, body, "Authorization", "Bearer x")
			if res.StatusCode != http.StatusCreated || res.Header.Get("Content-Type") != "application/sdp" {
				t.Fatalf("%d %s: %s", res.StatusCode, res.Header.Get("Content-Type"), res.body)
			}
			location := res.Header.Get("Location")
			if !strings.HasPrefix(location, base+"/"+session.Ufrag()) {
				t.Errorf("Location %q", location)
			}
			if base != "/whip" {
				var m struct{ Model string }
				if err := json.Unmarshal(session.Metadata(), &m); err != nil || m.Model != "m" {
					t.Errorf("metadata %s: %v", session.Metadata(), err)
				}
			}
			c.answer(res.body)
			ch.echo(t, "hello")

			u := res.Request.URL.ResolveReference(must(res.Location()))
			r, err := LocationRoute(host.cfg.Codec, u)
			if err != nil || !r.SameHost(host.Route()) {
				t.Errorf("the Location leads to %v: %v", r, err)
			}
			// A further offer, with a restart.
			first := session.Ufrag()
			res = do(t, "PATCH", server.URL+location, "application/sdp", c.offer(&webrtc.OfferOptions{ICERestart: true}))
			if res.StatusCode != http.StatusOK || session.Ufrag() == first {
				t.Fatalf("%d: %s", res.StatusCode, res.body)
			}
			c.answer(res.body)
			ch.echo(t, "after the restart")

			if res := do(t, "DELETE", server.URL+location[:len(location)-1]+"x", "", ""); res.StatusCode != http.StatusNotFound {
				t.Errorf("DELETE with a wrong token: %d", res.StatusCode)
			}
			if res := do(t, "DELETE", server.URL+location+"?reason=lunch%0Atime", "", ""); res.StatusCode != http.StatusOK {
				t.Errorf("DELETE: %d %s", res.StatusCode, res.body)
			}
			wait(t, "the end", session.Done())
			if session.CloseReason() != ReasonClientClosed || !strings.HasSuffix(session.Err().Error(), "client closed: lunch time") {
				t.Errorf("ended because of %q", session.Err())
			}
			if res := do(t, "DELETE", server.URL+location, "", ""); res.StatusCode != http.StatusNotFound {
				t.Errorf("second DELETE: %d", res.StatusCode)
			}
		})
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestSignallingRefuses(t *testing.T) {
	host, _ := setup(t, func(c *Config) { c.MaxOfferBytes = 8 << 10; c.OnSession = func(*Session) error { return nil } })
	teapot := errors.New("")
	server := serve(t, host, SignallingConfig{
		Authorize: func(r *http.Request) error {
			switch r.Header.Get("Authorization") {
			case "no":
				return errors.New("internal detail")
			case "teapot":
				return &StatusError{Status: http.StatusTeapot, Reason: "I'm a\nteapot"}
			}
			return nil
		},
		AllowedOrigins: []string{"https://good.example"},
		Prepare: func(r *http.Request, _ *Session) error {
			if r.Header.Get("Authorization") == "prepare" {
				return teapot
			}
			return nil
		},
	})
	sdp := "application/sdp"
	formType, noSDP := form(t, "", `{}`, false)
	badType, badJSON := form(t, browserOffer(), `{`, false)
	for name, c := range map[string]struct {
		method, path, kind, body string
		headers                  []string
		status                   int
	}{
		"not SDP":             {"POST", "/whip", sdp, "hello", nil, 400},
		"empty":               {"POST", "/whip", sdp, "", nil, 400},
		"no bundle":           {"POST", "/whip", sdp, strings.Replace(browserOffer(), "a=group:BUNDLE 0 1\r\n", "", 1), nil, 400},
		"offer too large":     {"POST", "/whip", sdp, browserOffer() + strings.Repeat("a=x\r\n", 2000), nil, 413},
		"body too large":      {"POST", "/whip", sdp, strings.Repeat("a", 100<<10), nil, 413},
		"form too large":      {"POST", "/whip", formType, noSDP[:len(noSDP)-10] + strings.Repeat("a", 100<<10), nil, 413},
		"no content type":     {"POST", "/whip", "", browserOffer(), nil, 415},
		"json":                {"POST", "/whip", "application/json", browserOffer(), nil, 415},
		"form without sdp":    {"POST", "/whip", formType, noSDP, nil, 400},
		"form with bad JSON":  {"POST", "/whip", badType, badJSON, nil, 400},
		"broken form":         {"POST", "/whip", "multipart/form-data", "x", nil, 400},
		"nothing acceptable":  {"POST", "/whip", sdp, onlyVideo(), nil, 422},
		"unauthorized":        {"POST", "/whip", sdp, browserOffer(), []string{"Authorization", "no"}, 401},
		"chosen status":       {"POST", "/whip", sdp, browserOffer(), []string{"Authorization", "teapot"}, 418},
		"prepare refuses":     {"POST", "/whip", sdp, browserOffer(), []string{"Authorization", "prepare"}, 403},
		"foreign origin":      {"POST", "/whip", sdp, browserOffer(), []string{"Origin", "https://evil.example"}, 403},
		"GET":                 {"GET", "/whip", "", "", nil, 405},
		"PATCH of nothing":    {"PATCH", "/whip", sdp, browserOffer(), nil, 405},
		"DELETE of nothing":   {"DELETE", "/whip", "", "", nil, 405},
		"PATCH elsewhere":     {"PATCH", "/whip/abcdefghijklmnopqrstuvw-TOKEN", sdp, browserOffer(), nil, 404},
		"DELETE elsewhere":    {"DELETE", "/whip/abcdefghijklmnopqrstuvw-TOKEN", "", "", nil, 404},
		"DELETE bad escape":   {"DELETE", "/whip/abc%2Fdef-TOKEN", "", "", nil, 404},
		"preflight elsewhere": {"OPTIONS", "/whip", "", "", []string{"Origin", "https://evil.example"}, 403},
	} {
		t.Run(name, func(t *testing.T) {
			res := do(t, c.method, server.URL+c.path, c.kind, c.body, c.headers...)
			if res.StatusCode != c.status {
				t.Fatalf("%d, want %d: %s", res.StatusCode, c.status, res.body)
			}
			checkProblem(t, res)
			if strings.Contains(res.body, "internal detail") {
				t.Error("an internal error is shown to a stranger")
			}
			if res.Header.Get("Location") != "" {
				t.Error("a refusal has a Location")
			}
		})
	}
	eventually(t, "no session to be left", func() bool { return host.Stats().Live == 0 })
}

// checkProblem fails the test unless a response is problem details, complete
// and with advice (RFC 9457).
func checkProblem(t *testing.T, res response) problem {
	t.Helper()
	var p problem
	if err := json.Unmarshal([]byte(res.body), &p); err != nil || res.Header.Get("Content-Type") != "application/problem+json" {
		t.Fatalf("no problem details: %s %s", res.Header.Get("Content-Type"), res.body)
	}
	if p.Status != res.StatusCode || p.Title == "" || p.Detail == "" || !strings.HasPrefix(p.Type, problemBase) {
		t.Errorf("incomplete problem details: %s", res.body)
	}
	if got := res.Header.Get("Retry-After"); (got != "") != (p.RetryAfter > 0) {
		t.Errorf("Retry-After %q, retry_after %d", got, p.RetryAfter)
	}
	return p
}

func onlyVideo() string {
	s := browserOffer()
	s = s[:strings.Index(s, "m=application")]
	s = strings.Replace(s, "BUNDLE 0 1", "BUNDLE 0", 1)
	s = strings.Replace(s, "m=audio 9 UDP/TLS/RTP/SAVPF 111 0", "m=video 9 UDP/TLS/RTP/SAVPF 96", 1)
	s = strings.Replace(s, "a=rtpmap:111 opus/48000/2\r\na=fmtp:111 minptime=10;useinbandfec=1\r\na=rtpmap:0 PCMU/8000", "a=rtpmap:96 VP8/90000", 1)
	return s
}

func TestSignallingWhenFullAndDraining(t *testing.T) {
	host, _ := setup(t, func(c *Config) { c.MaxSessions = 1 })
	server := serve(t, host, SignallingConfig{})
	status := httptest.NewServer(host.StatusHandler())
	defer status.Close()
	ready := func() int { return do(t, "GET", status.URL+"/readyz", "", "").StatusCode }
	if ready() != 200 || do(t, "GET", status.URL+"/healthz", "", "").StatusCode != 200 {
		t.Error("not ready at the start")
	}
	kind, body := form(t, browserOffer(), "", true)
	res := do(t, "POST", server.URL+"/whip", kind, body)
	if res.StatusCode != 201 {
		t.Fatalf("%d %s", res.StatusCode, res.body)
	}
	if res := do(t, "POST", server.URL+"/whip", "application/sdp", browserOffer()); res.StatusCode != 503 || checkProblem(t, res).RetryAfter == 0 {
		t.Errorf("when full: %d %v", res.StatusCode, res.Header)
	}
	if ready() != 503 {
		t.Error("ready although full")
	}
	var page struct {
		Live     int
		Sessions []struct{ Ufrag string }
	}
	dump := do(t, "GET", status.URL+"/debug/sessions", "", "").body
	if err := json.Unmarshal([]byte(dump), &page); err != nil || page.Live != 1 || len(page.Sessions) != 1 {
		t.Errorf("%v: %s", err, dump)
	}
	if s := host.Sessions()[0]; strings.Contains(dump, s.Ufrag()) {
		t.Error("a whole ufrag is shown")
	}
	shut := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { shut <- host.Shutdown(ctx) }()
	eventually(t, "the drain to begin", host.Draining)
	if res := do(t, "POST", server.URL+"/whip", "application/sdp", browserOffer()); res.StatusCode != 503 || checkProblem(t, res).RetryAfter == 0 {
		t.Errorf("when draining: %d %v", res.StatusCode, res.Header)
	}
	if ready() != 503 {
		t.Error("ready while draining")
	}
	if do(t, "GET", status.URL+"/healthz", "", "").StatusCode != 200 {
		t.Error("not healthy while draining")
	}
	// The call's own resource still works, and its end is the end of the drain.
	if res := do(t, "DELETE", server.URL+res.Header.Get("Location"), "", ""); res.StatusCode != 200 {
		t.Errorf("DELETE while draining: %d", res.StatusCode)
	}
	select {
	case err := <-shut:
		if err != nil {
			t.Errorf("Shutdown: %v", err)
		}
	case <-time.After(patience):
		t.Fatal("Shutdown does not return")
	}
	if do(t, "GET", status.URL+"/healthz", "", "").StatusCode != 503 {
		t.Error("healthy although closed")
	}
}

func TestCORS(t *testing.T) {
	host, _ := setup(t, nil)
	for name, c := range map[string]struct {
		allowed []string
		origin  string
		ok      bool
	}{
		"listed":           {[]string{"https://Good.example"}, "https://good.example", true},
		"any":              {[]string{"*"}, "https://any.example", true},
		"not listed":       {[]string{"https://good.example"}, "https://good.example.evil", false},
		"other scheme":     {[]string{"https://good.example"}, "http://good.example", false},
		"none, foreign":    {nil, "https://good.example", false},
		"opaque":           {[]string{"https://good.example"}, "null", false},
		"no origin at all": {nil, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			server := serve(t, host, SignallingConfig{AllowedOrigins: c.allowed})
			var headers []string
			if c.origin != "" {
				headers = []string{"Origin", c.origin}
			}
			res := do(t, "OPTIONS", server.URL+"/whip", "", "", headers...)
			if ok := res.StatusCode == http.StatusNoContent; ok != c.ok {
				t.Fatalf("%d", res.StatusCode)
			}
			got := res.Header.Get("Access-Control-Allow-Origin")
			if c.ok && got != c.origin || !c.ok && got != "" {
				t.Errorf("Allow-Origin %q", got)
			}
			if c.ok && c.origin != "" && !strings.Contains(res.Header.Get("Access-Control-Expose-Headers"), "Location") {
				t.Error("a page cannot see Location")
			}
		})
	}
	server := serve(t, host, SignallingConfig{})
	if res := do(t, "OPTIONS", server.URL+"/whip", "", "", "Origin", server.URL); res.StatusCode != http.StatusNoContent {
		t.Errorf("same origin: %d", res.StatusCode)
	}
	const own = "authorization,x-tenant"
	for origin, want := range map[string]string{server.URL: own, "https://elsewhere.example": ""} {
		res := do(t, "OPTIONS", server.URL+"/whip", "", "", "Origin", origin, "Access-Control-Request-Headers", own)
		if got := res.Header.Get("Access-Control-Allow-Headers"); got != want {
			t.Errorf("a page of %s may send %q, want %q", origin, got, want)
		}
	}
}

func TestFragmentRestart(t *testing.T) {
	host, _ := setup(t, withEcho)
	server := serve(t, host, SignallingConfig{})
	res := do(t, "POST", server.URL+"/whip", "application/sdp", browserOffer())
	at, first, etag := server.URL+res.Header.Get("Location"), host.Sessions()[0].Ufrag(), res.Header.Get("ETag")
	fragment := "application/trickle-ice-sdpfrag"
	same := "a=ice-ufrag:Ab+/\r\na=ice-pwd:0123456789abcdefghijkl\r\nm=audio 9 UDP/TLS/RTP/SAVPF 0\r\na=mid:0\r\na=candidate:1 1 udp 1 203.0.113.9 5000 typ host\r\n"
	if res := do(t, "PATCH", at, fragment, same, "If-Match", etag); res.StatusCode != http.StatusNoContent {
		t.Errorf("trickle: %d %s", res.StatusCode, res.body)
	}
	if res := do(t, "PATCH", at, fragment, "a=mid:0\r\n", "If-Match", etag); res.StatusCode != http.StatusBadRequest {
		t.Errorf("no credentials: %d %s", res.StatusCode, res.body)
	}
	if res := do(t, "PATCH", at, fragment, same); res.StatusCode != http.StatusPreconditionRequired || host.Sessions()[0].Err() != nil {
		t.Errorf("no If-Match: %d %s", res.StatusCode, res.body)
	} else {
		checkProblem(t, res)
	}
	if res := do(t, "PATCH", at, fragment, same, "If-Match", `"other", `+etag); res.StatusCode != http.StatusNoContent {
		t.Errorf("one of several entity-tags: %d %s", res.StatusCode, res.body)
	}
	if res := do(t, "POST", at, "application/sdp", browserOffer()); res.StatusCode != http.StatusMethodNotAllowed || res.Header.Get("Allow") != allowCall {
		t.Errorf("POST at a Location: %d %v", res.StatusCode, res.Header)
	}
	if res := do(t, "PATCH", at, "text/plain", same); res.StatusCode != http.StatusUnsupportedMediaType {
		t.Errorf("other type: %d %s", res.StatusCode, res.body)
	}
	restart := strings.ReplaceAll(same, "Ab+/", "Newer")
	res = do(t, "PATCH", at, fragment, restart, "If-Match", "*")
	now := host.Sessions()[0].Ufrag()
	if res.StatusCode != http.StatusOK || res.Header.Get("ETag") == etag || now == first {
		t.Fatalf("restart: %d %s %s", res.StatusCode, res.Header.Get("ETag"), res.body)
	}
	for _, line := range []string{"a=ice-ufrag:" + now, "a=ice-lite", "a=mid:0", "a=candidate:1 1 udp ", "a=end-of-candidates"} {
		if len(sdpLines(res.body, line)) != 1 {
			t.Errorf("no line %q in\n%s", line, res.body)
		}
	}
	if strings.Contains(res.body, "203.0.113.9") {
		t.Error("the client's candidate comes back")
	}
	if res := do(t, "PATCH", at, fragment, same, "If-Match", etag); res.StatusCode != http.StatusPreconditionFailed {
		t.Errorf("trickle for the old generation: %d", res.StatusCode)
	}
	if res := do(t, "PATCH", at, "application/sdp", browserOffer(), "If-Match", etag); res.StatusCode != http.StatusPreconditionFailed {
		t.Errorf("an offer for the old generation: %d", res.StatusCode)
	}
}

// Requests overlap (RFC 9725 section 4.3.1): candidates that are read while a
// restart is being answered are for the generation before it, and must not be
// taken for another restart.
func TestFragmentOvertakenByARestart(t *testing.T) {
	host, _ := setup(t, nil)
	server := serve(t, host, SignallingConfig{})
	res := do(t, "POST", server.URL+"/whip", typeSDP, browserOffer())
	s, etag := host.Sessions()[0], res.Header.Get("ETag")
	old := "a=ice-ufrag:Ab+/\r\na=ice-pwd:0123456789abcdefghijkl\r\n"
	s.negotiation.Lock() // the restart is first in line
	status := make(chan int, 1)
	go func() {
		r := httptest.NewRequest(http.MethodPatch, res.Header.Get("Location"), strings.NewReader(old))
		r.Header.Set("Content-Type", typeFragment)
		r.Header.Set("If-Match", etag)
		w := httptest.NewRecorder()
		server.Config.Handler.ServeHTTP(w, r)
		status <- w.Code
	}()
	select {
	case code := <-status:
		t.Errorf("answered with %d before it was its turn", code)
	case <-time.After(100 * time.Millisecond): // it waits for its turn now, most likely
	}
	ice, err := s.credentialsFor("Newer", "0123456789abcdefghijkl")
	if err != nil {
		t.Fatal(err)
	}
	s.negotiated(ice, s.ingresses, true)
	now := s.Ufrag()
	s.negotiation.Unlock()
	select {
	case code := <-status:
		if code != http.StatusPreconditionFailed || s.Ufrag() != now {
			t.Errorf("%d, and the ufrag is %q, want 412 and %q", code, s.Ufrag(), now)
		}
	case <-time.After(patience):
		t.Fatal("no answer")
	}
}

// What an application makes of an offer without Opus is the offer's fault.
func TestOfferWithoutOpusIsUnsupported(t *testing.T) {
	host, _ := setup(t, func(c *Config) {
		c.OnSession = func(s *Session) error {
			_, err := s.OpenAudio(AudioConfig{})
			return fmt.Errorf("a detail: %w", err)
		}
	})
	server := serve(t, host, SignallingConfig{})
	offer := strings.Replace(browserOffer(), "a=rtpmap:111 opus/48000/2\r\na=fmtp:111 minptime=10;useinbandfec=1\r\n", "", 1)
	offer = strings.Replace(offer, "SAVPF 111 0", "SAVPF 0", 1)
	res := do(t, "POST", server.URL+"/whip", typeSDP, offer)
	if res.StatusCode != http.StatusUnprocessableEntity || strings.Contains(res.body, "a detail") {
		t.Errorf("%d %s", res.StatusCode, res.body)
	}
	checkProblem(t, res)
}

func TestLinkHeaders(t *testing.T) {
	host, _ := setup(t, nil)
	server := serve(t, host, SignallingConfig{ICEServers: []webrtc.ICEServer{
		{URLs: []string{"stun:stun.example.com"}},
		{URLs: []string{"turn:turn.example.com?transport=udp"}, Username: "user", Credential: "pass word"},
	}})
	res := do(t, "POST", server.URL+"/whip", "application/sdp", browserOffer())
	want := []string{
		`<stun:stun.example.com>; rel="ice-server"`,
		`<turn:turn.example.com?transport=udp>; rel="ice-server"; username="user"; credential="pass word"; credential-type="password"`,
	}
	if got := res.Header.Values("Link"); res.StatusCode != 201 || !slices.Equal(got, want) {
		t.Errorf("%d %q", res.StatusCode, got)
	}
}

func TestSelectIngresses(t *testing.T) {
	var eu Ingress
	host, relay := setup(t, func(c *Config) {
		eu = c.Ingresses[0]
		c.Ingresses = nil
		c.SelectIngresses = func(r *http.Request) []Ingress {
			if r.Header.Get("X-Region") == "eu" {
				return []Ingress{eu}
			}
			return nil
		}
	})
	server := serve(t, host, SignallingConfig{})
	res := do(t, "POST", server.URL+"/whip", "application/sdp", browserOffer(), "X-Region", "eu")
	if res.StatusCode != 201 || len(sdpLines(res.body, "a=candidate:")) != 1 || !strings.Contains(res.body, relay.addr().Addr().String()) {
		t.Errorf("%d %s", res.StatusCode, res.body)
	}
	if res := do(t, "POST", server.URL+"/whip", "application/sdp", browserOffer()); res.StatusCode != 500 {
		t.Errorf("without any ingress: %d", res.StatusCode)
	}
}

func TestNewHandlerValidates(t *testing.T) {
	host, _ := setup(t, nil)
	var ce *ConfigError
	if _, err := NewHandler(nil, SignallingConfig{}); !errors.As(err, &ce) {
		t.Errorf("no host: %v", err)
	}
	for field, cfg := range map[string]SignallingConfig{
		"MaxBody":                  {MaxBody: -1},
		"KeepAlive":                {KeepAlive: -1},
		"Limit.PerSecond":          {Limit: RateLimit{PerSecond: math.NaN()}},
		"Limit.Burst":              {Limit: RateLimit{Burst: -1}},
		"Limit.MaxSources":         {Limit: RateLimit{MaxSources: -1}},
		"TrustedProxies[0]":        {TrustedProxies: []netip.Prefix{{}}},
		"ICEServers[0].URLs":       {ICEServers: []webrtc.ICEServer{{URLs: []string{"http://example.com"}}}},
		"ICEServers[0].Credential": {ICEServers: []webrtc.ICEServer{{Credential: 7}}},
		"ICEServers[0]":            {ICEServers: []webrtc.ICEServer{{Username: `a"b`}}},
	} {
		if _, err := NewHandler(host, cfg); !errors.As(err, &ce) || ce.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	for _, o := range []string{"example.com", "https://example.com/", "https://", "x y"} {
		if _, err := NewHandler(host, SignallingConfig{AllowedOrigins: []string{o}}); !errors.As(err, &ce) || ce.Field != "AllowedOrigins" {
			t.Errorf("%q: %v", o, err)
		}
	}
}

// A stranger whose offers an application fails at does not fill the log. C112.
func TestWarningsAboutOffersAreLimited(t *testing.T) {
	var lines bytes.Buffer
	host, _ := setup(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&lines, nil)) })
	h, err := NewHandler(host, SignallingConfig{})
	if err != nil {
		t.Fatal(err)
	}
	g, now := h.(*signalling), time.Now()
	for range 100 {
		g.warnRefused(now, errors.New("out of models"))
	}
	g.warnRefused(now.Add(time.Second), errors.New("still none"))
	if n := strings.Count(lines.String(), "an offer was refused"); n != 2 {
		t.Errorf("%d lines in two seconds:\n%s", n, lines.String())
	}
}
