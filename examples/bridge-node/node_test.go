package bridgenode_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/usher-rtc/usher/internal/parts"
	"github.com/usher-rtc/usher/transceiver/bridge/bridgetest"
)

var files = []string{"service.mjs", "package.json", "package-lock.json"}

// install puts the service and its package into the user's cache directory, so
// that nothing is written into the source tree, and returns its path.
func install(ctx context.Context) (string, error) {
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			return "", fmt.Errorf("no %s: install Node.js 18 or later (Debian: apt-get install nodejs npm)", program)
		}
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	var contents [][]byte
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		contents = append(contents, b)
		sum.Write(b)
	}
	dir := filepath.Join(cache, "usher-bridge-node", hex.EncodeToString(sum.Sum(nil)[:8]))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for i, name := range files {
		if err := os.WriteFile(filepath.Join(dir, name), contents[i], 0o644); err != nil {
			return "", err
		}
	}
	// npm writes this file last, so a run that was cut short is repeated.
	if _, err := os.Stat(filepath.Join(dir, "node_modules", ".package-lock.json")); err != nil {
		cmd := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("npm ci: %w\n%s", err, out)
		}
	}
	return filepath.Join(dir, "service.mjs"), nil
}

// run starts the service on a free port and returns its address.
func run(t *testing.T, codec string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	script, err := install(ctx)
	parts.Need(t, err)
	cmd := exec.CommandContext(ctx, "node", script)
	cmd.Env = append(os.Environ(), "PORT=0", "CODEC="+codec)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	url, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err, cmd.Wait())
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return strings.TrimSpace(url)
}

func TestNodeService(t *testing.T) {
	for _, codec := range []string{"opus", "pcm16/24000"} {
		t.Run(codec, func(t *testing.T) {
			bridgetest.Run(t, bridgetest.Service{URL: run(t, codec), Codec: codec})
		})
	}
}
