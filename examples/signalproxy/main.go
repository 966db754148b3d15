// Signalproxy gives several transceivers one signalling address. A new call goes
// to one that is ready; whatever comes later in a call, WebSockets included, to
// the transceiver that owns it, which the call's URL names. It keeps no state,
// so any number of proxies can run side by side.
//
//	signalproxy -http 127.0.0.1:8080 -keys keys.txt \
//	    -transceiver 10.0.0.5:9000=http://10.0.0.5:8080 -transceiver 10.0.0.6:9000=http://10.0.0.6:8080
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/usher-rtc/usher/examples/internal/cli"
	"github.com/usher-rtc/usher/ufrag"
)

func main() { cli.Main("signalproxy", run) }

func run(ctx context.Context, args []string) error {
	flags := cli.NewFlags("signalproxy", "-http ADDR -keys FILE -transceiver TRUNK=URL [-transceiver ...]")
	listen := flags.String("http", "127.0.0.1:8080", "`address` for clients")
	keyFile := flags.String("keys", "", "key `file`; followed while running")
	every := flags.Duration("check", time.Second, "`interval` of asking the transceivers whether they are ready")
	var owners owners
	flags.Var(&owners, "transceiver", "`TRUNK=URL`: the trunk address that a transceiver's ufrags carry, and where its signalling and /readyz are")
	if err := cli.ParseDaemon(flags, args); err != nil {
		return err
	}
	switch {
	case len(owners) == 0:
		return errors.New("-transceiver is required: at least one TRUNK=URL")
	case *every <= 0:
		return fmt.Errorf("-check: %v is not positive", *every)
	}
	keys, watcher, err := cli.Keys(*keyFile)
	if err != nil {
		return err
	}
	defer func() { _ = watcher.Close() }()

	p := newProxy(ufrag.NewCodec(keys), owners)
	checks, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.watch(checks, *every)
	}()
	defer func() {
		stop()
		<-done
	}()
	server, err := cli.Listen(*listen, p)
	if err != nil {
		return err
	}
	defer server.Close()
	slog.Info("signalling proxy", "http", server.URL(), "transceivers", owners.String())
	<-ctx.Done()
	return nil
}

// owners is the flag that lists the transceivers.
type owners []*owner

// String implements flag.Value.
func (o *owners) String() string {
	var texts []string
	for _, each := range *o {
		texts = append(texts, each.trunk.String()+"="+each.url.String())
	}
	return strings.Join(texts, ",")
}

// Set implements flag.Value.
func (o *owners) Set(text string) error {
	trunk, base, _ := strings.Cut(text, "=")
	addr, err := netip.ParseAddrPort(trunk)
	if err != nil {
		return fmt.Errorf("%q does not begin with a trunk address and port", text)
	}
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("%q does not end with an http:// URL", text)
	}
	*o = append(*o, &owner{trunk: addr, url: u})
	return nil
}
