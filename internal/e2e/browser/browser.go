package browser

import (
	"bufio"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

//go:embed driver.mjs package.json package-lock.json
var driverFiles embed.FS

// Kind is a browser that the harness knows how to start.
type Kind string

// The browsers of the suite.
const (
	Chromium Kind = "chrome"
	Firefox  Kind = "firefox"
)

// Options say how a browser is started. The zero value is a browser with the
// settings that its users have, except for a microphone that is simulated and
// that it may use without a question.
type Options struct {
	// Loopback lets WebRTC use 127.0.0.1, which neither browser does by
	// default. Firefox also needs a network without any other interface.
	Loopback bool
	// Args are further arguments of Chromium's, such as
	// --force-fieldtrials=NAME/Enabled/; Firefox gets none.
	Args []string
	// Start starts the driver's process, for instance inside a network
	// namespace; nil is (*exec.Cmd).Start. The browser is a child of it.
	Start func(*exec.Cmd) error
	// Stderr receives what driver and browser print; nil discards it.
	Stderr io.Writer
}

// Browser is one running browser with a profile of its own. Its methods may be
// called from several goroutines.
type Browser struct {
	Kind    Kind
	Version string

	cmd    *exec.Cmd
	stdin  io.WriteCloser
	exited chan struct{}
	pid    int // of the browser; it leads a process group of its own

	mu      sync.Mutex
	next    int
	waiting map[int]chan reply
	err     error
}

type reply struct {
	ID     int             `json:"id"`
	Result json.RawMessage `json:"result"`
	Error  string          `json:"error"`
}

// errExited answers every call once the driver process has gone.
var errExited = errors.New("browser: the driver has ended")

// Launch starts a browser. Ask Check first: it says what is missing.
func Launch(ctx context.Context, kind Kind, opts Options) (*Browser, error) {
	parts, err := find(ctx, kind)
	if err != nil {
		return nil, err
	}
	if opts.Start == nil {
		opts.Start = (*exec.Cmd).Start
	}
	b := &Browser{Kind: kind, exited: make(chan struct{}), waiting: make(map[int]chan reply)}
	b.cmd = exec.CommandContext(context.WithoutCancel(ctx), parts.node, parts.driver) // Close ends it
	b.cmd.Stderr = opts.Stderr
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if b.stdin, err = b.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := b.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := opts.Start(b.cmd); err != nil {
		return nil, fmt.Errorf("browser: start the driver: %w", err)
	}
	go b.read(stdout)

	args, prefs := settings(kind, opts)
	var launched struct {
		PID     int    `json:"pid"`
		Version string `json:"version"`
	}
	err = b.call(ctx, "launch", map[string]any{
		"browser": kind, "executable": parts.browser, "args": args, "prefs": prefs,
	}, &launched)
	if err != nil {
		b.Close()
		return nil, fmt.Errorf("browser: launch %s: %w", parts.browser, err)
	}
	b.pid, b.Version = launched.PID, launched.Version
	return b, nil
}

// settings returns the command line and, for Firefox, the preferences.
func settings(kind Kind, opts Options) (args []string, prefs map[string]any) {
	if kind == Firefox {
		prefs = map[string]any{
			"media.navigator.permission.disabled":        true,
			"media.navigator.streams.fake":               true,
			"media.autoplay.default":                     0,
			"app.update.auto":                            false,
			"datareporting.policy.dataSubmissionEnabled": false,
		}
		if opts.Loopback {
			prefs["media.peerconnection.ice.loopback"] = true
			prefs["media.peerconnection.ice.obfuscate_host_addresses"] = false
		}
		return []string{}, prefs // the driver wants a list
	}
	args = []string{
		"--no-sandbox", // the tests run as root in containers, where the sandbox cannot start
		"--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
		"--disable-background-networking", "--disable-component-update", "--disable-sync",
		"--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream",
		"--autoplay-policy=no-user-gesture-required",
	}
	if opts.Loopback {
		args = append(args, "--allow-loopback-in-peer-connection")
	}
	return append(args, opts.Args...), nil
}

// read hands the driver's replies to the callers that wait for them.
func (b *Browser) read(stdout io.Reader) {
	lines := bufio.NewReader(stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		var r reply
		if json.Unmarshal(line, &r) != nil {
			continue // something else printed to stdout
		}
		b.mu.Lock()
		ch := b.waiting[r.ID]
		delete(b.waiting, r.ID)
		b.mu.Unlock()
		if ch != nil {
			ch <- r
		}
	}
	_ = b.cmd.Wait()
	b.mu.Lock()
	b.err = errExited
	for id, ch := range b.waiting {
		delete(b.waiting, id)
		ch <- reply{Error: errExited.Error()}
	}
	b.mu.Unlock()
	close(b.exited)
}

func (b *Browser) call(ctx context.Context, command string, params map[string]any, result any) error {
	ch := make(chan reply, 1)
	b.mu.Lock()
	if b.err != nil {
		b.mu.Unlock()
		return b.err
	}
	b.next++
	id := b.next
	b.waiting[id] = ch
	line, err := json.Marshal(map[string]any{"id": id, "command": command, "params": params})
	if err == nil {
		_, err = b.stdin.Write(append(line, '\n'))
	}
	b.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case r := <-ch:
		if r.Error != "" {
			return fmt.Errorf("%s: %s", command, r.Error)
		}
		if result == nil {
			return nil
		}
		return json.Unmarshal(r.Result, result)
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", command, ctx.Err())
	}
}

