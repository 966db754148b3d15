package cli

import (
	"errors"
	"log/slog"
	"os"
	"runtime"

	"github.com/usher-rtc/usher/ufrag"
)

// Keys reads a key file and follows it while the program runs, so that keys can
// be rotated without a restart. It warns about one that every user of the machine
// can read. The caller closes the watcher.
func Keys(path string) (*ufrag.Keyring, *ufrag.Watcher, error) {
	if path == "" {
		return nil, nil, errors.New("-keys is required: a key file, made with \"ufragctl keygen\"")
	}
	keys := new(ufrag.Keyring)
	watcher, err := keys.WatchFile(ufrag.WatchConfig{Path: path})
	if err == nil && readableByAll(path) {
		slog.Warn("every user of this machine can read the key file, and so route packets and pose as a transceiver: chmod 600 it, or defaultMode: 0440 and fsGroup for a secret in Kubernetes",
			"file", path)
	}
	return keys, watcher, err
}

// readableByAll reports whether a file is readable for others than its owner and
// group. On Windows the mode says nothing about that.
func readableByAll(path string) bool {
	info, err := os.Stat(path)
	return err == nil && runtime.GOOS != "windows" && info.Mode().Perm()&0o004 != 0
}
