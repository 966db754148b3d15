package main

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/usher-rtc/usher/transceiver"
	"github.com/usher-rtc/usher/ufrag"
)

// owner is a transceiver.
type owner struct {
	trunk netip.AddrPort // what its ufrags carry
	url   *url.URL       // its signalling
	proxy *httputil.ReverseProxy
	ready atomic.Bool
}

// proxy is the http.Handler in front of the owners.
type proxy struct {
	codec  ufrag.Codec
	owners []*owner
	next   atomic.Uint64
}

func newProxy(codec ufrag.Codec, owners []*owner) *proxy {
	p := &proxy{codec: codec, owners: owners}
	for _, o := range owners {
		o.proxy = &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) {
				r.SetURL(o.url)
				r.Out.Host = r.In.Host // pages of the proxy's own origin may call
				r.SetXForwarded()      // and the client's own X-Forwarded-For does not go on
			},
			ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
				slog.Warn("transceiver does not answer", "url", o.url, "err", err)
				o.ready.Store(false)
				unavailable(w)
			},
		}
	}
	return p
}

// ServeHTTP sends a request on: the URL of a call has the route to its owner in
// it, and everything else is a new call.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if route, err := transceiver.LocationRoute(p.codec, r.URL); err == nil {
		trunk, _ := route.AddrPort()
		for _, o := range p.owners {
			if o.trunk == trunk {
				o.proxy.ServeHTTP(w, r) // ready or not: a draining owner still has its calls
				return
			}
		}
		http.NotFound(w, r)
		return
	}
	for range p.owners {
		if o := p.owners[(p.next.Add(1)-1)%uint64(len(p.owners))]; o.ready.Load() {
			o.proxy.ServeHTTP(w, r)
			return
		}
	}
	unavailable(w)
}

func unavailable(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "2")
	http.Error(w, "no transceiver takes calls", http.StatusServiceUnavailable)
}

// watch asks the owners whether they are ready, until the context ends.
func (p *proxy) watch(ctx context.Context, every time.Duration) {
	for tick := time.NewTicker(every); ; {
		var asked sync.WaitGroup
		for _, o := range p.owners {
			asked.Go(func() { o.ready.Store(o.check(ctx, every)) })
		}
		asked.Wait()
		select {
		case <-tick.C:
		case <-ctx.Done():
			tick.Stop()
			return
		}
	}
}

func (o *owner) check(ctx context.Context, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, o.url.JoinPath("readyz").String(), nil)
	if err != nil {
		return false
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return false
	}
	_ = res.Body.Close()
	return res.StatusCode == http.StatusOK
}
