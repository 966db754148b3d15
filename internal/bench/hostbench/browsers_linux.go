package main

import (
	"context"
	"fmt"
	"os/exec"
	"strings"

	"github.com/usher-rtc/usher/internal/bench/callers"
	"github.com/usher-rtc/usher/internal/e2e/browser"
)

// setupClients starts the clients that were asked for. What has been started
// is returned with an error, too.
func (b *bench) setupClients(ctx context.Context, s *site) (all []setupClient, err error) {
	for name := range strings.SplitSeq(b.browsers, ",") {
		var c setupClient
		if name == "pion" {
			engine, err := callers.NewEngine()
			if err != nil {
				return all, err
			}
			c = pionClient{engine}
		} else if c, err = openBrowser(ctx, name, s); err != nil {
			return all, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, c)
	}
	return all, nil
}

// browserClient is a page in a browser of its own.
type browserClient struct {
	called  string
	browser *browser.Browser
	page    *browser.Page
}

// trials are switched on by name for clients that are called after them.
var trials = map[string]string{clientSnap: "WebRTC-Sctp-Snap", clientDTLSInSTUN: "WebRTC-IceHandshakeDtls"}

func openBrowser(ctx context.Context, name string, s *site) (setupClient, error) {
	kind := browser.Chromium
	opts := browser.Options{Loopback: true, Start: (*exec.Cmd).Start}
	if name == "firefox" {
		kind = browser.Firefox
	}
	if trial := trials[name]; trial != "" {
		opts.Args = []string{"--force-fieldtrials=" + trial + "/Enabled/"}
	}
	if err := browser.Check(ctx, kind); err != nil {
		return nil, err
	}
	b, err := browser.Launch(ctx, kind, opts)
	if err != nil {
		return nil, err
	}
	c := &browserClient{called: name, browser: b}
	if c.page, err = b.Open(ctx, "http://"+s.addr+"/"); err != nil {
		c.close()
		return nil, err
	}
	progress("setup: %s is %s", name, b.Version)
	return c, nil
}

func (c *browserClient) name() string { return c.called }
func (c *browserClient) close()       { c.browser.Close() }

func (c *browserClient) call(ctx context.Context, _ *site, p place) (t times, err error) {
	arg := map[string]any{"path": p.path(), "limit": runLimit.Milliseconds()}
	return t, c.page.Call(ctx, "(arg) => window.setUp(arg)", arg, &t)
}
