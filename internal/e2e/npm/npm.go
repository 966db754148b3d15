// Package npm installs the packages of a lock file for tests that need Node.js
// or a library for browsers. It owns where they go and when they are installed
// again; it knows nothing of what they are.
package npm

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// LockFile has to be among the files that are given to Install.
const LockFile = "package-lock.json"

var installing sync.Mutex

// Install writes all of files, which are in one directory, into a directory of
// the user's cache, installs the packages of their LockFile beside them, and
// returns that directory. It is named after the lock file, so a new list of
// packages is a new directory, and nothing is written into the source tree. The
// error says what must be installed first. It may be called any number of times.
func Install(ctx context.Context, files embed.FS) (dir string, err error) {
	installing.Lock()
	defer installing.Unlock()
	lock, err := files.ReadFile(LockFile)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(lock)
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(cache, "usher-e2e", hex.EncodeToString(sum[:8]))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	entries, err := files.ReadDir(".")
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		content, err := files.ReadFile(e.Name())
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(dir, e.Name()), content, 0o644); err != nil {
			return "", err
		}
	}
	// npm writes this file last, so a run that was cut short is repeated.
	if _, err := os.Stat(filepath.Join(dir, "node_modules", ".package-lock.json")); err == nil {
		return dir, nil
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		return "", errors.New("no npm: install it (Debian: apt-get install npm)")
	}
	cmd := exec.CommandContext(ctx, npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci in %s: %w\n%s", dir, err, out)
	}
	return dir, nil
}