// Close ends the browser and its driver and waits for both.
func (b *Browser) Close() {
	_ = b.stdin.Close()
	select {
	case <-b.exited:
	case <-time.After(10 * time.Second):
		_ = syscall.Kill(-b.cmd.Process.Pid, syscall.SIGKILL)
		<-b.exited
	}
	// The browser leads a group of its own, which outlives a driver that was
	// killed; a browser that has closed already makes this a no-op.
	if b.pid > 0 && syscall.Kill(b.pid, 0) == nil {
		_ = syscall.Kill(-b.pid, syscall.SIGKILL)
	}
}

// Page is one tab.
type Page struct {
	b  *Browser
	id int
}

// Open loads url in a new tab and waits for its load event.
func (b *Browser) Open(ctx context.Context, url string) (*Page, error) {
	var opened struct {
		Page int `json:"page"`
	}
	err := b.call(ctx, "open", map[string]any{
		"url": url, "width": 1180, "height": 820, "timeout": 30_000,
	}, &opened)
	if err != nil {
		return nil, err
	}
	return &Page{b: b, id: opened.Page}, nil
}

// Call runs a JavaScript function (its source text) in the page with arg,
// waits for the promise it may return and decodes the outcome into result,
// which may be nil.
func (p *Page) Call(ctx context.Context, function string, arg, result any) error {
	encoded, err := json.Marshal(arg)
	if err != nil {
		return err
	}
	expression := fmt.Sprintf("(%s)(%s)", function, encoded)
	return p.b.call(ctx, "eval", map[string]any{"page": p.id, "expression": expression}, result)
}

// Click clicks the first element that matches a CSS selector, as a user would.
func (p *Page) Click(ctx context.Context, selector string) error {
	return p.b.call(ctx, "click", map[string]any{"page": p.id, "selector": selector}, nil)
}

// Screenshot writes a PNG of the page.
func (p *Page) Screenshot(ctx context.Context, path string) error {
	return p.b.call(ctx, "screenshot", map[string]any{"page": p.id, "path": path, "fullPage": true}, nil)
}

// Log returns what the page has written to its console.
func (p *Page) Log(ctx context.Context) []string {
	var log []string
	if err := p.b.call(ctx, "log", map[string]any{"page": p.id}, &log); err != nil {
		return []string{err.Error()}
	}
	return log
}

// Close closes the tab, as a user would.
func (p *Page) Close(ctx context.Context) error {
	return p.b.call(ctx, "close", map[string]any{"page": p.id}, nil)
}
