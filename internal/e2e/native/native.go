package native

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"

	"github.com/usher-rtc/usher/internal/e2e/npm"
)

//go:embed client.mjs package.json package-lock.json
var files embed.FS

// Kind is a client implementation.
type Kind string

// The clients.
const (
	Werift         Kind = "werift"
	Libdatachannel Kind = "libdatachannel"
	Libwebrtc      Kind = "libwebrtc"
)

// Result is what a client found in one call of about three seconds.
type Result struct {
	Ufrag    string  `json:"ufrag"`
	Answer   string  `json:"answer"`
	Location string  `json:"location"`
	Connect  float64 `json:"connect"` // ms from the answer to the open data channel
	Sent     int     `json:"sent"`    // packets of audio, 20 ms each
	// Back are the different packets that returned; with libwebrtc, whose decoder
	// knows no packets, pieces of 20 ms in which the tone was heard.
	Back    int    `json:"back"`
	Echoed  string `json:"echoed"` // what came back for "hello from KIND"
	Problem string `json:"problem"`
}

// Call makes one call: it POSTs an offer to url. start starts the process, for
// instance inside a network namespace; what it says besides goes to stderr.
func Call(ctx context.Context, kind Kind, url string, start func(*exec.Cmd) error, stderr io.Writer) (r Result, err error) {
	node, script, err := find(ctx)
	if err != nil {
		return r, err
	}
	cmd := exec.CommandContext(ctx, node, script, string(kind), url)
	cmd.Stderr = stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return r, err
	}
	if err := start(cmd); err != nil {
		return r, fmt.Errorf("native: %w", err)
	}
	// A client that crashes writes no result; its own end is the better error.
	decoded := json.NewDecoder(stdout).Decode(&r)
	return r, errors.Join(cmd.Wait(), decoded)
}

// Check reports what must be installed before Call can make calls; nil means that
// everything is there. The first call installs the clients' packages with npm
// into the user's cache directory.
func Check(ctx context.Context) error {
	_, _, err := find(ctx)
	return err
}

// find returns the paths of Node.js and of the script with its packages beside it.
func find(ctx context.Context) (node, script string, err error) {
	if node, err = exec.LookPath("node"); err != nil {
		return "", "", errors.New("no node: install Node.js 20 or later (Debian: apt-get install nodejs npm)")
	}
	dir, err := npm.Install(ctx, files)
	return node, filepath.Join(dir, "client.mjs"), err
}
