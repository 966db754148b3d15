package browser

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/usher-rtc/usher/internal/e2e/npm"
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
	dir, err := npm.Install(ctx, driverFiles)
	p.driver = filepath.Join(dir, "driver.mjs")
	return p, err
}
