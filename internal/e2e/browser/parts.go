package browser

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

type parts struct {
	node, driver, browser string
}

var names = map[Kind][]string{
	Chromium: {"chromium", "chromium-browser", "google-chrome"},
	Firefox:  {"firefox-esr", "firefox"},
}

// Check reports what must be installed before Launch can start this browser;
// nil means that everything is there. The first call installs the driver's
// packages with npm into the user's cache directory.
func Check(ctx context.Context, kind Kind) error {
	_, err := find(ctx, kind)
	return err
}

func find(ctx context.Context, kind Kind) (parts, error) {
	var p parts
	for _, name := range names[kind] {
		if path, err := exec.LookPath(name); err == nil {
			p.browser = path
			break
		}
	}
	if p.browser == "" {
		return p, fmt.Errorf("no browser called %s: install one (Debian: apt-get install %s)",
			strings.Join(names[kind], " or "), names[kind][0])
	}
	node, err := exec.LookPath("node")
	if err != nil {
		return p, fmt.Errorf("no node: install Node.js 18 or later (Debian: apt-get install nodejs npm)")
	}
	p.node = node
	p.driver, err = installDriver(ctx)
	return p, err
}

var install struct {
	sync.Mutex
	driver string
}

// installDriver returns the path of the driver with its packages beside it.
// They live in a directory named after the lock file, so a new list of packages
// is a new directory and nothing is written into the source tree.
func installDriver(ctx context.Context) (string, error) {
	install.Lock()
	defer install.Unlock()
	if install.driver != "" {
		return install.driver, nil
	}
	lock, err := driverFiles.ReadFile("package-lock.json")
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(lock)
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "usher-e2e", hex.EncodeToString(sum[:8]))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if err := writeDriver(dir); err != nil {
		return "", err
	}
	// npm writes this file last, so a run that was cut short is repeated.
	if _, err := os.Stat(filepath.Join(dir, "node_modules", ".package-lock.json")); err != nil {
		npm, err := exec.LookPath("npm")
		if err != nil {
			return "", fmt.Errorf("no npm: install it (Debian: apt-get install npm)")
		}
		cmd := exec.CommandContext(ctx, npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund")
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("npm ci in %s: %w\n%s", dir, err, out)
		}
	}
	install.driver = filepath.Join(dir, "driver.mjs")
	return install.driver, nil
}
