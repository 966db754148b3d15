// Package realtime has the public client library for realtime agents, from npm,
// for pages in the end-to-end tests. It owns its version; what a page does with
// it is the test's business.
package realtime

import (
	"context"
	"embed"
	"os"
	"path/filepath"

	"github.com/usher-rtc/usher/internal/e2e/npm"
)

//go:embed package.json package-lock.json
var files embed.FS

// Load returns the library as one script for a browser, which sets the global
// OpenAIAgentsRealtime. The first call installs the package with npm into the
// user's cache directory.
func Load(ctx context.Context) ([]byte, error) {
	dir, err := npm.Install(ctx, files)
	if err != nil {
		return nil, err
	}
	return os.ReadFile(filepath.Join(dir, "node_modules", "@openai", "agents-realtime", "dist", "bundle", "openai-realtime-agents.umd.js"))
}
