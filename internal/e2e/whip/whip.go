// Package whip has the WHIP and WHEP clients of the protocols' author, from npm,
// for pages in the end-to-end tests. It owns their version; what a page does with
// them is the test's business.
package whip

import (
	"context"
	"embed"
	"os"
	"path/filepath"

	"github.com/usher-rtc/usher/internal/e2e/npm"
)

//go:embed package.json package-lock.json
var files embed.FS

// Sources are JavaScript modules for a browser: what they export is called
// WHIPClient and WHEPClient.
type Sources struct{ WHIP, WHEP string }

// Load returns the modules. The first call installs the package with npm into
// the user's cache directory.
func Load(ctx context.Context) (s Sources, err error) {
	dir, err := npm.Install(ctx, files)
	if err != nil {
		return s, err
	}
	for name, to := range map[string]*string{"whip.js": &s.WHIP, "whep.js": &s.WHEP} {
		b, err := os.ReadFile(filepath.Join(dir, "node_modules", "whip-whep", name))
		if err != nil {
			return s, err
		}
		*to = string(b)
	}
	return s, nil
}
