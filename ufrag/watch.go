package ufrag

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/usher-rtc/usher/internal/config"
)

const (
	// defaultWatchInterval makes a rotation step of seconds, with a read of a
	// small file that costs nothing.
	defaultWatchInterval = 5 * time.Second
	// maxFile bounds what a wrong path can make us read: a host file of 16 MiB
	// has about half a million hosts.
	maxFile = 16 << 20
)

// WatchConfig says which file to keep in step with, and how. It is for
// [Keyring.WatchFile], [NewFile] and [Watch].
type WatchConfig struct {
	// Path of the file. To change it, write another file and rename it over this
	// one: a file that is written in place may be read half written.
	Path string
	// Interval between two looks at the file. 0 stands for 5 seconds. Each look
	// reads the contents: modification times miss changes within their
	// granularity, and mounted secrets are exchanged behind symbolic links.
	Interval time.Duration
	// Logger for changes and errors; nil stands for slog.Default().
	Logger *slog.Logger
	// OnReload, if not nil, is called after each look that found a change: with
	// nil if it is in use now, with the error if the last good contents stay in
	// use. The same error is not reported twice in a row. It must not call the
	// watcher.
	OnReload func(error)
}

// A Watcher keeps something in step with a file, until it is closed. It is safe
// for concurrent use.
type Watcher struct {
	cfg  WatchConfig
	what string
	load func([]byte) error

	once sync.Once
	stop chan struct{}
	done chan struct{}

	mu   sync.Mutex // one look at a time
	last []byte     // the contents in use
	bad  string     // the error reported last, until a look finds nothing wrong
}

// Watch loads a file and follows it from then on: load is called with its contents
// at once, and again whenever they have changed. If it returns an error, that of
// the first call is returned; later ones are logged and reported, and whatever was
// loaded before stays in use. What names the contents in logs. The caller closes
// the Watcher.
func Watch(cfg WatchConfig, what string, load func([]byte) error) (*Watcher, error) {
	if cfg.Path == "" {
		return nil, config.In("ufrag.WatchConfig", config.Errorf("Path", "is empty"))
	}
	if err := config.Default("Interval", &cfg.Interval, defaultWatchInterval); err != nil {
		return nil, config.In("ufrag.WatchConfig", err)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	w := &Watcher{
		cfg: cfg, what: what, load: load,
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	text, err := readFile(cfg.Path)
	if err != nil {
		return nil, err
	}
	if err := load(text); err != nil {
		return nil, err
	}
	w.last = text
	go w.run()
	return w, nil
}

func (w *Watcher) run() {
	defer close(w.done)
	tick := time.NewTicker(w.cfg.Interval)
	defer tick.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-tick.C:
			_ = w.Reload() // it has reported its error
		}
	}
}

// Reload looks at the file at once, on a signal for example, and returns what is
// wrong with it. The last good contents stay in use then.
func (w *Watcher) Reload() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	text, err := readFile(w.cfg.Path)
	changed := false
	if err == nil && !bytes.Equal(text, w.last) {
		if err = w.load(text); err == nil {
			w.last, changed = text, true
		}
	}
	switch {
	case err != nil && err.Error() == w.bad:
		return err
	case err != nil:
		w.bad = err.Error()
		w.cfg.Logger.Error("cannot reload file; the last good contents stay in use",
			"what", w.what, "path", w.cfg.Path, "error", err)
	case changed || w.bad != "":
		w.bad = ""
		w.cfg.Logger.Info("file reloaded", "what", w.what, "path", w.cfg.Path)
	default:
		return nil
	}
	if w.cfg.OnReload != nil {
		w.cfg.OnReload(err)
	}
	return err
}

// Close stops watching and waits until a look that is under way has ended. What
// was loaded stays in use. It always returns nil, and may be called again.
func (w *Watcher) Close() error {
	w.once.Do(func() { close(w.stop) })
	<-w.done
	return nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxFile {
		return nil, &FileError{Path: path, Problem: fmt.Sprintf("has more than %d bytes", maxFile)}
	}
	return text, nil
}

// inFile puts the path into a FileError.
func inFile(path string, err error) error {
	var fe *FileError
	if errors.As(err, &fe) {
		fe.Path = path
	}
	return err
}
